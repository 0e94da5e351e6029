"""What a client does from within its output, and what that cannot do to the others."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from kvproof.runtime.api import (
    CallResult,
    EngineConfig,
    FinishReason,
    RejectedCallError,
    RequestOutput,
)
from kvproof.runtime.engine import Engine
from kvproof.runtime.fake import FakeRunner, expected_tokens
from kvproof.runtime.sampling_params import SamplingParams

from .harness import Bench

GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


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


class AskedFromWithin:
    """An on_output that makes a call in each output, and keeps what became of it."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.answers: list[object] = []

    def __call__(self, output: RequestOutput) -> None:
        try:
            self.answers.append(self.call())
        except RejectedCallError as error:
            self.answers.append(str(error))


@pytest.mark.parametrize("name", ["launch_step", "finish_step", "tick", "shutdown"])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_step_and_what_is_due_cannot_be_asked_for_from_within_an_output(
    name: str, depth: int
) -> None:
    """A session's next turn would be stepped with the limits of the one that ends."""
    bench = Bench(steps_in_flight=depth)
    asks = AskedFromWithin(getattr(bench.core, name))
    bench.core.add_request("a", [1, 2], GREEDY, on_output=asks)
    bench.add("s", [2] * 5, 2, resumable=True)
    six = SamplingParams(max_tokens=6, temperature=0.0)
    bench.chunk("s", [7, 7], params=six)
    bench.core.close_input("s")
    bench.run()
    assert len(asks.answers) == 8
    assert all("another thread" in str(answer) for answer in asks.answers)
    first = expected_tokens([2] * 5, 2)
    second = expected_tokens([2] * 5 + first + [7, 7], 6)
    assert bench.clients["s"].turns == [first, second]


@pytest.mark.parametrize("name", ["launch_step", "finish_step", "tick", "reset_prefix_cache"])
def test_nor_from_within_the_output_of_an_abort(name: str) -> None:
    bench = Bench()
    asks = AskedFromWithin(getattr(bench.core, name))
    bench.core.add_request("a", [1, 2], GREEDY, on_output=asks)
    bench.add("b", 5, 3)
    bench.core.abort("a")
    assert len(asks.answers) == 1
    assert "another thread" in str(asks.answers[0])
    bench.run()
    bench.assert_undisturbed("b", [10] * 5, 3)


@pytest.mark.parametrize("outer", ["pause", "sleep"])
@pytest.mark.parametrize("state", ["running", "paused"])
def test_who_resumes_from_within_what_a_pause_ends_has_the_last_word(
    outer: str, state: str
) -> None:
    """The pause that ends requests is answered, whatever their clients call from there."""
    bench = Bench()
    asks = AskedFromWithin(bench.core.is_paused)
    bench.core.add_request("a", [1, 2], GREEDY, on_output=asks)
    bench.core.launch_step()
    if state == "paused":
        kept = bench.core.pause("keep")
        bench.run(kept.done)
        assert kept.result(0).success
        asks.answers.clear()
    asks.call = bench.core.resume
    future = getattr(bench.core, outer)(mode="abort")
    bench.run(future.done)
    assert len(asks.answers) == 1
    answer = future.result(0)
    assert (answer.success, answer.mode) == (False, "active")
    assert answer.why == "it was resumed before it was reached"
    assert answer.ended == ("a",)
    assert bench.runner.weights_resident
    assert not bench.core.is_sleeping()
    bench.core.resume()
    bench.add("b", 5, 3)
    bench.run()
    bench.assert_undisturbed("b", [10] * 5, 3)


@pytest.mark.parametrize(
    ("level", "success", "why"),
    [(1, True, "it sleeps already"), (2, False, "it sleeps at another level")],
)
def test_who_sleeps_from_within_what_a_sleep_ends_has_done_it(
    level: int, success: bool, why: str
) -> None:
    bench = Bench()
    asks = AskedFromWithin(bench.core.is_paused)
    bench.core.add_request("a", [1, 2], GREEDY, on_output=asks)
    bench.core.launch_step()
    bench.run(bench.core.pause("keep").done)
    asks.answers.clear()
    asks.call = lambda: bench.core.sleep(1)
    answer = bench.core.sleep(level).result(0)
    (inner,) = asks.answers
    assert isinstance(inner, Future)
    assert inner.result(0).success
    assert (answer.success, answer.mode, answer.why) == (success, "sleeping", why)
    assert answer.ended == ("a",)


