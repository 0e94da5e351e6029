"""Requests from their prompt to their last token, and how each of them ends."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from kvproof.runtime.api import (
    DuplicateRequestError,
    FinishReason,
    InvalidRequestError,
    RejectedCallError,
    RequestOutput,
)
from kvproof.runtime.fake import FakeRunner, expected_tokens
from kvproof.runtime.protocols import StepResult
from kvproof.runtime.sampling_params import SamplingParams

from .harness import SIZE, Bench

GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("blocks", [6, 40])
def test_every_request_gets_the_tokens_of_an_undisturbed_run(depth: int, blocks: int) -> None:
    bench = Bench(blocks=blocks, steps_in_flight=depth, max_batched_tokens=10)
    for number in range(8):
        bench.add(f"r{number}", [1] * number + [number + 2], 9)
    bench.run()
    for number in range(8):
        bench.assert_undisturbed(f"r{number}", [1] * number + [number + 2], 9)
        assert bench.clients[f"r{number}"].finish is FinishReason.LENGTH
    assert bench.free == blocks
    assert bench.core.holds() == []


def test_a_rows_next_tenant_never_gets_its_predecessors_token() -> None:
    bench = Bench(steps_in_flight=2)
    bench.add("a", 5, 9)
    bench.core.launch_step()
    row = bench.row("a")
    bench.core.abort("a")
    heard = bench.add("b", 5, 3)
    assert bench.row("b") != row
    bench.core.finish_step()
    bench.core.tick()
    assert bench.lifecycle.row_of("a") is None
    bench.run()
    bench.add("c", 5, 3)
    bench.run()
    assert heard.tokens == expected_tokens([11] * 5, 3)
    bench.assert_undisturbed("c", [12] * 5, 3)


def test_an_id_is_free_again_when_nothing_of_its_last_life_is_left() -> None:
    bench = Bench()
    bench.add("a", 5)
    bench.core.launch_step()
    bench.core.abort("a")
    with pytest.raises(DuplicateRequestError, match="last life"):
        bench.add("a", 5)
    bench.core.finish_step()
    bench.core.tick()
    bench.add("a", [3] * 5)
    bench.run()
    bench.assert_undisturbed("a", [3] * 5, 4)


# --- ends -----------------------------------------------------------------------------------------


def stop_at(wanted: int) -> FakeRunner:
    """A device that samples `wanted` as the fourth token after a prompt of five."""
    return FakeRunner(
        16, SIZE, manual=True, sample=lambda prefix, length: wanted if length == 8 else 500 + length
    )


def test_the_models_end_token_stops() -> None:
    bench = Bench(runner=stop_at(2), core={"eos_token_ids": (2,)})
    heard = bench.add("a", 5, params=GREEDY)
    bench.run()
    assert heard.tokens == [505, 506, 507, 2]
    assert heard.finish is FinishReason.STOP
    assert heard.outputs[-1].stop_reason is None


def test_the_end_token_can_be_ignored() -> None:
    bench = Bench(runner=stop_at(2), core={"eos_token_ids": (2,)})
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    heard = bench.add("a", 5, params=params)
    bench.run()
    assert len(heard.tokens) == 8
    assert heard.finish is FinishReason.LENGTH


def test_a_stop_token_of_the_request_stops_and_is_named() -> None:
    bench = Bench(runner=stop_at(77))
    params = SamplingParams(max_tokens=8, temperature=0.0, stop_token_ids=(77,))
    heard = bench.add("a", 5, params=params)
    other = bench.add("b", 5, params=GREEDY)
    bench.run()
    assert heard.outputs[-1].stop_reason == 77
    assert heard.finish is FinishReason.STOP
    assert len(other.tokens) == 8


def test_a_stop_token_does_not_count_before_the_least_number_of_tokens() -> None:
    params = SamplingParams(max_tokens=8, min_tokens=5, temperature=0.0)
    bench = Bench(runner=stop_at(2), core={"eos_token_ids": (2,)})
    heard = bench.add("a", 5, params=params)
    bench.run()
    assert len(heard.tokens) == 8
    exact = SamplingParams(max_tokens=8, min_tokens=4, temperature=0.0)
    bench = Bench(runner=stop_at(2), core={"eos_token_ids": (2,)})
    heard = bench.add("a", 5, params=exact)
    bench.run()
    assert len(heard.tokens) == 4


def test_the_models_length_ends_a_request() -> None:
    bench = Bench(max_model_len=12)
    heard = bench.add("a", 5, params=SamplingParams(max_tokens=None, temperature=0.0))
    bench.run()
    assert len(heard.tokens) == 7
    assert heard.finish is FinishReason.LENGTH


class Letters:
    """Text in which each token is a letter; it ends at a "d"."""

    def __init__(self, params: SamplingParams) -> None:
        self.stopped_by: str | None = None
        self.held = ""

    def push(self, tokens: Iterable[int]) -> str:
        text, self.held = self.held, ""
        for token in tokens:
            letter = chr(ord("a") + token % 100)
            if letter == "d":
                self.stopped_by = "d"
                return text
            if letter == "h":
                raise RuntimeError("the text broke")
            self.held = letter
        return text

    def finish(self) -> str:
        return "" if self.stopped_by else self.held


def test_a_stop_string_ends_a_request_and_held_back_text_comes_with_the_end() -> None:
    runner = FakeRunner(16, SIZE, manual=True, sample=lambda prefix, length: length - 5)
    bench = Bench(runner=runner, core={"text": Letters})
    heard = bench.add("a", 5, params=GREEDY)
    bench.run()
    assert heard.tokens == [0, 1, 2, 3]
    assert "".join(output.text for output in heard.outputs) == "abc"[:2] + "c"
    assert heard.outputs[-1].stop_reason == "d"
    bench.add("b", 5, params=SamplingParams(max_tokens=2, temperature=0.0))
    bench.run()
    assert "".join(output.text for output in bench.clients["b"].outputs) == "ab"


def test_a_text_that_fails_ends_its_own_request_only() -> None:
    runner = FakeRunner(16, SIZE, manual=True, sample=lambda prefix, length: length)
    bench = Bench(runner=runner)
    heard = bench.add("a", 4, params=GREEDY, text=Letters)
    other = bench.add("b", 4, params=GREEDY)
    bench.run()
    assert heard.finish is FinishReason.ERROR
    assert "the text broke" in str(heard.outputs[-1].error)
    assert other.finish is FinishReason.LENGTH


def test_a_client_that_fails_ends_nobody() -> None:
    bench = Bench()

    def fail(output: RequestOutput) -> None:
        raise RuntimeError("the client's own fault")

    bench.core.add_request("a", [1, 2], GREEDY, on_output=fail)
    heard = bench.add("b", 4)
    bench.run()
    assert heard.finish is FinishReason.LENGTH
    assert bench.core.stats().finished == {"length": 2}


def test_a_client_may_abort_another_from_within_its_output() -> None:
    bench = Bench()
    victim = bench.add("b", 4, 8)

    def kill(output: RequestOutput) -> None:
        bench.core.abort("b")

    bench.core.add_request("a", [1, 2], GREEDY, on_output=kill)
    bench.run()
    assert victim.finish is FinishReason.ABORT
    assert [output.finish_reason for output in victim.outputs].count(FinishReason.ABORT) == 1


def test_a_row_that_is_given_away_within_an_output_gets_nothing_of_its_predecessor() -> None:
    """The first client ends the second and sends a third, which gets the second one's row."""
    bench = Bench()
    heard: list[RequestOutput] = []

    def replace(output: RequestOutput) -> None:
        if bench.core.abort("b"):
            bench.add("c", 4, 3)

    bench.core.add_request("a", [1, 2], GREEDY, on_output=replace)
    bench.core.add_request("b", [3, 4], GREEDY, on_output=heard.append)
    row = bench.row("b")
    bench.turn()
    assert bench.row("c") == row
    bench.run()
    bench.assert_undisturbed("c", [10] * 4, 3)
    assert [output.finish_reason for output in heard] == [FinishReason.ABORT]


