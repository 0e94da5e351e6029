"""Every class of fault that the public record knows around transfers, by name.

Each scenario is a function that ends with every token right and nothing held; a seeded fault that
it must catch is beside it in `test_seeded.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kvproof.runtime.api import FinishReason
from kvproof.runtime.protocols import SignalKind, TransferSignal
from kvproof.runtime.transfers import Fault, OnCancel

from .engine_harness import SIZE, EngineHarness

Engine = Callable[..., EngineHarness]
PROMPT = list(range(10, 22))  # three blocks
LONGER = [*PROMPT, 30, 31]
HOLD = Fault(hold=True)
#: A cancel that is not answered: the copy may still run, at any time.
SILENT = Fault(hold=True, on_cancel=OnCancel.SILENT)


def assert_right(h: EngineHarness, name: str, tokens: int) -> None:
    """It has delivered what an undisturbed run delivers."""
    assert h.told[name].tokens == h.expected(name, tokens), name


def end_clean(h: EngineHarness) -> None:
    """Nothing is held once everything has ended."""
    h.connector.settle_all()
    h.settle()
    h.assert_nothing_is_held()


def loading(h: EngineHarness, *faults: Fault, name: str = "waits") -> int:
    """A request that waits for the load of PROMPT, which goes wrong so. Returns the transfer."""
    h.only_in_tier("first", PROMPT)
    h.connector.next_load.extend(faults)
    h.add(name, LONGER)
    h.turn()
    assert h.state(name) == "WAITING_FOR_REMOTE_KVS"
    return h.load


# --- scenarios that the seeded faults use too -----------------------------------------------------


def freed_under_a_load(h: EngineHarness) -> None:
    """An abort while the load is in flight; its blocks are wanted by somebody else."""
    loading(h, Fault(hold=True, on_cancel=OnCancel.FINISH))
    h.core.abort("waits")
    h.add("next", range(200, 229), 6)  # every other block of the pool
    h.add("after", range(300, 310), 4)
    for _ in range(3):
        h.turn()
    h.connector.release()
    h.finish("next", "after")
    assert_right(h, "next", 6)
    assert_right(h, "after", 4)
    end_clean(h)


def freed_under_a_store(h: EngineHarness) -> None:
    """The request finishes and its blocks are wanted while a store has not read them yet."""
    h.connector.next_store.append(HOLD)
    h.add("first", PROMPT, 1)
    h.finish("first")
    h.turn()
    assert h.stores
    for name, base in (("next", 200), ("more", 400)):  # the second one evicts
        h.add(name, range(base, base + 29), 6)
        h.finish(name)
        assert_right(h, name, 6)
    h.connector.release()
    h.settle()
    assert h.core.reset_prefix_cache(reset_running_requests=True).result(0)
    h.add("second", LONGER)
    h.finish("second")
    assert h.core.stats().tier_loaded_bytes > 0
    assert_right(h, "second", 4)
    end_clean(h)


def leaked_after_a_failed_transfer(h: EngineHarness) -> None:
    """A load fails; a store fails."""
    loading(h, Fault(only=0))
    h.connector.next_store.extend([Fault(only=0)] * 3)
    h.finish("waits")
    assert_right(h, "waits", 4)
    end_clean(h)


def stale_content_after_a_reset(h: EngineHarness) -> None:
    """A reset of both tiers; nothing computed before it may be a hit."""
    h.only_in_tier("first", PROMPT)
    result = h.core.reset_prefix_cache(reset_connector=True).result(0)
    assert result.tiers == ("device", "connector")
    h.add("second", LONGER)
    h.finish("second")
    assert h.core.stats().tier_loaded_bytes == 0
    assert_right(h, "second", 4)
    end_clean(h)


def stale_content_after_sleep(h: EngineHarness) -> None:
    """The device's memory is undefined after a sleep; the tier's content is not."""
    h.add("first", PROMPT, 1)
    h.finish("first")
    h.settle()
    assert h.core.sleep(level=2).result(0).success
    assert h.core.wake().success
    h.add("second", LONGER)
    h.finish("second")
    assert h.core.stats().tier_loaded_bytes == 3 * h.runner.kv.bytes_per_block
    assert_right(h, "second", 4)
    end_clean(h)


def stale_content_after_weights_changed(h: EngineHarness) -> None:
    """Neither the device nor the tier serves KV of the older weights."""
    h.add("first", PROMPT, 1)
    h.finish("first")
    h.settle()
    assert h.core.pause("keep").result(0).success
    h.add("second", LONGER)
    row = h.core.lifecycle.row_of("second")
    assert row is not None
    h.core.lifecycle.hits(row)  # it has made keys of the old weights
    assert h.core.weights_changed().success
    assert h.core.resume().success
    h.finish("second")
    stats = h.core.stats()
    assert (stats.tier_loaded_bytes, stats.prefix_hits) == (0, 0)
    end_clean(h)


def failed_load_attended_to(h: EngineHarness) -> None:
    """One block arrives, the others are torn: only the first may be attended to."""
    loading(h, Fault(only=1, spoil=True), Fault(only=0), Fault(only=0))
    h.finish("waits")
    assert_right(h, "waits", 4)
    end_clean(h)


def reset_refused_for_ever(h: EngineHarness) -> None:
    """The load's end is lost, and its cancel is not answered: leases see to it."""
    loading(h, SILENT)
    answer = h.core.reset_prefix_cache(reset_running_requests=True, wait=1000.0)
    h.turn()
    assert not answer.done()
    h.pass_time(61.0)  # the lease: cancelled
    assert not answer.done()
    h.pass_time(11.0)  # the cancel's lease: in quarantine
    h.turn()
    assert answer.done()
    assert answer.result(0).success
    h.finish("waits")
    assert_right(h, "waits", 4)
    end_clean(h)