def test_who_pauses_from_within_what_a_pause_ends_joins_it() -> None:
    bench = Bench()
    asks = AskedFromWithin(lambda: bench.core.pause("abort"))
    bench.core.add_request("a", [1, 2], GREEDY, on_output=asks)
    bench.core.launch_step()
    outer = bench.core.pause("abort")
    bench.run(outer.done)
    (inner,) = asks.answers
    assert isinstance(inner, Future)
    assert inner.result(0).success
    assert outer.result(0).ended == ("a",)
    assert bench.core.is_paused()


def test_a_pause_that_clears_the_cache_is_reached_after_the_output_that_asked_for_it() -> None:
    bench = Bench()
    asks = AskedFromWithin(lambda: bench.core.pause("keep", clear_cache=True))
    bench.core.add_request("a", [1, 2], GREEDY, on_output=asks)
    bench.turn()
    (pause,) = asks.answers
    assert isinstance(pause, Future)
    bench.run(pause.done)
    assert pause.result(0).success
    assert bench.core.stats().blocks_cached == 0


# --- through the engine, whose loop it is ---------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda engine: engine.pause("wait"), "or call begin_pause and do not wait"),
        (lambda engine: engine.pause("keep"), "or call begin_pause and do not wait"),
        (lambda engine: engine.pause(), "or call begin_pause and do not wait"),
        (lambda engine: engine.sleep(), "or call begin_sleep and do not wait"),
        (lambda engine: engine.reset_prefix_cache(), "call from another thread"),
        (lambda engine: engine.reset_prefix_cache(True, wait=5.0), "call from another thread"),
        (lambda engine: engine.shutdown(), "call from another thread"),
        (lambda engine: engine.shutdown(drain=False), "call from another thread"),
    ],
)
def test_an_output_that_would_wait_for_its_own_loop_is_told_so(
    call: Callable[[Engine], object], instead: str, depth: int
) -> None:
    config = EngineConfig(
        num_blocks=16, block_size=4, max_model_len=64, steps_in_flight=depth, check=True
    )
    engine = Engine(config, FakeRunner(16, 4))
    asks = AskedFromWithin(lambda: call(engine))
    ended = threading.Event()

    def on_output(output: RequestOutput) -> None:
        asks(output)
        if output.finish_reason is not None:
            ended.set()

    engine.add_request("a", [1, 2], GREEDY, on_output=on_output)
    assert ended.wait(30)
    assert len(asks.answers) == 8, "nothing was changed"
    assert all(str(answer).endswith(instead) for answer in asks.answers)
    assert engine.healthy() == (True, "")
    engine.shutdown()


def test_a_pause_that_does_not_wait_can_be_begun_from_within_an_output() -> None:
    config = EngineConfig(num_blocks=16, block_size=4, max_model_len=64, steps_in_flight=2)
    engine = Engine(config, FakeRunner(16, 4))
    begun: queue.Queue[Future[CallResult]] = queue.Queue()
    engine.add_request(
        "a", [1, 2], GREEDY, on_output=lambda output: begun.put(engine.begin_pause("keep"))
    )
    assert begun.get(timeout=30).result(30).success
    assert engine.is_paused()
    engine.shutdown(drain=False)


def test_a_rejected_pause_of_a_paused_engine_has_ended_nobody() -> None:
    """It would end what is kept, and only then find that it cannot clear the cache from here."""
    bench = Bench()
    kept = bench.add("kept", 5, 8)
    bench.turn()
    bench.run(bench.core.pause("keep").done)
    asks = AskedFromWithin(lambda: bench.core.pause("abort", clear_cache=True))
    bench.core.add_request("a", [1, 2], GREEDY, on_output=asks)
    bench.core.abort("a")
    assert "another thread" in str(asks.answers[0])
    bench.core.resume()
    bench.run()
    assert kept.finish is FinishReason.LENGTH