def test_what_would_process_a_step_cannot_be_called_from_within_an_output() -> None:
    bench = Bench(steps_in_flight=2)
    refusals: list[str] = []

    def reset(output: RequestOutput) -> None:
        try:
            bench.core.reset_prefix_cache(True)
        except RejectedCallError as error:
            refusals.append(str(error))

    bench.core.add_request("a", [1, 2], GREEDY, on_output=reset)
    bench.add("b", 5, 8)
    bench.run()
    assert len(refusals) == 8
    assert "another thread" in refusals[0]
    bench.assert_undisturbed("b", [10] * 5, 8)


def test_an_abort_ends_a_request_in_every_state() -> None:
    bench = Bench(blocks=6, max_num_seqs=1)
    running, waiting = bench.add("a", 5, 9), bench.add("b", 5)
    parked = bench.add("s", 3, 1, resumable=True)
    bench.core.abort("b")
    assert waiting.finish is FinishReason.ABORT
    bench.turn()
    assert bench.core.abort("a")
    assert running.finish is FinishReason.ABORT
    bench.run(lambda: bench.state("s") == "WAITING_FOR_STREAMING_REQ")
    assert bench.core.abort("s")
    assert parked.finish is FinishReason.ABORT
    bench.core.tick()
    assert bench.free == 6
    assert not bench.core.abort("a"), "finished"
    assert not bench.core.abort("z"), "unknown"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_step_that_fails_ends_its_own_requests_only(depth: int) -> None:
    bench = Bench(steps_in_flight=depth)
    bench.runner.failing.add(2)
    doomed = bench.add("a", 5, 9)
    bench.run(lambda: doomed.finish is not None)
    assert doomed.finish is FinishReason.ERROR
    assert "the device failed" in str(doomed.outputs[-1].error)
    bench.add("b", 5)
    bench.run()
    bench.assert_undisturbed("b", [11] * 5, 4)
    assert bench.free == 16


