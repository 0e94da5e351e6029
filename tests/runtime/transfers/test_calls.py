"""Preemption, resets, pauses and the end of the engine while transfers are open."""

from __future__ import annotations

from kvproof.runtime.api import FinishReason
from kvproof.runtime.transfers import Fault

from .engine_harness import EngineHarness
from .scenarios import (
    HOLD,
    LONGER,
    PROMPT,
    SILENT,
    Engine,
    assert_right,
    end_clean,
    loading,
)


def preempted_with_a_store_in_flight(h: EngineHarness, launched: bool) -> None:
    """Preempt a request whose store is in flight. `launched`: a step of it is in flight as well."""
    h.connector.choose = lambda _transfer, is_load, _blocks: Fault(late=2, hold=not is_load)
    h.add("runs", PROMPT, 12)
    h.run(lambda: len(h.told["runs"].tokens) >= 3)
    if launched:
        h.core.tick()
        assert h.core.launch_step()
    assert h.stores
    lifecycle = h.core.lifecycle
    row = lifecycle.row_of("runs")
    assert row is not None
    assert lifecycle.preempt(row, forced=True).went
    assert h.state("runs") == "PREEMPTED"


def ends_right(h: EngineHarness) -> None:
    """Its stores end one by one, and it has every token."""
    h.run(lambda: bool(h.connector.release()) or h.told["runs"].finish is not None)
    assert_right(h, "runs", 12)
    h.connector.choose = None
    end_clean(h)


def test_who_is_preempted_and_resumed_in_one_step_with_jobs_in_flight_is_right(
    engine: Engine,
) -> None:
    h = engine(blocks=16)
    preempted_with_a_store_in_flight(h, launched=False)
    h.core.tick()
    assert h.core.launch_step()
    assert h.state("runs") == "RUNNING"
    assert h.stores
    ends_right(h)


def test_who_is_preempted_under_a_launched_step_with_jobs_in_flight_comes_back_right(
    engine: Engine,
) -> None:
    h = engine(blocks=16)
    preempted_with_a_store_in_flight(h, launched=True)
    h.connector.release()
    h.turn()  # its step is processed
    h.turn()
    assert h.state("runs") == "RUNNING"
    ends_right(h)


def test_a_forced_reset_under_a_load_is_refused_by_the_load_and_succeeds_after_it(
    engine: Engine,
) -> None:
    h = engine(blocks=20)
    number = loading(h, HOLD)
    runs = h.add("runs", range(200, 210), 12)
    h.run(lambda: len(runs.tokens) >= 2)
    assert h.core.transfers is not None
    h.core.transfers.hear()  # a reset listens first
    before = h.core.holds()
    refused = h.core.reset_prefix_cache(reset_running_requests=True).result(0)
    assert not refused.success
    assert refused.retryable
    assert [(x.kind, x.owner) for x in refused.holders] == [
        ("LOAD", str(number)),
        ("REQUEST", "waits"),
    ]
    assert h.core.holds() == before, "a refused reset changes nothing"
    h.connector.release()
    h.run(lambda: bool(h.core.reset_prefix_cache(reset_running_requests=True).result(0)))
    assert runs.finish is None
    assert h.told["waits"].finish is None
    h.finish("waits", "runs")
    assert_right(h, "waits", 4)
    assert_right(h, "runs", 12)
    end_clean(h)


def test_a_waiting_forced_reset_starts_no_transfer_and_succeeds_by_itself(engine: Engine) -> None:
    h = engine(blocks=20)
    loading(h, HOLD)
    runs = h.add("runs", range(200, 210), 20)
    h.add("other", LONGER, 3)
    h.run(lambda: len(runs.tokens) >= 2)
    answer = h.core.reset_prefix_cache(reset_running_requests=True, wait=30.0)
    started: set[int] = set(h.loads + h.stores)
    for _ in range(8):
        h.turn()
        assert set(h.loads + h.stores) <= started
    assert not answer.done()
    h.connector.release()
    h.run(answer.done)
    assert answer.result(0).success
    h.finish("waits", "runs", "other")
    for name, count in (("waits", 4), ("runs", 20), ("other", 3)):
        assert_right(h, name, count)
    end_clean(h)


