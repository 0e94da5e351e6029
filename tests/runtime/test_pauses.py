"""Pause, sleep, wake, weights_changed, shutdown: what they do, and that a failure undoes itself."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

import pytest
from kvproof.runtime.api import EngineClosedError, FinishReason, RejectedCallError
from kvproof.runtime.core import EngineCore
from kvproof.runtime.fake import expected_tokens
from kvproof.runtime.transfers.testing import Fault

from .harness import Bench
from .transfers.engine_harness import EngineHarness

PARKED = "WAITING_FOR_STREAMING_REQ"

T = TypeVar("T")


def started(depth: int = 1, **options: object) -> Bench:
    bench = Bench(steps_in_flight=depth, **options)  # type: ignore[arg-type]
    for name in "ab":
        bench.add(name, 5, 9)
    bench.turn(2)
    return bench


@pytest.mark.parametrize("depth", [1, 2])
def test_keep_stops_stepping_and_resume_goes_on_where_it_was(depth: int) -> None:
    bench = started(depth)
    answer = bench.core.pause("keep")
    bench.run(answer.done)
    assert answer.result().mode == "paused"
    assert bench.core.is_paused()
    launched = bench.lifecycle.launched
    bench.add("c", 4)
    bench.turn(3)
    assert bench.lifecycle.launched == launched
    assert [bench.state(name) for name in "abc"] == ["RUNNING", "RUNNING", "WAITING"]
    assert bench.core.resume().success
    bench.run()
    for number, name in enumerate("ab"):
        bench.assert_undisturbed(name, [10 + number] * 5, 9)
    bench.assert_undisturbed("c", [12] * 4, 4)


@pytest.mark.parametrize("depth", [1, 2])
def test_wait_lets_what_runs_finish_and_admits_nothing_new(depth: int) -> None:
    bench = started(depth)
    answer = bench.core.pause("wait")
    bench.add("c", 4)
    bench.run(answer.done)
    assert answer.result().success
    for number, name in enumerate("ab"):
        bench.assert_undisturbed(name, [10 + number] * 5, 9)
    assert bench.state("c") == "WAITING"
    bench.core.resume()
    bench.run()


def test_a_waiting_pause_readmits_what_was_preempted() -> None:
    bench = Bench(blocks=6, max_num_seqs=3)
    for name in "abc":
        bench.add(name, 7, 9)
    bench.run(lambda: bench.core.stats().preemptions > 0)
    answer = bench.core.pause("wait")
    bench.run(answer.done)
    for number, name in enumerate("abc"):
        bench.assert_undisturbed(name, [10 + number] * 7, 9)


def test_a_waiting_pause_is_not_held_up_by_a_session_that_waits_with_blocks() -> None:
    bench = Bench(blocks=5, max_num_seqs=1)
    bench.add("chat", 9, 4, resumable=True)
    bench.run(lambda: bench.state("chat") == PARKED)
    bench.add("other", 4, 7)
    bench.run(lambda: bench.state("other") == "RUNNING")
    bench.chunk("chat", [1])
    assert bench.lifecycle.view.covered[bench.row("chat")] > 0
    answer = bench.core.pause("wait")
    bench.run(answer.done)
    bench.assert_undisturbed("other", [11] * 4, 7)
    assert bench.state("chat") == "WAITING"


@pytest.mark.parametrize("depth", [1, 2])
def test_abort_ends_what_runs_and_keeps_what_waits(depth: int) -> None:
    bench = started(depth, max_num_seqs=2)
    bench.add("c", 4)
    answer = bench.core.pause("abort")
    bench.run(answer.done)
    assert set(answer.result().ended) == {"a", "b"}
    assert bench.clients["a"].finish is FinishReason.ABORT
    assert bench.state("c") == "WAITING"
    assert bench.core.holds() == []
    bench.core.resume()
    bench.run()
    bench.assert_undisturbed("c", [12] * 4, 4)


@pytest.mark.parametrize("call", [lambda core: core.pause("abort"), lambda core: core.sleep(1)])
def test_abort_after_keep_ends_what_was_kept(call: Callable[[EngineCore], Any]) -> None:
    bench = started()
    bench.run(bench.core.pause("keep").done)
    answer = call(bench.core)
    bench.run(answer.done)
    assert answer.result().success
    assert set(answer.result().ended) == {"a", "b"}
    assert bench.clients["a"].finish is FinishReason.ABORT
    assert bench.core.holds() == []


def test_a_pause_does_not_wait_for_parked_sessions() -> None:
    bench = Bench()
    bench.add("s", 5, 2, resumable=True)
    bench.run(lambda: bench.state("s") == PARKED)
    assert bench.core.pause("wait").result(0).success
    bench.chunk("s", [7])
    bench.turn(2)
    assert bench.state("s") == "WAITING", "taken in, and it starts nothing"
    bench.core.resume()
    bench.core.close_input("s")
    bench.run()


def test_a_pause_can_clear_the_cache() -> None:
    bench = started()
    answer = bench.core.pause("keep", clear_cache=True)
    bench.run(answer.done)
    assert answer.result().success
    assert bench.core.stats().blocks_cached == 0
    bench.core.resume()
    bench.run()
    bench.assert_undisturbed("a", [10] * 5, 9)


def test_pausing_twice_joins_and_pausing_otherwise_is_refused() -> None:
    bench = started()
    first = bench.core.pause("wait")
    same = bench.core.pause("wait")
    with pytest.raises(RejectedCallError, match="another pause is under way"):
        bench.core.pause("keep")
    bench.run(first.done)
    assert same.result(0).success
    assert bench.core.pause("keep").result(0).why == "it is paused already"
    with pytest.raises(RejectedCallError, match="known are abort, wait, keep"):
        bench.core.pause("soon")


def test_a_pause_that_is_resumed_before_it_is_reached_says_so() -> None:
    bench = started()
    answer = bench.core.pause("wait")
    assert bench.core.resume().mode == "active"
    assert not answer.result(0).success
    bench.run()
    bench.assert_undisturbed("a", [10] * 5, 9)


# --- sleep ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("level", [1, 2])
def test_sleep_lets_go_of_everybody_and_they_go_on_after_waking(depth: int, level: int) -> None:
    bench = started(depth)
    bench.add("s", 5, 2, resumable=True)
    bench.run(lambda: bench.state("s") == PARKED)
    answer = bench.core.sleep(level, "keep")
    bench.run(answer.done)
    assert answer.result().mode == "sleeping"
    assert bench.core.is_sleeping()
    assert not bench.runner.weights_resident
    assert not bench.runner.kv.resident
    assert bench.core.holds() == []
    assert bench.core.stats().blocks_cached == 0
    bench.chunk("s", [7])
    bench.turn(3)
    assert bench.core.wake().mode == "active", "the sleep did the pausing"
    bench.core.close_input("s")
    bench.run()
    for number, name in enumerate("ab"):
        bench.assert_undisturbed(name, [10 + number] * 5, 9)
    first, second = bench.clients["s"].turns
    assert second == expected_tokens([12] * 5 + first + [7], 2)


def test_waking_by_tags_runs_steps_only_when_both_are_back() -> None:
    bench = started()
    bench.run(bench.core.sleep(1, "keep").done)
    assert bench.core.wake(("weights",)).why == "a part of it is still asleep"
    bench.turn(3)
    assert bench.runner.weights_resident
    assert not bench.runner.kv.resident
    assert bench.core.wake(("cache",)).mode == "active"
    bench.run()
    bench.assert_undisturbed("a", [10] * 5, 9)


def test_waking_after_a_clients_pause_stays_paused() -> None:
    bench = started()
    bench.run(bench.core.pause("keep").done)
    assert bench.core.sleep().result(0).success
    with pytest.raises(RejectedCallError, match="wake it first"):
        bench.core.resume()
    assert bench.core.sleep(1).result(0).why == "it sleeps already"
    with pytest.raises(RejectedCallError, match="another level"):
        bench.core.sleep(2)
    assert bench.core.wake().mode == "paused"
    bench.core.resume()
    bench.run()


def test_weights_that_cannot_be_released_leave_everything_as_it_was() -> None:
    bench = started()
    cached = bench.core.stats().blocks_cached

    def fail(level: int) -> None:
        raise MemoryError("no host memory")

    bench.runner.release_weights = fail  # type: ignore[method-assign]
    answer = bench.core.sleep(1, "keep")
    bench.run(answer.done)
    result = answer.result()
    assert not result.success
    assert result.retryable
    assert "no host memory" in result.why
    assert result.mode == "active"
    assert bench.runner.kv.resident
    assert bench.core.stats().blocks_cached >= cached
    assert bench.state("a") == "RUNNING"
    bench.run()
    bench.assert_undisturbed("a", [10] * 5, 9)


def test_a_cache_that_cannot_be_released_brings_the_weights_back() -> None:
    bench = started()

    def fail() -> None:
        raise MemoryError("stuck")

    bench.runner.kv.release = fail  # type: ignore[method-assign]
    answer = bench.core.sleep(1, "keep")
    bench.run(answer.done)
    assert not answer.result().success
    assert bench.runner.weights_resident
    bench.run()
    bench.assert_undisturbed("b", [11] * 5, 9)


def test_a_wake_that_fails_sleeps_on_and_can_be_tried_again() -> None:
    bench = started()
    bench.run(bench.core.sleep(1, "keep").done)
    restore = bench.runner.kv.restore

    def fail() -> None:
        raise MemoryError("no memory")

    bench.runner.kv.restore = fail  # type: ignore[method-assign]
    result = bench.core.wake()
    assert not result.success
    assert result.mode == "sleeping"
    assert not bench.runner.weights_resident, "what was restored is released again"
    bench.runner.kv.restore = restore  # type: ignore[method-assign]
    assert bench.core.wake().success
    bench.run()
    bench.assert_undisturbed("a", [10] * 5, 9)


def test_weights_that_cannot_be_released_again_do_not_end_the_engine() -> None:
    """The cache could not be restored, and what was restored before it stays."""
    bench = Bench()
    bench.run(bench.core.sleep().done)
    restore, release = bench.runner.kv.restore, bench.runner.release_weights

    def fail(*level: int) -> None:
        raise MemoryError("no memory")

    bench.runner.kv.restore = bench.runner.release_weights = fail  # type: ignore[method-assign]
    result = bench.core.wake()
    assert (result.success, result.mode) == (False, "sleeping")
    bench.runner.kv.restore = restore  # type: ignore[method-assign]
    bench.runner.release_weights = release  # type: ignore[method-assign]
    assert bench.core.wake().success
    bench.add("a", 5)
    bench.run()
    bench.assert_undisturbed("a", [10] * 5, 4)


class MuteError(MemoryError):
    """It cannot be put into words."""

    def __str__(self) -> str:
        raise ValueError("no words")


#: What a device may raise: CancelledError and SystemExit are no Exception.
DEVICE_ERRORS = [MuteError(), SystemExit("gone"), CancelledError(), KeyboardInterrupt()]


def kind(error: BaseException) -> str:
    return type(error).__name__


def raising(error: BaseException) -> Callable[..., NoReturn]:
    def fail(*_: object) -> NoReturn:
        raise error

    return fail


def on_another_thread(call: Callable[[], T]) -> T:
    """There a KeyboardInterrupt is nobody's Ctrl-C."""
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(call)
        assert not isinstance(answer.exception(), KeyboardInterrupt), "it has passed"
        return answer.result()