def sleep_with_a_transfer_in_flight(h: EngineHarness) -> None:
    """Memory that a copy writes to must not be given back."""
    number = loading(h, HOLD)
    result = h.core.sleep().result(0)
    assert not result.success
    assert (result.holders[0].kind, result.holders[0].owner) == ("LOAD", str(number))
    assert result.mode == "active"
    assert h.runner.kv.resident
    h.connector.release()
    h.finish("waits")
    assert_right(h, "waits", 4)
    h.settle()
    assert h.core.sleep().result(0).success
    assert h.core.wake().success
    end_clean(h)


def quarantined_block(h: EngineHarness) -> None:
    """Nobody says whether the copy still runs: its blocks serve nobody, and it does run."""
    number = loading(h, SILENT)
    written = set(h.core.lifecycle.transfers[number].blocks.tolist())
    h.pass_time(61.0)
    h.pass_time(11.0)
    assert h.transfer_state(number) == "QUARANTINED"
    assert h.core.stats().blocks_quarantined == 3
    h.add("next", range(200, 229), 6)  # all nine blocks that are left
    h.run(lambda: len(h.told["next"].tokens) >= 2)
    row = h.core.lifecycle.row_of("next")
    assert row is not None
    assert not written & set(h.core.lifecycle.table(row).tolist())
    h.connector.release()
    h.finish("waits", "next")
    assert_right(h, "waits", 4)
    assert_right(h, "next", 6)
    h.settle()
    assert h.core.reset_prefix_cache().result(0).success, "quarantine never refuses a reset"
    asleep = h.core.sleep().result(0)
    assert not asleep.success
    assert [holder.quarantined for holder in asleep.holders] == [True]
    h.connector.confirm(number)
    h.turn()
    assert h.transfer_state(number) == "ABSENT"
    assert h.core.sleep().result(0).success
    assert h.core.wake().success
    end_clean(h)


