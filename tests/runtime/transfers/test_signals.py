"""Signals that come late, twice, crossed or for another life change nothing that is not theirs."""

from __future__ import annotations

import pytest
from kvproof.runtime.protocols import SignalKind, TransferSignal
from kvproof.runtime.transfers import Fault, OnCancel

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