@pytest.mark.parametrize("error", DEVICE_ERRORS, ids=kind)
@pytest.mark.parametrize("part", ["weights", "cache"])
def test_whatever_a_device_raises_on_release_it_stays_awake(
    part: str, error: BaseException
) -> None:
    bench = Bench()
    owner = bench.runner if part == "weights" else bench.runner.kv
    name = "release_weights" if part == "weights" else "release"
    setattr(owner, name, raising(error))
    result = on_another_thread(bench.core.sleep).result(0)
    assert (result.success, result.mode) == (False, "active")
    assert f"the {part} could not be released: {type(error).__name__}" in result.why
    bench.add("a", 5)
    bench.run()
    bench.assert_undisturbed("a", [10] * 5, 4)


@pytest.mark.parametrize("error", DEVICE_ERRORS, ids=kind)
def test_whatever_a_device_raises_on_restoring_it_sleeps_on(error: BaseException) -> None:
    bench = Bench()
    bench.run(bench.core.sleep().done)
    restore, release = bench.runner.kv.restore, bench.runner.release_weights
    bench.runner.kv.restore = raising(error)  # type: ignore[method-assign]
    bench.runner.release_weights = raising(error)  # type: ignore[method-assign]
    result = on_another_thread(bench.core.wake)
    assert (result.success, result.mode) == (False, "sleeping")
    assert f"memory could not be restored: {type(error).__name__}" in result.why
    bench.runner.kv.restore, bench.runner.release_weights = restore, release  # type: ignore[method-assign]
    assert bench.core.wake().success


