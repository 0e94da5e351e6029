"""The engine behind its loop: any thread may call, and nobody waits for ever."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvproof.runtime.api import (
    DuplicateRequestError,
    EngineClosedError,
    EngineConfig,
    EngineFailedError,
    FinishReason,
    InvalidRequestError,
    RequestOutput,
)
from kvproof.runtime.engine import Engine
from kvproof.runtime.fake import FakeRunner, expected_tokens
from kvproof.runtime.protocols import StepResult
from kvproof.runtime.sampling_params import SamplingParams
from kvproof.statemachine import parse_transition

PATIENCE = 30.0


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0.0)


class Fixture:
    def __init__(self, runner: FakeRunner | None = None, **config: object) -> None:
        options: dict[str, object] = {
            "num_blocks": 64, "block_size": 4, "max_model_len": 64, "max_num_seqs": 8,
            "steps_in_flight": 2, "check": True,
        }  # fmt: skip
        self.runner = runner or FakeRunner(64, 4)
        self.engine = Engine(EngineConfig(**(options | config)), self.runner)  # type: ignore[arg-type]
        self.outputs: queue.Queue[RequestOutput] = queue.Queue()

    def add(self, name: str, prompt: list[int], tokens: int = 6, **options: object) -> None:
        self.engine.add_request(
            name, prompt, greedy(tokens), on_output=self.outputs.put, **options  # type: ignore[arg-type]
        )  # fmt: skip

    def hear(self, *names: str) -> dict[str, list[int]]:
        heard: dict[str, list[int]] = {name: [] for name in names}
        open_names = set(names)
        while open_names:
            output = self.outputs.get(timeout=PATIENCE)
            heard[output.request_id] += output.tokens
            if output.finish_reason is not None:
                open_names.discard(output.request_id)
        return heard


@pytest.fixture
def loop() -> Iterator[Fixture]:
    fixture = Fixture()
    yield fixture
    fixture.engine.shutdown(drain=False)


def test_many_threads_are_served_at_once(loop: Fixture) -> None:
    prompts = {f"r{number}": [number] * (number + 1) for number in range(16)}
    threads = [
        threading.Thread(target=loop.add, args=(name, prompt)) for name, prompt in prompts.items()
    ]
    for thread in threads:
        thread.start()
    heard = loop.hear(*prompts)
    for thread in threads:
        thread.join()
    for name, prompt in prompts.items():
        assert heard[name] == expected_tokens(prompt, 6)
    assert loop.runner.corruptions == []
    assert loop.engine.holds() == []


def test_errors_reach_the_caller_and_the_loop_goes_on(loop: Fixture) -> None:
    loop.add("a", [1, 2], 40)
    with pytest.raises(DuplicateRequestError):
        loop.add("a", [1, 2])
    with pytest.raises(InvalidRequestError):
        loop.add("b", [])
    with pytest.raises(InvalidRequestError):
        loop.engine.add_request("c", [1], "greedy", on_output=print)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="No such file"):
        loop.engine.trace("/nowhere/at/all/trace.jsonl")
    assert loop.engine.abort("a")
    assert loop.engine.healthy() == (True, "")


def test_calls_on_the_engine_are_answered(loop: Fixture) -> None:
    loop.add("a", [1] * 5, 50)
    assert loop.engine.pause("keep").success
    assert loop.engine.is_paused()
    assert not loop.engine.reset_prefix_cache()
    assert loop.engine.reset_prefix_cache(True)
    assert loop.engine.sleep(mode="keep").success
    assert loop.engine.is_sleeping()
    assert loop.engine.weights_changed().success
    assert loop.engine.wake().success
    assert loop.engine.resume().success
    assert loop.hear("a")["a"] == expected_tokens([1] * 5, 50)
    assert loop.engine.stats().generation_tokens == 50


def test_a_waiting_reset_can_be_given_up(loop: Fixture) -> None:
    loop.add("s", [1, 2, 3], 4, resumable=True)
    loop.hear("s")
    loop.add("a", [1] * 5, 50)
    loop.engine.pause("keep")
    loop.engine.abort("s")
    answer = loop.engine.begin_reset(wait=50.0)
    assert loop.engine.call(lambda: loop.engine.core.lifecycle.engine.pending_reset)
    assert answer.cancel()
    loop.add("b", [2] * 5)
    loop.engine.resume()
    assert loop.hear("s", "a", "b")["b"] == expected_tokens([2] * 5, 6)
    assert not loop.engine.call(lambda: loop.engine.core.lifecycle.engine.pending_reset)


def test_sessions_work_from_outside(loop: Fixture) -> None:
    loop.add("s", [1, 2, 3], 4, resumable=True)
    first = loop.hear("s")["s"]
    loop.engine.add_chunk("s", [7, 7])
    second = loop.hear("s")["s"]
    assert second == expected_tokens([1, 2, 3, *first, 7, 7], 4)
    assert loop.engine.close_input("s")
    assert loop.outputs.get(timeout=PATIENCE).finish_reason is FinishReason.STOP


def test_a_client_may_call_the_engine_from_its_output(loop: Fixture) -> None:
    loop.engine.add_request(
        "a", [1] * 5, greedy(50), on_output=lambda output: loop.engine.abort("a") and None
    )
    loop.add("b", [2] * 5)
    assert loop.hear("b")["b"] == expected_tokens([2] * 5, 6)
    info = loop.engine.request_info("a")
    assert info is not None
    assert info.state == "FINISHED_ABORTED"


def test_a_shutdown_drains_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    fixture = Fixture()
    fixture.add("a", [1] * 5, 30)
    fixture.engine.shutdown(drain=True)
    assert fixture.hear("a")["a"] == expected_tokens([1] * 5, 30)
    assert set(threading.enumerate()) == before
    with pytest.raises(EngineClosedError):
        fixture.add("b", [1])
    fixture.engine.shutdown()
    assert fixture.engine.healthy()[0] is False


def test_a_loop_that_fails_tells_everybody_who_waits() -> None:
    fixture = Fixture()
    fixture.add("a", [1] * 5, 60)
    fixture.engine.pause("keep")
    reset = fixture.engine.begin_reset(wait=50.0)

    def break_it() -> None:
        raise RuntimeError("a fault of ours")

    fixture.engine.core.tick = break_it  # type: ignore[method-assign]
    with contextlib.suppress(EngineFailedError):
        fixture.engine.stats()  # wakes the loop, and may still be answered
    with pytest.raises(EngineFailedError):
        reset.result(PATIENCE)
    output = fixture.outputs.get(timeout=PATIENCE)
    while output.finish_reason is None:
        output = fixture.outputs.get(timeout=PATIENCE)
    assert output.finish_reason is FinishReason.ERROR
    healthy, why = fixture.engine.healthy()
    assert not healthy
    assert "a fault of ours" in why
    with pytest.raises(EngineFailedError, match="a fault of ours"):
        fixture.engine.stats()
    fixture.engine.shutdown()


def test_what_a_call_raises_is_its_callers_unless_it_had_changed_something(loop: Fixture) -> None:
    """Nobody can say what is half done of a call that stops in the middle."""
    loop.add("a", [1] * 5, 50)
    with pytest.raises(ZeroDivisionError):
        loop.engine.call(lambda: 1 / 0)
    assert loop.hear("a")["a"] == expected_tokens([1] * 5, 50)
    with pytest.raises(EngineFailedError, match="ZeroDivisionError"):
        loop.engine.call(lambda: (loop.engine.core.pause("keep"), 1 / 0))
    loop.engine.shutdown()
    assert "ZeroDivisionError" in loop.engine.healthy()[1]


def test_a_call_from_within_an_output_that_stops_in_the_middle_fails_the_engine() -> None:
    fixture = Fixture()
    fixture.engine.pause("keep")

    def on_output(output: RequestOutput) -> None:
        fixture.outputs.put(output)
        fixture.engine.call(lambda: (fixture.engine.core.abort("b"), 1 / 0))

    fixture.engine.add_request("a", [1] * 5, greedy(50), on_output=on_output)
    fixture.add("b", [2] * 5, 50)
    fixture.engine.resume()
    while True:
        output = fixture.outputs.get(timeout=PATIENCE)
        if output.request_id == "a" and output.finish_reason is not None:
            break
    assert "the engine failed: ZeroDivisionError" in str(output.error)
    fixture.engine.shutdown()


@pytest.mark.parametrize("later", ["a client's harmless error", "a check that fails"])
def test_what_was_half_done_is_the_failure_whatever_else_fails_before_the_loop_ends(
    later: str,
) -> None:
    fixture = Fixture()
    engine = fixture.engine
    engine.pause("keep")

    def fail() -> None:
        raise AssertionError(later)

    def on_output(output: RequestOutput) -> None:
        fixture.outputs.put(output)
        if output.finish_reason is not None:
            return
        if later == "a check that fails":
            engine.core.check = fail  # type: ignore[method-assign]
        else:  # the next turn begins with it
            engine._post(
                lambda: engine.core.add_request("c", [], greedy(1), on_output=fixture.outputs.put)
            )
        engine.call(lambda: (engine.core.abort("b"), 1 / 0))

    engine.add_request("a", [1] * 5, greedy(50), on_output=on_output)
    fixture.add("b", [2] * 5, 50)
    engine.resume()
    output = fixture.outputs.get(timeout=PATIENCE)
    while output.request_id != "a" or output.finish_reason is None:
        output = fixture.outputs.get(timeout=PATIENCE)
    assert output.error == "the engine failed: ZeroDivisionError: division by zero"
    engine.shutdown()
    assert "ZeroDivisionError" in engine.healthy()[1]


def test_a_call_that_is_half_done_within_another_ones_leaves_that_ones_own_answer() -> None:
    """An abort tells its client; what that does from within its output is not the aborter's."""
    fixture = Fixture()
    engine = fixture.engine
    engine.pause("keep")
    engine.add_request(
        "a", [1] * 5, greedy(50),
        on_output=lambda output: engine.call(lambda: (engine.core.abort("b"), 1 / 0)) and None,
    )  # fmt: skip
    fixture.add("b", [2] * 5, 50)

    def abort_twice() -> None:
        engine.core.abort("a")
        engine.core.abort(5)  # type: ignore[arg-type]

    with pytest.raises(InvalidRequestError):
        engine.call(abort_twice)
    engine.shutdown()
    assert "ZeroDivisionError" in engine.healthy()[1]


