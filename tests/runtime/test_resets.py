"""A reset is done or refused: nothing in between, and who refuses is named."""

from __future__ import annotations

import pytest
from kvproof.runtime.api import InvalidWaitError, RejectedCallError

from .harness import Bench
from .test_scheduler import picture

PARKED = "WAITING_FOR_STREAMING_REQ"


def test_an_idle_engine_forgets_every_prefix() -> None:
    bench = Bench()
    bench.add("a", [1] * 9)
    bench.run()
    assert bench.core.stats().blocks_cached > 0
    result = bench.core.reset_prefix_cache().result(0)
    assert result.success
    assert result.tiers == ("device",)
    assert bench.core.stats().blocks_cached == 0
    bench.add("b", [1] * 9)
    bench.run()
    assert bench.clients["b"].outputs[0].cached_tokens == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_a_plain_reset_is_refused_by_running_requests_and_changes_nothing(depth: int) -> None:
    bench = Bench(steps_in_flight=depth)
    bench.add("a", 5, 9)
    bench.add("b", 6, 9)
    bench.turn(3)
    bench.core.process_launched()
    before = picture(bench.lifecycle)
    moves = bench.lifecycle.moves
    result = bench.core.reset_prefix_cache().result(0)
    assert not result
    assert result.retryable
    assert [(h.kind, h.owner, h.state, h.ends_by) for h in result.holders] == [
        ("REQUEST", "a", "RUNNING", "itself"),
        ("REQUEST", "b", "RUNNING", "itself"),
    ]
    assert all(holder.force_would_let_go for holder in result.holders)
    assert picture(bench.lifecycle)[:-1] == before[:-1]
    assert bench.lifecycle.moves == moves + 1, "the engine's own event, and no other"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_reset_processes_the_launched_steps_first(depth: int) -> None:
    bench = Bench(steps_in_flight=depth)
    heard = bench.add("a", 5, 9)
    while bench.core.launch_step():
        pass
    assert bench.core.in_flight == depth
    assert not bench.core.reset_prefix_cache().result(0)
    assert bench.core.in_flight == 0
    assert len(heard.tokens) == depth


@pytest.mark.parametrize("depth", [1, 2])
def test_a_forced_reset_preempts_and_everybody_comes_back_in_order(depth: int) -> None:
    bench = Bench(steps_in_flight=depth)
    for name in "abc":
        bench.add(name, 5, 12)
    bench.turn(4)
    assert bench.core.reset_prefix_cache(True).result(0).success
    assert [bench.state(name) for name in "abc"] == ["PREEMPTED"] * 3
    assert bench.core.stats().blocks_cached == 0
    assert bench.free == 16
    assert [bench.lifecycle.id_of(row) for row in bench.lifecycle.waiting] == ["a", "b", "c"]
    bench.run()
    for number, name in enumerate("abc"):
        bench.assert_undisturbed(name, [10 + number] * 5, 12)


def test_a_parked_session_refuses_a_plain_reset_and_is_named_as_its_clients() -> None:
    bench = Bench()
    bench.add("s", 5, 2, resumable=True)
    bench.run(lambda: bench.state("s") == PARKED)
    result = bench.core.reset_prefix_cache(wait=30.0).result(0)
    assert not result.success, "it does not wait for a client"
    assert not result.retryable
    (holder,) = result.holders
    assert (holder.owner, holder.ends_by, holder.force_would_let_go) == ("s", "client", True)
    assert bench.core.reset_prefix_cache(True).result(0).success
    assert bench.fact("s", "covered") == 0


def test_a_resident_waiting_request_is_reclaimed_by_force() -> None:
    bench = Bench(max_num_seqs=1)
    bench.add("s", 5, 2, resumable=True)
    bench.run(lambda: bench.state("s") == PARKED)
    bench.add("a", 5, 9)
    bench.turn()
    bench.chunk("s", [7])
    result = bench.core.reset_prefix_cache().result(0)
    assert {holder.state for holder in result.holders} == {"RUNNING", "WAITING"}
    assert bench.core.reset_prefix_cache(True).result(0).success
    bench.core.close_input("s")
    bench.run()
    bench.assert_undisturbed("a", [11] * 5, 9)