def test_ctrl_c_passes_through_a_release() -> None:
    bench = Bench()
    bench.runner.release_weights = raising(KeyboardInterrupt())  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        bench.core.sleep()


def test_weights_that_cannot_be_brought_back_are_said_to_be_missing() -> None:
    """The cache could not be released, and the weights were: a sleep and a wake restore them."""
    bench = Bench()
    release, restore = bench.runner.kv.release, bench.runner.restore_weights
    bench.runner.kv.release = raising(MemoryError("stuck"))  # type: ignore[method-assign]
    bench.runner.restore_weights = raising(OSError("no file"))  # type: ignore[method-assign]
    result = bench.core.sleep().result(0)
    assert (result.success, result.retryable, result.mode) == (False, True, "active")
    assert "the cache could not be released: MemoryError: stuck" in result.why
    assert "nor could the weights be restored: OSError: no file" in result.why
    doomed = bench.add("a", 5)
    bench.turn()
    assert "while the weights sleep" in str(doomed.outputs[-1].error)
    bench.runner.kv.release = release  # type: ignore[method-assign]
    bench.runner.restore_weights = restore  # type: ignore[method-assign]
    assert bench.core.sleep().result(0).success
    assert bench.core.wake().success
    bench.add("b", 5)
    bench.run()
    bench.assert_undisturbed("b", [11] * 5, 4)


