"""Faults of the public record: the engine is free of them, and frees nothing too early or never."""

from __future__ import annotations

import pytest
from kvproof.runtime.transfers import Fault, OnCancel

from .scenarios import (
    HOLD,
    LONGER,
    PROMPT,
    SCENARIOS,
    Engine,
    assert_right,
    end_clean,
    loading,
)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_engine_is_free_of_the_fault(engine: Engine, name: str) -> None:
    SCENARIOS[name](engine())


def test_nothing_is_freed_under_a_launched_step(engine: Engine) -> None:
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


def test_nothing_leaks_after_an_aborted_transfer(engine: Engine) -> None:
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
def test_nothing_leaks_after_a_lost_transfer(engine: Engine, how: OnCancel) -> None:
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


def test_nothing_leaks_after_a_lost_store(engine: Engine) -> None:
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


def test_nothing_leaks_after_a_transfer_that_could_not_start(engine: Engine) -> None:
    h = engine()
    h.only_in_tier("first", PROMPT)
    h.connector.next_load.extend([Fault(refuse=True)] * 3)
    h.add("waits", LONGER)
    h.finish("waits")
    assert_right(h, "waits", 4)
    end_clean(h)
