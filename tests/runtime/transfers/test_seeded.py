"""Faults that engines have had, put into ours: the scenario that is named after each must fail.

The lifecycle's own audit is off, so that what fails is the scenario, by a wrong token, a corrupted
read or a hold that is left.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kvproof.runtime.protocols import SignalKind
from kvproof.runtime.transfer_records import TransferRecord
from kvproof.statemachine import RefusedError
from kvproof.statemachine.states import FENCE, GIVE_UP, LAND, LOAD

from .engine_harness import EngineHarness
from .scenarios import SCENARIOS

Seed = Callable[[EngineHarness, pytest.MonkeyPatch], None]
NO_BLOCKS = np.zeros(0, dtype=np.int32)


def let_go_of(h: EngineHarness, record: TransferRecord) -> None:
    """Its blocks are free although it has not ended."""
    ledger = h.core.lifecycle._ledger
    ledger.end_writing(record.blocks.tolist())
    ledger.release(record.blocks)
    object.__setattr__(record, "blocks", NO_BLOCKS)


def an_abort_frees_the_loads_blocks(h: EngineHarness, patch: pytest.MonkeyPatch) -> None:
    lifecycle = h.core.lifecycle
    leave = lifecycle._leave_transfer

    def leave_and_free(row: int, transfer: int) -> None:
        leave(row, transfer)
        record = lifecycle.transfers.get(transfer)
        if record is not None and not record.waiters and record.open:
            let_go_of(h, record)

    patch.setattr(lifecycle, "_leave_transfer", leave_and_free)


def a_store_holds_nothing(h: EngineHarness, patch: pytest.MonkeyPatch) -> None:
    transfers = h.core.transfers
    assert transfers is not None
    begin = transfers._begin

    def begin_and_free(record: TransferRecord) -> None:
        begin(record)
        if record.kind != LOAD:
            let_go_of(h, record)

    patch.setattr(transfers, "_begin", begin_and_free)


def a_failed_transfer_is_forgotten(h: EngineHarness, patch: pytest.MonkeyPatch) -> None:
    lifecycle = h.core.lifecycle
    tell = lifecycle._tell_waiters

    def tell_and_leak(record: TransferRecord, valid_blocks: int) -> None:
        tell(record, valid_blocks)
        lifecycle._ledger.counts[record.blocks] += 1
        lifecycle._ledger.pool.take(len(record.blocks))

    patch.setattr(lifecycle, "_tell_waiters", tell_and_leak)


def the_tiers_reset_does_nothing(h: EngineHarness, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(h.tier, "reset", lambda: True)


def the_cache_is_not_dropped(h: EngineHarness, patch: pytest.MonkeyPatch) -> None:
    # Nobody holds anything in that scenario, so there is nothing to release either.
    patch.setattr(h.core.lifecycle._ledger, "release_and_forget", lambda blocks: 0)


def the_epoch_is_not_in_the_keys(h: EngineHarness, patch: pytest.MonkeyPatch) -> None:
    hasher = h.core.lifecycle.hasher
    root = hasher.root
    patch.setattr(hasher, "root", lambda salt, epoch: root(salt, 0))


def keys_are_kept_over_a_change_of_weights(h: EngineHarness, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(h.core.lifecycle, "_new_epoch", h.core.lifecycle._ledger.drop_cached)


def a_failure_is_taken_for_success(h: EngineHarness, patch: pytest.MonkeyPatch) -> None:
    from kvproof.runtime.transfers import manager

    patch.setitem(manager._EVENTS, SignalKind.FAILED, LAND)


def what_failed_counts_as_valid(h: EngineHarness, patch: pytest.MonkeyPatch) -> None:
    lifecycle = h.core.lifecycle
    tell = lifecycle._tell_waiters
    patch.setattr(lifecycle, "_tell_waiters", lambda record, valid: tell(record, 99))


def there_are_no_leases(h: EngineHarness, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(h.core.transfers, "end_leases", lambda: None)


def a_cancel_has_no_lease(h: EngineHarness, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(h.core.transfers, "_give_up", lambda record: None)


def sleep_does_not_look_at_transfers(h: EngineHarness, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(h.core, "_cannot_sleep", lambda: None)


def what_is_given_up_counts_as_fenced(h: EngineHarness, patch: pytest.MonkeyPatch) -> None:
    lifecycle = h.core.lifecycle
    transfer = lifecycle.transfer

    def fence_instead(number: int, event: int, **told: int) -> object:
        return transfer(number, FENCE if event == GIVE_UP else event, **told)  # type: ignore[arg-type]

    patch.setattr(lifecycle, "transfer", fence_instead)


SEEDS: list[tuple[str, Seed]] = [
    ("freed_under_a_load", an_abort_frees_the_loads_blocks),
    ("freed_under_a_store", a_store_holds_nothing),
    ("leaked_after_a_failed_transfer", a_failed_transfer_is_forgotten),
    ("stale_content_after_a_reset", the_tiers_reset_does_nothing),
    ("stale_content_after_sleep", the_cache_is_not_dropped),
    ("stale_content_after_weights_changed", the_epoch_is_not_in_the_keys),
    ("stale_content_after_weights_changed", keys_are_kept_over_a_change_of_weights),
    ("failed_load_attended_to", a_failure_is_taken_for_success),
    ("failed_load_attended_to", what_failed_counts_as_valid),
    ("reset_refused_for_ever", there_are_no_leases),
    ("reset_refused_for_ever", a_cancel_has_no_lease),
    ("sleep_with_a_transfer_in_flight", sleep_does_not_look_at_transfers),
    ("quarantined_block", what_is_given_up_counts_as_fenced),
]


@pytest.mark.parametrize(("scenario", "seed"), SEEDS, ids=[f"{s}-{f.__name__}" for s, f in SEEDS])
def test_the_scenario_fails_with_the_fault(
    engine: Callable[..., EngineHarness], scenario: str, seed: Seed, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = engine(check=False)
    seed(h, monkeypatch)
    with pytest.raises((AssertionError, RefusedError)):
        SCENARIOS[scenario](h)


@pytest.mark.parametrize("scenario", sorted({name for name, _ in SEEDS}))
def test_the_scenario_passes_without_it(
    engine: Callable[..., EngineHarness], scenario: str
) -> None:
    SCENARIOS[scenario](engine(check=False))