def test_what_a_call_raises_that_nobody_waits_for_is_in_the_log(
    loop: Fixture, caplog: pytest.LogCaptureFixture
) -> None:
    loop.engine._post(lambda: loop.engine.core.abort(5))  # type: ignore[arg-type]
    loop.engine._post(lambda: loop.engine.core.trace("/nowhere/at/all/trace.jsonl"))
    loop.engine._post(lambda: 1 / 0)
    assert loop.engine.stats().running == 0  # after them
    errors = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert errors == [ZeroDivisionError]


def test_an_error_that_has_no_text_is_told_like_any_other() -> None:
    class MuteError(RuntimeError):
        def __str__(self) -> str:
            raise ValueError("no words")

    fixture = Fixture()
    fixture.add("a", [1] * 5, 60)
    fixture.engine.pause("keep")

    def break_it() -> None:
        raise MuteError

    fixture.engine.core.tick = break_it  # type: ignore[method-assign]
    with contextlib.suppress(EngineFailedError):
        fixture.engine.stats()
    output = fixture.outputs.get(timeout=PATIENCE)
    while output.finish_reason is None:
        output = fixture.outputs.get(timeout=PATIENCE)
    assert "MuteError, which cannot be put into words" in str(output.error)
    assert "MuteError" in fixture.engine.healthy()[1]
    fixture.engine.shutdown()