def test_a_reset_whose_tier_fails_is_partial_and_harmless_to_ask_again(engine: Engine) -> None:
    h = engine()
    h.only_in_tier("first", PROMPT)
    h.connector.resets_to_fail = 1
    partial = h.core.reset_prefix_cache(reset_connector=True).result(0)
    assert (partial.success, partial.tiers, partial.holders) == (False, ("device",), ())
    assert partial.retryable
    again = h.core.reset_prefix_cache(reset_connector=True).result(0)
    assert again.tiers == ("device", "connector")
    end_clean(h)


def test_a_refused_reset_has_not_touched_the_tier(engine: Engine) -> None:
    h = engine()
    loading(h, HOLD)
    refused = h.core.reset_prefix_cache(reset_connector=True).result(0)
    assert not refused.success
    assert h.tier.stats().blocks == 3
    h.connector.release()
    h.finish("waits")
    assert_right(h, "waits", 4)
    end_clean(h)


def test_a_quarantined_store_takes_its_blocks_out_of_the_prefix_cache(engine: Engine) -> None:
    h = engine()
    h.connector.next_store.append(SILENT)
    h.add("first", PROMPT, 1)
    h.finish("first")
    h.turn()
    (number,) = h.stores
    h.pass_time(61.0)
    h.pass_time(11.0)
    assert h.transfer_state(number) == "QUARANTINED"
    h.add("second", LONGER, 3)
    h.finish("second")
    assert h.core.stats().prefix_hits == 0
    assert_right(h, "second", 3)
    end_clean(h)


def test_a_running_request_that_quarantine_leaves_no_room_for_ends_with_an_error(
    engine: Engine,
) -> None:
    # It needs ten of twelve blocks; a store that nobody answers for holds three.
    h = engine()
    h.connector.next_store.append(SILENT)
    h.add("first", PROMPT, 1)
    h.finish("first")
    h.turn()
    runs = h.add("runs", range(200, 228), 12)
    h.run(lambda: len(runs.tokens) == 9)
    h.turn()
    assert h.state("runs") == "RUNNING", "it stalls: the store may still end"
    h.pass_time(61.0)
    h.pass_time(11.0)
    h.finish("runs")
    assert runs.finish is FinishReason.ERROR
    assert runs.tokens == h.expected("runs", 9)
    end_clean(h)


def test_leases_run_while_the_engine_is_paused(engine: Engine) -> None:
    h = engine()
    number = loading(h, Fault(lose=True))
    assert h.core.pause("keep").result(0).success
    h.pass_time(61.0)
    h.turn()
    assert h.transfer_state(number) == "ABSENT"
    assert h.core.resume().success
    h.finish("waits")
    assert_right(h, "waits", 4)
    end_clean(h)


def test_a_store_held_over_a_reset_of_the_tier_is_no_hit_afterwards(engine: Engine) -> None:
    h = engine()
    h.connector.next_store.append(SILENT)
    h.add("first", PROMPT, 1)
    h.finish("first")
    h.turn()
    h.pass_time(61.0)
    h.pass_time(11.0)
    assert h.core.reset_prefix_cache(reset_connector=True).result(0).success
    h.connector.release()
    h.turn()
    h.connector.settle_all()
    h.turn()
    assert h.tier.stats().blocks == 0
    end_clean(h)


def test_shutting_down_with_a_transfer_that_never_ends_ends(engine: Engine) -> None:
    h = engine()
    loading(h, SILENT)
    stopped = h.core.shutdown(drain=True, timeout=5.0)
    h.pass_time(6.0)  # those who wait are aborted, the load is cancelled
    h.pass_time(11.0)  # and given up
    h.run(stopped.done)
    assert h.told["waits"].finish is FinishReason.ABORT
