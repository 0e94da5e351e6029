"""Faults in how signals, waiters and leases are dealt with, put into ours: its test must fail.

As in `test_seeded.py` the lifecycle's own audit is off, so that what fails is the test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from kvproof.runtime.protocols import SignalKind, TransferSignal
from kvproof.runtime.scheduler import Scheduler
from kvproof.runtime.transfers import manager
from kvproof.statemachine import RefusedError
from kvproof.statemachine.states import LAND

from . import test_signals as signals
from . import test_waiters as waiters
from .engine_harness import EngineHarness
from .scenarios import Engine

Seed = Callable[[EngineHarness, pytest.MonkeyPatch], None]


def hears(
    h: EngineHarness,
    patch: pytest.MonkeyPatch,
    heard_as: Callable[[TransferSignal], TransferSignal],
) -> None:
    """The engine takes each signal for another one."""
    transfers = h.core.transfers
    assert transfers is not None
    hear = transfers._hear
    patch.setattr(transfers, "_hear", lambda signal: hear(heard_as(signal)))


def a_signal_is_the_newest_transfers(h: EngineHarness, patch: pytest.MonkeyPatch) -> None:
    """As where completions carry a request's name and no number."""

    def newest(signal: TransferSignal) -> TransferSignal:
        numbers = [record.number for record in h.core.lifecycle.open_transfers()]
        return replace(signal, transfer=max(numbers, default=signal.transfer))

    hears(h, patch, newest)


def signals_come_in_the_order_of_the_starts(h: EngineHarness, patch: pytest.MonkeyPatch) -> None:
    def oldest(signal: TransferSignal) -> TransferSignal:
        numbers = [record.number for record in h.core.lifecycle.open_transfers()]
        return replace(signal, transfer=min(numbers, default=signal.transfer))

    hears(h, patch, oldest)


def a_repeated_signal_releases_once_more(h: EngineHarness, patch: pytest.MonkeyPatch) -> None:
    lifecycle, transfers = h.core.lifecycle, h.core.transfers
    assert transfers is not None
    hear, carried = transfers._hear, dict[int, list[int]]()

    def hear_and_release(signal: TransferSignal) -> None:
        record = lifecycle.transfers.get(signal.transfer)
        if record is not None:
            carried[record.number] = record.blocks.tolist()
        elif signal.transfer in carried:
            lifecycle._ledger.counts[carried[signal.transfer]] -= 1
        hear(signal)

    patch.setattr(transfers, "_hear", hear_and_release)


def a_fence_is_an_end_whoever_asked(h: EngineHarness, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(manager._EVENTS, SignalKind.FENCED, LAND)


def unconfirmed_is_an_end(h: EngineHarness, patch: pytest.MonkeyPatch) -> None:
    hears(
        h,
        patch,
        lambda signal: (
            replace(signal, kind=SignalKind.LANDED)
            if signal.kind is SignalKind.UNCONFIRMED
            else signal
        ),
    )


def a_load_may_fail_any_number_of_times(h: EngineHarness, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(manager, "may_load", lambda failed, limit: True)


def a_leaders_abort_cancels_the_load(h: EngineHarness, patch: pytest.MonkeyPatch) -> None:
    lifecycle, transfers = h.core.lifecycle, h.core.transfers
    assert transfers is not None
    leave = lifecycle._leave_transfer

    def leave_and_cancel(row: int, transfer: int) -> None:
        leave(row, transfer)
        transfers.connector.cancel(transfer)

    patch.setattr(lifecycle, "_leave_transfer", leave_and_cancel)


def those_that_have_loaded_keep_their_blocks(h: EngineHarness, patch: pytest.MonkeyPatch) -> None:
    """A load reserves nothing for its request to run with, and nobody gives way to another."""
    view, blocks = h.core.lifecycle.view, Scheduler._blocks

    def loaded_alone(scheduler: Scheduler, row: int) -> int:
        return blocks(scheduler, row) - (0 if view.covered[row] else 2)

    patch.setattr(Scheduler, "_blocks", loaded_alone)
    patch.setattr(Scheduler, "_reclaimable", lambda scheduler, row, plan: iter(()))


SEEDS: list[tuple[Callable[[Engine], None], Seed]] = [
    (signals.test_a_late_signal_finds_nothing_to_change, a_repeated_signal_releases_once_more),
    (
        lambda engine: signals.test_a_repeated_signal_changes_nothing(engine, SignalKind.LANDED),
        a_repeated_signal_releases_once_more,
    ),
    (
        lambda engine: signals.test_a_fence_of_what_was_not_cancelled_changes_nothing(
            engine, SignalKind.FENCED
        ),
        a_fence_is_an_end_whoever_asked,
    ),
    (
        lambda engine: signals.test_a_fence_of_what_was_not_cancelled_changes_nothing(
            engine, SignalKind.UNCONFIRMED
        ),
        unconfirmed_is_an_end,
    ),
    (signals.test_signals_of_two_loads_may_cross, signals_come_in_the_order_of_the_starts),
    (signals.test_an_old_loads_signal_does_not_end_a_new_wait, a_signal_is_the_newest_transfers),
    (waiters.test_a_load_is_not_retried_for_ever, a_load_may_fail_any_number_of_times),
    (waiters.test_a_leaders_abort_does_not_hurt_those_who_joined, a_leaders_abort_cancels_the_load),
    (
        waiters.test_two_requests_that_load_do_not_wait_for_each_other,
        those_that_have_loaded_keep_their_blocks,
    ),
]


@pytest.mark.parametrize(("test", "seed"), SEEDS, ids=[seed.__name__ for _, seed in SEEDS])
def test_the_test_fails_with_the_fault(
    engine: Engine,
    test: Callable[[Engine], None],
    seed: Seed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def faulty(**options: object) -> EngineHarness:
        h = engine(**options, check=False)
        seed(h, monkeypatch)
        return h

    with pytest.raises((AssertionError, RefusedError)):
        test(faulty)


@pytest.mark.parametrize("test", [test for test, _ in SEEDS], ids=[s.__name__ for _, s in SEEDS])
def test_the_test_passes_without_it(engine: Engine, test: Callable[[Engine], None]) -> None:
    test(lambda **options: engine(**options, check=False))