@pytest.mark.parametrize("depth", [1, 2])
def test_a_row_that_fails_ends_its_own_request_only(depth: int) -> None:
    bench = Bench(steps_in_flight=depth)
    bench.add("a", 5)
    bench.add("b", 5)
    bench.core.launch_step()
    bench.runner.failing_rows.add((2, bench.row("a")))
    bench.run()
    assert bench.clients["a"].finish is FinishReason.ERROR
    assert bench.clients["b"].finish is FinishReason.LENGTH
    bench.assert_undisturbed("b", [11] * 5, 4)


def test_a_launch_that_fails_ends_the_requests_of_that_step() -> None:
    bench = Bench()
    launch, failing = bench.runner.launch, [True]

    def sometimes(batch: object) -> None:
        if failing.pop() if failing else False:
            raise RuntimeError("no device")
        launch(batch)  # type: ignore[arg-type]

    bench.runner.launch = sometimes  # type: ignore[method-assign, assignment]
    heard = bench.add("a", 5)
    bench.turn()
    assert heard.finish is FinishReason.ERROR
    bench.add("b", 5)
    bench.run()
    bench.assert_undisturbed("b", [11] * 5, 4)


def test_tokens_are_delivered_by_row_whatever_the_order_of_the_result() -> None:
    class Shuffled(FakeRunner):
        def collect(self, step: int, timeout: float | None = None) -> StepResult:
            result = super().collect(step, timeout)
            return result._replace(rows=result.rows[::-1], sampled=result.sampled[::-1])

    bench = Bench(runner=Shuffled(16, SIZE, manual=True))
    for name in "abc":
        bench.add(name, 4)
    bench.run()
    for number, name in enumerate("abc"):
        bench.assert_undisturbed(name, [10 + number] * 4, 4)


