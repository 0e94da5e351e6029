"""check() sees a change of every cell that any other fact determines, and says so by assertion."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kvproof.runtime.columns import COLUMNS, FACTS

from .lifecycles import Peopled, ids

#: One request in each state, as `Peopled` makes them; None: a row of no request.
WHO = (
    "running", "session", "fresh", "preempted", "waiting", "again", "parked", "grammar", "loading",
    "done", None,
)  # fmt: skip
STEPS = (1, -1, 5)
SESSIONS = ("session", "again", "parked")
COLUMN_NAMES = (*FACTS, "target", "limit")

#: What nothing else determines: fact -> (whose, by how much, why).
FREE: dict[str, tuple[tuple[str, ...], tuple[int, ...], str]] = {
    "state": (
        ("waiting",), (5,),
        "one that was preempted before a step had it differs in nothing but this",
    ),
    "newest_step": (
        ("done", "preempted"), (1, -1),
        "which processed step was a request's last is told by nothing but this",
    ),
    "stale_step": (
        ("running", "session", "done"), (1, -1),
        "which processed steps no longer counted is asked of none that is processed",
    ),
    "loads_failed": (WHO[:-1], (1,), "a load that failed leaves no trace but this"),  # type: ignore[dict-item]
    "input_open": (("session", "again"), (-1,), "only the client knows whether it has closed"),
    "resumable": (
        ("running", "fresh", "preempted", "waiting", "grammar", "loading", "done"), (1,),
        "a session that is closed, has no chunk and is in its first turn looks like any request",
    ),
    "turn_start": (SESSIONS, (1, -1), "the turns before this one are told by nothing but this"),
    "priority": (
        ("parked", "grammar", "loading", "done"), STEPS,
        "asked of when a request is put into a container with an order; it is in none",
    ),
    "limit": (WHO[:-1], STEPS, "the client's max_tokens; only that it fits the pool is checked"),  # type: ignore[dict-item]
}  # fmt: skip


def cells() -> list[tuple[str, str | None, int]]:
    return [
        (fact, who, by)
        for fact in COLUMN_NAMES
        for who in WHO
        for by in STEPS
        if fact not in FREE or who not in FREE[fact][0] or by not in FREE[fact][1]
    ]


def flip(people: Peopled, fact: str, who: str | None, by: int) -> None:
    row = people.engine._free_rows[0] if who is None else getattr(people, who)
    people.engine._columns[COLUMN_NAMES.index(fact), row] += by


@pytest.fixture(scope="module")
def people() -> Peopled:
    return Peopled()


@pytest.mark.parametrize("fact", COLUMN_NAMES)
def test_a_cell_that_is_changed_behind_its_back_fails_the_check(people: Peopled, fact: str) -> None:
    assert len(COLUMN_NAMES) == COLUMNS
    engine, unseen = people.engine, []
    before = engine._columns.copy()
    for name, who, by in cells():
        if name != fact:
            continue
        flip(people, fact, who, by)
        try:
            engine.check()
            unseen.append((who, by))
        except AssertionError:
            pass
        finally:
            engine._columns[:] = before
    engine.check()
    assert unseen == []


@pytest.mark.parametrize("fact", FREE)
def test_what_nothing_else_determines_is_really_not_seen(people: Peopled, fact: str) -> None:
    """Otherwise it is left out of the test above without need."""
    engine, (whose, steps, why) = people.engine, FREE[fact]
    before, seen = engine._columns.copy(), []
    for who in whose:
        unseen = 0
        for by in steps:
            flip(people, fact, who, by)
            try:
                engine.check()
                unseen += 1
            except AssertionError:
                pass
            finally:
                engine._columns[:] = before
        if not unseen:
            seen.append(who)
    assert seen == [], why


OTHERS: dict[str, Callable[[Peopled], object]] = {
    "a token whose key is known": lambda p: p.engine._tokens.__setitem__((p.running, 2), 9),
    "a salt": lambda p: p.engine._salts.__setitem__(p.running, b"other"),
    "a salt of no request": lambda p: p.engine._salts.__setitem__(40, b"left"),
    "a key": lambda p: p.engine._chains[p.running].keys.__setitem__(0, b"0" * 16),  # type: ignore[union-attr]
    "keys of no request": lambda p: p.engine._chains.__setitem__(40, p.engine._chains[p.running]),
    "an id": lambda p: p.engine._ids.__setitem__(p.waiting, "other"),
    "a queued chunk that is lost": lambda p: p.engine._queued[p.session].clear(),
    "a queued chunk of another length": lambda p: p.engine._queued[p.session].__setitem__(
        0, ids(1)
    ),
    "a queued chunk of no request": lambda p: p.engine._queued[40].append(ids(1)),
    "a free row that is lost": lambda p: p.engine._free_rows.pop(),
    "a row that is free and a request's": lambda p: p.engine._free_rows.append(p.waiting),
    "a parked one that is not listed": lambda p: p.engine._parked.clear(),
    "one listed as parked": lambda p: p.engine._parked.__setitem__(p.running, None),
    "a loading one that is not listed": lambda p: p.engine._loading_rows.clear(),
    "a row of no request that waits": lambda p: p.engine._waiting.add(0, 99, 40),
    "a row of no request that is blocked": lambda p: p.engine._blocked.__setitem__(40, None),
    "one that was entered with another priority": lambda p: p.engine._running._entries.__setitem__(
        0, (-1, *p.engine._running._entries[0][1:])
    ),
    "the blocks that can be hit": lambda p: p.engine._ledger.index.cached.__setitem__(p.hit, False),
    "a waiter of a load": lambda p: p.engine.transfers[p.load]._now.waiters.clear(),
    "a transfer that waiters wait for": lambda p: p.engine._transfers.clear(),
    "a table of no request": lambda p: p.engine._tables.__setitem__((40, 0), 3),
    "how many arrived": lambda p: setattr(p.engine, "_arrivals", 2),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_columns_depend_on_fails_the_check_when_it_is_changed(what: str) -> None:
    people = Peopled()
    OTHERS[what](people)
    with pytest.raises(AssertionError):
        people.engine.check()


def test_a_newest_step_that_is_lost_is_seen_before_blocks_are_freed_under_the_step() -> None:
    """An abort frees at once what no launched step touches: so this fact must not be wrong."""
    people = Peopled()
    flip(people, "newest_step", "running", -3)
    with pytest.raises(AssertionError, match="step 3 computes it"):
        people.engine.check()


def test_the_check_only_reads() -> None:
    people = Peopled()
    before = people.engine._columns.copy()
    people.engine.check()
    assert np.array_equal(before, people.engine._columns)
