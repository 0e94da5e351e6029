"""Faults around transfers that the public record knows by name, each as a scenario of an engine.

Each ends with every token right and nothing held. `test_faults.py` runs them on the engine as it
is, `test_seeded.py` on engines with a seeded fault that the scenario must catch.
"""

from __future__ import annotations

from collections.abc import Callable

from kvproof.runtime.transfers import Fault, OnCancel

from .engine_harness import EngineHarness

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