# --- weights --------------------------------------------------------------------------------------


def test_after_new_weights_nothing_older_is_a_hit() -> None:
    bench = Bench()
    bench.add("a", [1] * 9)
    bench.run()
    with pytest.raises(RejectedCallError, match="pause first"):
        bench.core.weights_changed()
    bench.add("b", [1] * 9)
    assert bench.core.pause().result(0).success
    assert bench.core.weights_changed().success
    assert bench.lifecycle.engine.epoch == 1
    bench.core.resume()
    bench.run()
    assert bench.clients["b"].outputs[0].cached_tokens == 0


def test_new_weights_are_refused_while_a_hold_is_left() -> None:
    bench = started()
    bench.run(bench.core.pause("keep").done)
    result = bench.core.weights_changed()
    assert not result.success
    assert {holder.owner for holder in result.holders} == {"a", "b"}
    assert bench.core.reset_prefix_cache(True).result(0).success
    assert bench.core.weights_changed().success


# --- shutdown -------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
def test_draining_finishes_what_is_there_and_takes_nothing_new(depth: int) -> None:
    bench = started(depth)
    bench.add("s", 5, 2, resumable=True)
    stopped = bench.core.shutdown(drain=True, timeout=100.0)
    with pytest.raises(EngineClosedError):
        bench.add("late", 4)
    bench.run(stopped.done)
    bench.assert_undisturbed("a", [10] * 5, 9)
    assert bench.clients["s"].finish is FinishReason.LENGTH, "its input was closed"
    assert bench.core.healthy() == (False, "the engine has stopped")


@pytest.mark.parametrize("depth", [1, 2])
def test_an_abrupt_end_lets_go_of_everything(depth: int) -> None:
    bench = started(depth)
    stopped = bench.core.shutdown(drain=False)
    assert bench.clients["a"].finish is FinishReason.ABORT
    bench.run(stopped.done)
    assert bench.core.holds() == []
    assert bench.free == 16


def test_a_drain_that_takes_too_long_is_aborted() -> None:
    bench = started()
    stopped = bench.core.shutdown(drain=True, timeout=10.0)
    bench.turn(2)
    bench.now = 10.0
    bench.run(stopped.done)
    assert bench.clients["a"].finish is FinishReason.ABORT
    assert "shutting down" in str(bench.clients["a"].outputs[-1].error)


def test_a_paused_engine_drains_and_a_sleeping_one_aborts() -> None:
    bench = started()
    bench.run(bench.core.pause("keep").done)
    bench.run(bench.core.shutdown().done)
    bench.assert_undisturbed("a", [10] * 5, 9)
    bench = started()
    bench.run(bench.core.sleep(1, "keep").done)
    bench.run(bench.core.shutdown().done)
    assert bench.clients["a"].finish is FinishReason.ABORT


class Closes:
    """Called as a `close`: closes, counts how often, and raises."""

    def __init__(self, close: Callable[[], None], error: BaseException) -> None:
        self.close, self.error = close, error
        self.times = 0

    def __call__(self) -> NoReturn:
        self.close()
        self.times += 1
        raise self.error


@pytest.mark.parametrize("error", DEVICE_ERRORS, ids=kind)
def test_whatever_a_close_raises_the_others_are_closed_and_the_engine_has_stopped(
    error: BaseException,
) -> None:
    core = EngineHarness().core
    runner = Closes(core.runner.close, error)
    connector = Closes(core.transfers.connector.close, error)
    core.runner.close = runner  # type: ignore[method-assign]
    core.transfers.connector.close = connector  # type: ignore[method-assign]
    stopped = core.shutdown()
    on_another_thread(core.tick)
    assert stopped.result(0) is None
    assert (runner.times, connector.times) == (1, 1)


def test_who_waits_for_a_call_is_answered_by_a_shutdown() -> None:
    bench = started()
    reset = bench.core.reset_prefix_cache(wait=50.0)
    pause = bench.core.pause("wait")
    bench.core.shutdown()
    assert not reset.result(0).success
    assert not pause.result(0).success


def test_a_pause_that_clears_the_cache_waits_for_transfers_under_way() -> None:
    engine = EngineHarness()
    engine.connector.next_store.append(Fault(hold=True))
    engine.add("a", [1] * 9, 20)
    engine.run(lambda: bool(engine.stores))
    answer = engine.core.pause("keep", clear_cache=True)
    for _ in range(3):
        engine.turn()
    assert not answer.done()
    assert engine.state("a") == "RUNNING"
    engine.connector.release()
    engine.run(answer.done)
    assert answer.result().success
    assert engine.core.stats().blocks_cached == 0
    engine.core.resume()
    engine.finish("a")
    assert engine.told["a"].tokens == engine.expected("a", 20)
    engine.close()