def test_a_waiting_reset_is_done_when_the_last_request_ends() -> None:
    bench = Bench()
    bench.add("a", 5, 6)
    bench.turn(2)
    answer = bench.core.reset_prefix_cache(wait=30.0)
    assert not answer.done()
    bench.add("b", 5, 2)
    bench.now = 5.0
    while not answer.done():
        assert bench.state("b") == "WAITING", "nobody new is admitted while it is pending"
        bench.turn()
    assert answer.result().success
    assert answer.result().waited == 5.0
    bench.run()
    bench.assert_undisturbed("a", [10] * 5, 6)
    bench.assert_undisturbed("b", [11] * 5, 2)


def test_what_is_resident_goes_on_under_a_waiting_reset() -> None:
    bench = Bench(max_num_seqs=1)
    bench.add("s", 5, 2, resumable=True)
    bench.run(lambda: bench.state("s") == PARKED)
    bench.chunk("s", [7])
    bench.core.close_input("s")
    answer = bench.core.reset_prefix_cache(wait=30.0)
    assert not answer.done()
    bench.run(answer.done)
    assert answer.result().success
    assert bench.clients["s"].finish is not None


def test_a_waiting_reset_that_takes_too_long_is_refused_with_its_holders() -> None:
    bench = Bench()
    bench.add("a", 5, 40)
    bench.turn()
    answer = bench.core.reset_prefix_cache(wait=10.0)
    bench.now = 10.0
    bench.turn()
    assert not answer.result(0).success
    assert answer.result().holders[0].owner == "a"
    assert answer.result().waited == 10.0
    bench.add("b", 5)
    bench.turn()
    assert bench.state("b") == "RUNNING", "admission goes on"


@pytest.mark.parametrize("wait", [20.5, -1.0, float("inf"), float("nan")])
def test_a_wait_that_is_not_allowed_is_refused_and_the_limit_named(wait: float) -> None:
    bench = Bench(max_reset_wait=20.0)
    with pytest.raises(InvalidWaitError, match="from 0 to 20 seconds"):
        bench.core.reset_prefix_cache(wait=wait)
    assert not bench.lifecycle.engine.pending_reset


def test_a_reset_may_wait_for_as_long_as_is_allowed() -> None:
    bench = Bench(max_reset_wait=20.0)
    bench.add("a", 5, 40)
    bench.turn()
    answer = bench.core.reset_prefix_cache(wait=20.0)
    bench.now = 20.0
    bench.turn()
    assert answer.result(0).waited == 20.0


def test_a_second_waiting_reset_joins_the_first_and_another_is_decided_at_once() -> None:
    bench = Bench()
    bench.add("a", 5, 6)
    bench.turn()
    first = bench.core.reset_prefix_cache(wait=30.0)
    same = bench.core.reset_prefix_cache(wait=5.0)
    other = bench.core.reset_prefix_cache(reset_connector=True, wait=5.0)
    assert other.done()
    assert not other.result().success
    assert not same.done()
    bench.run(first.done)
    assert same.result(0).success


def test_a_forced_reset_passes_a_plain_one_that_waits() -> None:
    bench = Bench()
    bench.add("a", 5, 12)
    bench.turn()
    plain = bench.core.reset_prefix_cache(wait=30.0)
    assert bench.core.reset_prefix_cache(True).result(0).success
    bench.turn()
    assert plain.result(0).success, "nobody holds anything any more"
    bench.run()
    bench.assert_undisturbed("a", [10] * 5, 12)


def test_a_waiting_reset_whose_client_is_gone_is_given_up() -> None:
    bench = Bench()
    bench.add("a", 5, 20)
    bench.turn()
    first = bench.core.reset_prefix_cache(wait=30.0)
    second = bench.core.reset_prefix_cache(wait=30.0)
    first.cancel()
    bench.add("b", 5)
    bench.turn()
    assert bench.state("b") == "WAITING", "the second one still waits"
    second.cancel()
    bench.turn(2)
    assert bench.state("b") == "RUNNING"
    assert not bench.lifecycle.engine.pending_reset


def test_refusals_are_counted_by_the_kind_of_holder() -> None:
    bench = Bench()
    bench.add("a", 5, 20)
    bench.turn()
    for _ in range(3):
        bench.core.reset_prefix_cache().result(0)
    assert bench.core.stats().refused_resets == {"REQUEST": 3}


def test_a_stopped_engine_takes_no_reset() -> None:
    bench = Bench()
    bench.core.shutdown(drain=False)
    bench.turn()
    with pytest.raises(RejectedCallError, match="stopped"):
        bench.core.reset_prefix_cache()