SCENARIOS: dict[str, Callable[[EngineHarness], None]] = {
    scenario.__name__: scenario
    for scenario in (
        freed_under_a_load,
        freed_under_a_store,
        leaked_after_a_failed_transfer,
        stale_content_after_a_reset,
        stale_content_after_sleep,
        stale_content_after_weights_changed,
        failed_load_attended_to,
        reset_refused_for_ever,
        sleep_with_a_transfer_in_flight,
        quarantined_block,
    )
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_engine_is_free_of_the_fault(engine: Engine, name: str) -> None:
    SCENARIOS[name](engine())


# --- freed too early, or never --------------------------------------------------------------------


def test_freed_under_a_launched_step(engine: Engine) -> None:
    h = engine(steps_in_flight=2)
    h.only_in_tier("first", PROMPT)
    h.add("runs", range(200, 222), 6)  # six blocks
    h.core.tick()
    assert h.core.launch_step()
    touched = set(h.core.lifecycle.table(h.core.lifecycle.row_of("runs") or 0).tolist())
    h.core.abort("runs")  # its step is still on the device
    h.add("loads", LONGER)
    h.core.tick()
    h.core.launch_step()
    record = h.core.lifecycle.transfers[h.load]
    assert not touched & set(record.blocks.tolist())
    h.finish("loads")
    assert_right(h, "loads", 4)
    end_clean(h)


def test_leaked_after_an_aborted_transfer(engine: Engine) -> None:
    h = engine()
    number = loading(h, HOLD)
    h.core.abort("waits")
    h.turn()
    assert h.transfer_state(number) == "CANCELLING"
    h.turn()
    assert h.transfer_state(number) == "ABSENT"
    assert h.connector.held == ()
    h.settle()
    h.assert_nothing_is_held()


@pytest.mark.parametrize("how", [OnCancel.OBEY, OnCancel.FINISH])
def test_leaked_after_a_lost_transfer(engine: Engine, how: OnCancel) -> None:
    h = engine()
    number = loading(h, Fault(lose=True, on_cancel=how))
    h.pass_time(59.0)
    assert h.transfer_state(number) == "IN_FLIGHT"
    h.pass_time(2.0)
    h.turn()
    assert h.transfer_state(number) == "ABSENT", "its cancel is answered"
    h.finish("waits")
    assert_right(h, "waits", 4)
    h.settle()
    h.assert_nothing_is_held()


def test_leaked_after_a_lost_store(engine: Engine) -> None:
    h = engine()
    h.connector.next_store.append(Fault(lose=True))
    h.add("first", PROMPT, 1)
    h.finish("first")
    h.turn()
    h.turn()
    assert h.stores
    h.pass_time(61.0)
    h.turn()
    h.assert_nothing_is_held()


def test_leaked_after_a_transfer_that_could_not_start(engine: Engine) -> None:
    h = engine()
    h.only_in_tier("first", PROMPT)
    h.connector.next_load.extend([Fault(refuse=True)] * 3)
    h.add("waits", LONGER)
    h.finish("waits")
    assert_right(h, "waits", 4)
    end_clean(h)


# --- signals --------------------------------------------------------------------------------------


def test_a_late_signal_finds_nothing_to_change(engine: Engine) -> None:
    h = engine()
    number = loading(h, Fault(hold=True, late=3, on_cancel=OnCancel.FINISH))
    h.core.abort("waits")
    h.turn()
    h.connector.release()
    h.finish()
    h.settle()
    h.add("next", range(200, 229), 6)
    h.finish("next")
    before = h.core.stats().ignored_signals.get("transfer.land", 0)
    h.connector.inject(TransferSignal(number, SignalKind.LANDED))
    h.turn()
    assert h.core.stats().ignored_signals["transfer.land"] == before + 1
    assert_right(h, "next", 6)
    end_clean(h)


@pytest.mark.parametrize("kind", list(SignalKind))
def test_a_repeated_signal_changes_nothing(engine: Engine, kind: SignalKind) -> None:
    h = engine()
    number = loading(h, Fault(repeat=2))
    h.finish("waits")
    for _ in range(3):
        h.connector.inject(TransferSignal(number, kind, valid_blocks=3))
        h.connector.inject(TransferSignal(12345, kind))
    h.settle()
    assert sum(h.core.stats().ignored_signals.values()) >= 6
    assert_right(h, "waits", 4)
    end_clean(h)


@pytest.mark.parametrize("kind", [SignalKind.FENCED, SignalKind.UNCONFIRMED])
def test_a_fence_of_what_was_not_cancelled_changes_nothing(
    engine: Engine, kind: SignalKind
) -> None:
    h = engine()
    number = loading(h, HOLD)
    h.connector.inject(TransferSignal(number, kind))
    h.turn()
    assert h.transfer_state(number) == "IN_FLIGHT"
    h.connector.release()
    h.finish("waits")
    assert_right(h, "waits", 4)
    end_clean(h)


def test_signals_of_two_loads_may_cross(engine: Engine) -> None:
    h = engine(blocks=20)
    other = list(range(100, 112))
    h.only_in_tier("one", PROMPT)
    h.only_in_tier("two", other)
    h.connector.next_load.extend([Fault(late=3), Fault(only=1, spoil=True)])
    h.add("a", LONGER)
    h.add("b", [*other, 1, 2])
    h.finish("a", "b")
    assert_right(h, "a", 4)
    assert_right(h, "b", 4)
    end_clean(h)


def test_an_old_loads_signal_does_not_end_a_new_wait(engine: Engine) -> None:
    h = engine()
    first = loading(h, Fault(hold=True, on_cancel=OnCancel.SILENT), HOLD)
    h.pass_time(61.0)
    h.pass_time(11.0)
    h.turn()
    second = next(number for number in h.loads if number != first)
    assert h.state("waits") == "WAITING_FOR_REMOTE_KVS"
    h.connector.inject(TransferSignal(first, SignalKind.LANDED))
    h.turn()
    assert h.state("waits") == "WAITING_FOR_REMOTE_KVS"
    assert h.transfer_state(second) == "IN_FLIGHT"
    h.connector.release()
    h.finish("waits")
    assert_right(h, "waits", 4)
    end_clean(h)


def test_the_confirmation_of_a_first_life_does_not_reach_the_second(engine: Engine) -> None:
    h = engine()
    loading(h, SILENT)
    h.core.abort("waits")
    h.turn()
    h.pass_time(11.0)
    assert h.core.stats().blocks_quarantined == 3
    h.add("waits", LONGER)  # the id again: its old transfer has ended, in quarantine
    h.connector.settle_all()
    h.finish("waits")
    assert_right(h, "waits", 4)
    end_clean(h)


# --- who waits with whom --------------------------------------------------------------------------


def test_a_leaders_abort_does_not_hurt_those_who_joined(engine: Engine) -> None:
    h = engine(blocks=16)
    loading(h, HOLD, name="leader")
    h.add("follower", [*PROMPT, 77], 4)
    h.turn()
    h.core.abort("leader")
    h.turn()
    assert len(h.loads) == 1
    h.connector.release()
    h.finish("follower")
    assert_right(h, "follower", 4)
    assert h.core.stats().tier_loaded_bytes == 3 * h.runner.kv.bytes_per_block
    end_clean(h)


def test_a_failed_load_fails_for_all_who_wait_and_none_writes_into_anothers_block(
    engine: Engine,
) -> None:
    h = engine(blocks=20)
    loading(h, Fault(hold=True, only=1, spoil=True), name="leader")
    for name in ("b", "c"):
        h.add(name, [*PROMPT, ord(name)], 4)
    h.turn()
    h.connector.release()
    h.finish("leader", "b", "c")
    for name in ("leader", "b", "c"):
        assert_right(h, name, 4)
    end_clean(h)


def test_a_load_is_not_retried_for_ever(engine: Engine) -> None:
    h = engine(loads_limit=3)
    h.only_in_tier("first", PROMPT)
    h.connector.choose = lambda _transfer, is_load, _blocks: Fault(only=0 if is_load else None)
    h.add("waits", LONGER)
    h.finish("waits")
    assert h.connector.counts["failed"] == 3
    assert_right(h, "waits", 4)
    end_clean(h)


def test_under_policy_fail_a_failed_load_ends_its_requests(engine: Engine) -> None:
    h = engine(load_failure_policy="fail")
    loading(h, Fault(only=1))
    h.finish("waits")
    assert h.told["waits"].finish is FinishReason.ERROR
    assert h.told["waits"].tokens == []
    end_clean(h)


def test_a_load_that_takes_too_long_for_its_request_is_given_up(engine: Engine) -> None:
    h = engine(load_deadline=5.0)
    number = loading(h, HOLD)
    h.pass_time(6.0)
    h.turn()
    assert h.transfer_state(number) in ("CANCELLING", "ABSENT")
    h.finish("waits")
    assert_right(h, "waits", 4)
    assert h.core.stats().tier_loaded_bytes == 0
    end_clean(h)


def test_two_requests_that_load_do_not_wait_for_each_other(engine: Engine) -> None:
    # Each needs seven of ten blocks to run: both loads fit, both runs do not.
    h = engine(blocks=10)
    prompts = {name: list(range(base, base + 26)) for name, base in (("a", 100), ("b", 200))}
    for name, prompt in prompts.items():
        h.only_in_tier(f"first {name}", prompt[: 5 * SIZE])
    h.connector.next_load.extend([HOLD, HOLD])
    for name, prompt in prompts.items():
        h.add(name, prompt, 4)
    for _ in range(3):
        h.turn()
    h.connector.release()
    h.run(lambda: bool(h.connector.release()) or all(t.finish for t in h.told.values()))
    for name in prompts:
        assert_right(h, name, 4)
    end_clean(h)


# --- preemption, resets, sleep --------------------------------------------------------------------


def test_preempted_and_resumed_in_one_turn_with_jobs_in_flight(engine: Engine) -> None:
    h = engine(blocks=16)
    h.connector.choose = lambda _transfer, is_load, _blocks: Fault(late=2, hold=not is_load)
    h.add("runs", PROMPT, 12)
    h.run(lambda: len(h.told["runs"].tokens) >= 3)
    assert h.stores
    h.core.tick()
    h.core.launch_step()
    lifecycle = h.core.lifecycle
    row = lifecycle.row_of("runs")
    assert row is not None
    assert lifecycle.preempt(row, forced=True).went
    h.connector.release()
    h.turn()  # its step is processed
    h.turn()
    assert h.state("runs") == "RUNNING"
    h.run(lambda: bool(h.connector.release()) or h.told["runs"].finish is not None)
    assert_right(h, "runs", 12)
    h.connector.choose = None
    end_clean(h)


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
