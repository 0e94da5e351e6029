"""Room for requests whose prefix is loaded: what is kept for them, what they leave to others."""

from __future__ import annotations

import pytest
from kvproof.runtime.scheduler import Scheduler

from .engine_harness import SIZE, EngineHarness
from .scenarios import HOLD, Engine, assert_right, end_clean

PROMPT = list(range(100, 126))  # six blocks and a half, of which five are loaded


def fact(h: EngineHarness, name: str, fact: str) -> int:
    row = h.core.lifecycle.row_of(name)
    return int(getattr(h.core.lifecycle.view, fact)[row])


def loads(h: EngineHarness) -> None:
    """A request loads five of its seven blocks; the load is held."""
    h.only_in_tier("first", PROMPT[: 5 * SIZE])
    h.connector.next_load.append(HOLD)
    h.add("loads", PROMPT, 4)
    h.turn()
    assert h.state("loads") == "WAITING_FOR_REMOTE_KVS"


def the_room_of_who_loads_is_kept(engine: Engine) -> None:
    h = engine(blocks=10, max_num_seqs=2)
    loads(h)
    assert (fact(h, "loads", "covered"), fact(h, "loads", "reserved")) == (5, 2)
    assert (h.free, h.core.lifecycle.free_for()) == (5, 3)
    h.add("newcomer", range(200, 200 + 4 * SIZE), 4)  # four blocks: more than are not promised
    h.turn()
    assert h.state("newcomer") == "WAITING"
    h.connector.release()
    h.core.tick()  # it has landed, and is not admitted yet
    assert (h.state("loads"), fact(h, "loads", "reserved")) == ("WAITING", 2)
    assert h.core.lifecycle.free_for() == 3
    h.turn()
    assert (h.state("loads"), h.state("newcomer")) == ("RUNNING", "WAITING")
    assert fact(h, "loads", "reserved") == 0
    h.finish("loads", "newcomer")
    for name in ("loads", "newcomer"):
        assert_right(h, name, 4)
    end_clean(h)


def test_the_room_that_a_request_needs_after_its_load_goes_to_no_newcomer(engine: Engine) -> None:
    the_room_of_who_loads_is_kept(engine)


def test_a_reservation_that_is_left_out_shows(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = Scheduler._blocks
    monkeypatch.setattr(
        Scheduler,
        "_blocks",
        lambda scheduler, row: (
            blocks(scheduler, row) if scheduler._lifecycle.view.covered[row] else 5
        ),
    )
    with pytest.raises(AssertionError):
        the_room_of_who_loads_is_kept(engine)


def who_runs_can_still_grow(engine: Engine) -> None:
    h = engine(blocks=9)
    h.only_in_tier("first", PROMPT[: 5 * SIZE])
    h.add("runs", range(200, 200 + SIZE + 1), 4)
    h.turn()
    assert (h.state("runs"), h.free) == ("RUNNING", 7)
    h.add("loads", PROMPT, 4)  # seven blocks: then none is left for who runs
    h.turn()
    assert h.state("loads") == "WAITING"
    h.finish("runs", "loads")
    assert h.core.stats().preemptions == 0
    assert_right(h, "loads", 4)
    end_clean(h)


def test_a_load_leaves_each_running_request_a_block_to_grow_by(engine: Engine) -> None:
    who_runs_can_still_grow(engine)


def test_a_load_that_takes_all_shows(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "kvproof.runtime.scheduler.leaves_room_to_grow",
        lambda free, needed, running: free >= needed,
    )
    with pytest.raises(AssertionError):
        who_runs_can_still_grow(engine)