def test_a_device_that_never_answers_is_noticed_from_outside() -> None:
    """A reset waits for the launched step; the loop cannot even ask its watchdog."""

    class Deaf(FakeRunner):
        def collect(self, step: int, timeout: float | None = None) -> StepResult:
            if timeout is not None:
                raise TimeoutError
            waits.set()
            answers.wait(PATIENCE)
            return super().collect(step)

    waits, answers = threading.Event(), threading.Event()
    fixture = Fixture(Deaf(64, 4), watchdog=0.05)
    fixture.add("a", [1] * 5, 60)
    waiting = threading.Thread(target=fixture.engine.begin_reset)
    waiting.start()
    assert waits.wait(PATIENCE)
    healthy, why = True, ""
    while "has not come round" not in why:  # the watchdog may have seen the step first
        healthy, why = fixture.engine.healthy()
    assert not healthy
    answers.set()
    waiting.join()
    fixture.engine.core.runner.collect = FakeRunner.collect.__get__(fixture.runner)  # type: ignore[method-assign]
    fixture.engine.shutdown(drain=False)


def test_a_trace_can_be_read_back_and_has_no_tokens(loop: Fixture, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    loop.engine.trace(path)
    loop.add("a", [424242] * 5, 6)
    loop.hear("a")
    loop.engine.trace(None)
    text = path.read_text()
    lines = [parse_transition(line) for line in text.splitlines()]
    assert "424242" not in text
    loop.engine.trace(path)  # as a process does that is started again after a crash
    loop.engine.trace(None)
    assert path.read_text() == text
    events = [line.event for line in lines if line.machine == "request"]
    assert events[:4] == ["add", "admit", "launch", "launch"]
    assert events.count("output") == 6
    assert [line.sequence for line in lines] == list(range(1, len(lines) + 1))
    step = next(line for line in lines if line.event == "output")
    assert step.facts["newest_step"] >= step.ask["step"]