def test_a_row_that_the_result_lacks_has_failed() -> None:
    class Forgetful(FakeRunner):
        def collect(self, step: int, timeout: float | None = None) -> StepResult:
            result = super().collect(step, timeout)
            return result._replace(rows=result.rows[:1], sampled=result.sampled[:1])

    bench = Bench(runner=Forgetful(16, SIZE, manual=True))
    bench.add("a", 4)
    lost = bench.add("b", 4)
    bench.run()
    bench.assert_undisturbed("a", [10] * 4, 4)
    assert lost.finish is FinishReason.ERROR
    assert "lacks it" in str(lost.outputs[-1].error)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tokens",
    [[], [1, -2], [1, 1000], [1.5, 2], ["a"], [[1, 2]], np.ones((2, 2)), np.array([0.5]), None],
)
def test_a_prompt_that_is_no_list_of_tokens_is_refused(tokens: object) -> None:
    bench = Bench(core={"vocabulary": 1000})
    with pytest.raises(InvalidRequestError):
        bench.core.add_request("a", tokens, GREEDY, on_output=print)  # type: ignore[arg-type]
    assert bench.lifecycle.live == 0
    assert bench.lifecycle.row_of("a") is None


def test_a_prompt_is_copied() -> None:
    bench = Bench()
    prompt = np.array([1, 2, 3], dtype=np.int32)
    heard: list[RequestOutput] = []
    bench.core.add_request("a", prompt, GREEDY, on_output=heard.append)
    prompt[:] = 9
    bench.run()
    assert [output.tokens[0] for output in heard] == expected_tokens([1, 2, 3], 8)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("policy", "lottery", "policy 'lottery'; known are fcfs and priority"),
        ("load_failure_policy", "hope", "known are recompute and fail"),
        ("steps_in_flight", 3, "known are 1 and 2"),
        ("num_blocks", 0, "num_blocks 0; it must be at least 1"),
        ("max_model_len", 1, "it must be at least 2"),
        ("hash_algorithm", "md5", "known are xxh3_128"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_by_field(
    field: str, value: object, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        Bench(**{field: value})


# --- looking --------------------------------------------------------------------------------------


def test_request_info_has_facts_and_transitions_and_no_tokens() -> None:
    bench = Bench()
    bench.add("a", [424242] * 5)
    bench.turn()
    info = bench.core.request_info("a")
    assert info is not None
    assert (info.state, info.container) == ("RUNNING", "running")
    assert info.facts["computed"] == 5
    assert [entry["event"] for entry in info.transitions] == ["add", "admit"]
    assert "424242" not in str(info)


def test_a_finished_request_is_remembered_for_a_while() -> None:
    bench = Bench()
    bench.add("a", 5)
    bench.run()
    bench.core.tick()
    assert bench.lifecycle.row_of("a") is None
    info = bench.core.request_info("a")
    assert info is not None
    assert info.state == "FINISHED_LENGTH_CAPPED"
    assert bench.core.request_info("z") is None


def test_usage_is_counted_in_tokens() -> None:
    bench = Bench()
    bench.add("a", [1] * 9)
    bench.run()
    bench.add("b", [1] * 9)
    bench.run()
    last = bench.clients["b"].outputs[-1]
    assert (last.prompt_tokens, last.output_tokens, last.cached_tokens) == (9, 4, 8)
    stats = bench.core.stats()
    assert (stats.prompt_tokens, stats.generation_tokens) == (18, 8)
    assert (stats.prefix_queries, stats.prefix_hits) == (18, 8)
    assert stats.blocks_free == stats.blocks_total == 16


def test_prefixes_are_shared_within_a_salt_only() -> None:
    bench = Bench()
    for name, salt in (("a", b""), ("b", b"tenant"), ("c", b"tenant")):
        bench.add(name, [1] * 9, salt=salt)
        bench.run()
    cached = [bench.clients[name].outputs[0].cached_tokens for name in "abc"]
    assert cached == [0, 0, 8]


@pytest.mark.parametrize("algorithm", ["xxh3_128", "blake3", "sha256"])
def test_prefixes_are_hit_with_every_hash(algorithm: str) -> None:
    bench = Bench(hash_algorithm=algorithm)
    for name in "ab":
        bench.add(name, [1] * 9)
        bench.run()
    assert bench.clients["b"].outputs[0].cached_tokens == 8
