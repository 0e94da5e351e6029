"""`generate` and `stream`: what goes in, what comes out, what is refused, who is ended by whom."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest
from kvproof.runtime.api import EngineClosedError, FinishReason, InvalidRequestError
from kvproof.runtime.engine import Engine
from kvproof.runtime.llm import LLM
from kvproof.runtime.model.errors import ModelError
from kvproof.runtime.protocols import StepBatch, StepResult
from kvproof.runtime.sampling_params import SamplingParams

from .conftest import MakeEngine

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
PROMPTS = ["hello world", "he", "an other text"]


def test_completions_come_in_the_order_of_their_prompts(engine: LLM) -> None:
    alone = [engine.generate(prompt, GREEDY)[0] for prompt in PROMPTS]
    together = engine.generate(PROMPTS, GREEDY)
    assert [one.tokens for one in together] == [one.tokens for one in alone]
    assert [len(one.tokens) for one in together] == [6, 6, 6]
    assert all(one.finish_reason is FinishReason.LENGTH for one in together)
    assert [one.text for one in together] == [engine.tokenizer.decode(a.tokens) for a in alone]
    assert [one.prompt_tokens for one in together] == [len(engine.encode(p)) for p in PROMPTS]


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_a_prompt_may_be_token_ids(engine: LLM, kind: type) -> None:
    ids = engine.encode("hello world")
    (one,) = engine.generate(kind([int(token) for token in ids]), GREEDY)
    assert one.tokens == engine.generate("hello world", GREEDY)[0].tokens


def test_each_prompt_may_have_its_own_parameters(engine: LLM) -> None:
    each = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 3)]
    assert [len(one.tokens) for one in engine.generate(PROMPTS[:2], each)] == [1, 3]


def test_seeds_fix_what_is_drawn_whatever_is_in_the_batch(engine: LLM) -> None:
    drawn = SamplingParams(temperature=1.5, max_tokens=12, seed=7, ignore_eos=True)
    (alone,) = engine.generate("hello", drawn)
    together = engine.generate(["he", "hello", "x y"], drawn)
    assert together[1].tokens == alone.tokens


def test_logprobs_come_one_a_token(engine: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=2, ignore_eos=True)
    (one,) = engine.generate("hello", params)
    assert [found.token for found in one.logprobs] == list(one.tokens)
    assert all(len(found.top) == 2 and found.logprob <= 0 for found in one.logprobs)


def test_no_prompts_are_no_completions(engine: LLM) -> None:
    assert engine.generate([]) == []


@pytest.mark.parametrize(
    ("prompts", "params", "named"),
    [
        (["hello", ""], None, "prompt 1: the prompt is empty"),
        (["hello", [1, 2, 10_000]], None, "prompt 1: the prompt has 10000"),
        (["hello", [1, -1]], None, "prompt 1: the prompt has -1"),
        (["hello", [5] * 500], None, "prompt 1"),
        (["hello", b"bytes"], None, "neither a text nor a list"),
        ({"role": "user"}, None, "are no prompts"),
        (["hello", "he"], [GREEDY], "2 prompts need one SamplingParams, or 2"),
        (["hello", "he"], [GREEDY, {"max_tokens": 3}], "prompt 1"),
        (7, None, "are no prompts"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(
    engine: LLM, prompts: object, params: object, named: str
) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        engine.generate(prompts, params)  # type: ignore[arg-type]
    assert engine.stats().steps_launched == 0
    assert engine.holds() == []
    assert len(engine.generate(PROMPTS, GREEDY)) == 3, "the engine goes on"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"dtype": "int8"}, "dtype 'int8'"),
        ({"device_blocks": 0}, "device_blocks 0"),
        ({"steps_in_flight": 3}, "steps_in_flight 3"),
        ({"steps_in_flight": True}, "steps_in_flight True"),
        ({"policy": "random"}, "policy 'random'"),
        ({"host_tier_bytes": -1}, "host_tier_bytes -1"),
        ({"session_deadline": float("nan")}, "session_deadline nan"),
        ({"max_num_seqs": 2.5}, r"max_num_seqs 2\.5"),
    ],
)
def test_a_wrong_option_is_refused_before_the_model_is_looked_for(
    options: dict[str, object], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        Engine.from_pretrained("/no/such/model", **options)


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="blocks_on_device"):
        Engine.from_pretrained("/no/such/model", blocks_on_device=3)


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nothing-here"):
        Engine.from_pretrained(tmp_path / "nothing-here")


def test_an_engine_that_was_left_takes_nothing(make_engine: MakeEngine) -> None:
    with make_engine() as engine:
        engine.generate("hello", GREEDY)
    with pytest.raises(EngineClosedError):
        engine.generate("hello", GREEDY)


def fail_rows(engine: LLM, wrong: set[int]) -> None:
    """From now on the device fails these rows, and these alone."""
    runner = engine.core.runner
    collect = runner.collect

    def failing(step: int, timeout: float | None = None) -> StepResult:
        result = collect(step, timeout)
        found = {int(row): RuntimeError("bit flip") for row in result.rows if int(row) in wrong}
        sampled = np.where(np.isin(result.rows, list(wrong)), -1, result.sampled)
        return result._replace(errors=found, sampled=sampled.astype(np.int32))

    runner.collect = failing  # type: ignore[method-assign]


def test_one_requests_failure_ends_no_other(engine: LLM) -> None:
    expected = [one.tokens for one in engine.generate(PROMPTS, GREEDY)]
    failed: set[int] = set()
    fail_rows(engine, failed)
    bind = engine.core.runner.bind

    def watching(row: int, params: SamplingParams, tokens: np.ndarray, outputs: int = 0) -> None:
        if params.max_tokens == 5:
            failed.add(row)
        bind(row, params, tokens, outputs)

    engine.core.runner.bind = watching  # type: ignore[method-assign]
    doomed = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    done = engine.generate(PROMPTS, [GREEDY, doomed, GREEDY], progress=False)
    assert [one.failed for one in done] == [False, True, False]
    assert "bit flip" in (done[1].error or "")
    assert [done[0].tokens, done[2].tokens] == [expected[0], expected[2]]
    assert engine.holds() == []


def test_a_step_that_fails_as_a_whole_ends_its_requests_and_not_the_engine(engine: LLM) -> None:
    runner = engine.core.runner
    launch = runner.launch

    def failing(batch: StepBatch) -> None:
        runner.launch = launch  # type: ignore[method-assign]
        raise MemoryError("no memory for this step")

    runner.launch = failing  # type: ignore[method-assign]
    done = engine.generate(PROMPTS, GREEDY)
    assert all("no memory for this step" in (one.error or "") for one in done)
    assert not any(one.failed for one in engine.generate(PROMPTS, GREEDY))


def test_a_stream_gives_the_text_of_the_completion_piece_by_piece(engine: LLM) -> None:
    (expected,) = engine.generate("hello", GREEDY)
    outputs = list(engine.stream("hello", GREEDY))
    assert "".join(output.text for output in outputs) == expected.text
    assert [t for output in outputs for t in output.tokens] == list(expected.tokens)
    assert [output.finished for output in outputs].index(True) == len(outputs) - 1


def test_a_stream_can_be_read_with_async_for(engine: LLM) -> None:
    expected = [one.tokens for one in engine.generate(PROMPTS, GREEDY)]

    async def read(prompt: str) -> tuple[int, ...]:
        tokens: tuple[int, ...] = ()
        async for output in engine.stream(prompt, GREEDY):
            tokens += output.tokens
        return tokens

    async def read_all() -> list[tuple[int, ...]]:
        return await asyncio.gather(*(read(prompt) for prompt in PROMPTS))

    assert asyncio.run(read_all()) == expected


def test_whoever_breaks_off_a_stream_has_its_request_aborted(engine: LLM) -> None:
    for output in engine.stream("hello", LONG):
        assert not output.finished
        break
    stream = engine.stream("he", GREEDY)
    assert len(stream.result().tokens) == 6
    assert engine.stats().finished == {"abort": 1, "length": 1}
    assert engine.holds() == []


def test_whoever_breaks_off_an_async_stream_has_its_request_aborted(engine: LLM) -> None:
    async def read_one() -> None:
        async for output in engine.stream("hello", LONG):
            assert not output.finished
            break

    asyncio.run(read_one())
    engine.generate("he", GREEDY)
    assert engine.stats().finished == {"abort": 1, "length": 1}


def test_a_cancelled_task_has_its_request_aborted(engine: LLM) -> None:
    async def cancelled() -> None:
        started = asyncio.Event()

        async def read() -> None:
            async for _ in engine.stream("hello", LONG):
                started.set()

        task = asyncio.ensure_future(read())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    engine.generate("he", GREEDY)
    assert engine.stats().finished == {"abort": 1, "length": 1}


def test_a_slow_reader_gets_everything_in_one_piece(engine: LLM) -> None:
    stream = engine.stream("hello", GREEDY)
    engine.generate("he", LONG)  # ends later than the stream's request
    assert stream.ended
    (output,) = list(stream)
    assert len(output.tokens) == 6
    assert output.finish_reason is FinishReason.LENGTH


def test_a_stream_ends_with_an_error_when_the_engine_fails(engine: LLM) -> None:
    def boom() -> None:
        raise RuntimeError("the loop dies here")

    stream = engine.stream("hello", LONG)
    engine.core.tick = boom  # type: ignore[method-assign]
    done = stream.result()
    assert done.failed
    assert "the loop dies here" in (done.error or "")
    assert engine.healthy()[0] is False


def test_an_interrupt_aborts_what_generate_has_started(engine: LLM) -> None:
    hear = threading.Event()
    tick = engine.core.tick

    def watching() -> None:
        if engine.core.requests():
            hear.set()
        tick()

    engine.core.tick = watching  # type: ignore[method-assign]

    class Interrupted(BaseException):
        pass

    class Bar:
        interval = 0.01

        def __init__(self, *_: object) -> None:
            pass

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def show(self, done: int, tokens: int) -> None:
            if hear.is_set():
                raise Interrupted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvproof.runtime.llm.Progress", Bar)
        with pytest.raises(Interrupted):
            engine.generate(PROMPTS, LONG)
    engine.generate("he", GREEDY)
    assert engine.stats().finished == {"abort": 3, "length": 1}


def test_the_bar_is_shown_when_asked_for(engine: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    engine.generate(PROMPTS, GREEDY, progress=True)
    shown = capfd.readouterr().err
    assert "generating" in shown
    assert "3/3" in shown
    engine.generate(PROMPTS, GREEDY)
    assert capfd.readouterr().err == ""
