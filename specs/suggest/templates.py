"""Candidates for lines of the specification: a ⇒ b, a ≤ b, a unless the state is one of some.

Every candidate is a piece of Python as `specs/check/invariants.py` has them, so that what is tried
is what is printed. `states` are taken from what was explored: where a fact does not hold in some
states of the machine, "unless" names these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from ...statemachine import states
from ..check import logic
from ..check.invariants import OPEN, About, Invariant

Columns = Mapping[str, npt.NDArray[np.int64] | npt.NDArray[np.bool_]]

#: What numbers count: only those of one kind are compared.
UNITS: dict[str, tuple[str, ...]] = {
    "r": (
        "step: r.newest_step r.stale_step place.touching held.step e.launched e.processed",
        "token: r.computed r.written place.written r.hashed*size r.covered*size",
        "token: r.turn_start r.delivered",
        "block: r.hashed r.covered place.position",
        "epoch: place.epoch e.epoch",
    ),
    "t": ("transfer: t.waiters copy.others_waiting",),
    "rt": ("prefix: place.prefix copy.prefix",),
    "": (
        "step: e.processed e.launched",
        "hold: b.quarantined b.count others.quarantined others.load others.store",
        "epoch: more.epoch more.tier_epoch e.epoch",
    ),
}
#: The records that a line about somebody speaks of, and of `held` the fields.
RECORDS: dict[str, tuple[str, ...]] = {
    "r": ("r", "place", "held", "e", "b"),
    "t": ("t", "copy", "held", "e", "b"),
    "": ("e", "b", "more", "others"),
}
HELD = {"r": ("by_request", "by_step"), "t": ("by_transfer", "in_quarantine")}
#: Facts that are configured, or that say nothing but a name or an order.
PLAIN = (
    "e.block_size", "e.pool_blocks", "e.steps_ahead", "e.model_length", "e.loads_limit",
    "r.priority", "r.arrival", "copy.number", "e.sleep_level",
)  # fmt: skip
STATES: dict[str, type[IntEnum]] = {
    "r.state": states.RequestState,
    "t.state": states.TransferState,
    "e.mode": states.EngineMode,
    "t.kind": states.HoldKind,
    "e.pausing": states.PauseMode,
}
GROUPS: dict[str, dict[str, tuple[int, ...]]] = {
    "r.state": {"LIVE": states.LIVE, "FINISHED": states.FINISHED},
    "t.state": {"OPEN": OPEN},
}
SUBJECT: dict[str, str] = {"r": "r.state", "t": "t.state", "": "e.mode"}

_NAMES = {**vars(states), **vars(logic), "OPEN": OPEN}


@dataclass(frozen=True)
class Candidate:
    """A line that is tried."""

    about: About
    words: str
    text: str  # of the formula, over `s`
    cost: int

    @property
    def invariant(self) -> Invariant:
        """The line itself."""
        return Invariant("", self.words, self.about, eval(f"lambda s: {self.text}", _NAMES))

    def as_python(self) -> str:
        """As a line of `specs/check/invariants.py`."""
        return f'    ("{self.about}", "{self.words}",\n     lambda s: {self.text}),'


@dataclass(frozen=True)
class _Atom:
    words: str
    text: str
    order: bool = False


def candidates(kinds: Mapping[str, str], explored: Columns) -> Iterator[Candidate]:
    """Every candidate over these facts, the simple ones first."""
    for about in ("r", "t", ""):
        atoms = list(_atoms(about, kinds))
        orders = list(_orders(about))
        for each in orders:
            yield Candidate(about, each.words, each.text, 1)
        for each in (*atoms, *orders):
            yield from _unless(about, each, kinds, explored)
        for premise in atoms:
            for conclusion in (*atoms, *orders):
                if premise.text != conclusion.text:
                    yield Candidate(
                        about,
                        f"{premise.words} ⇒ {conclusion.words}",
                        f"implies({premise.text}, {conclusion.text})",
                        3 + conclusion.order,
                    )
    yield from _of_waiters(kinds)


def _of_waiters(kinds: Mapping[str, str]) -> Iterator[Candidate]:
    """Of a request and the transfer that it waits for."""
    waits = _Atom("it waits for the transfer", "s.r.waits_for == s.copy.number")
    for conclusion in (*_atoms("t", kinds), *_atoms("r", kinds), *_orders("rt")):
        yield Candidate(
            "rt",
            f"{waits.words} ⇒ {conclusion.words}",
            f"implies({waits.text}, {conclusion.text})",
            4,
        )


def _atoms(about: str, kinds: Mapping[str, str]) -> Iterator[_Atom]:
    """What can be said of one fact."""
    for name, kind in kinds.items():
        record, _, field = name.partition(".")
        if record not in RECORDS[about] or name in PLAIN:
            continue
        if record == "held" and field not in HELD[about]:
            continue
        if name in STATES:
            for state in STATES[name]:
                if state.name not in _NAMES:
                    continue  # a kind that this fact never is
                yield _Atom(f"{field} is {state.name}", f"s.{name} == {state.name}")
            for group in GROUPS.get(name, {}):
                yield _Atom(f"{field} is in {group}", f"among(s.{name}, {group})")
        elif kind == "bool":
            yield _Atom(_said(name), f"s.{name}")
            yield _Atom(f"not {_said(name)}", f"no(s.{name})")
        elif name == "place.position":
            yield _Atom("in the table", f"s.{name} >= 0")
            yield _Atom("not in the table", f"s.{name} < 0")
        else:
            yield _Atom(f"{_said(name)} = 0", f"s.{name} == 0")
            yield _Atom(f"{_said(name)} > 0", f"s.{name} > 0")


def _orders(about: str) -> Iterator[_Atom]:
    """Comparisons of numbers that count the same."""
    for line in UNITS.get(about, ()):
        names = line.partition(": ")[2].split()
        for left in names:
            for right in names:
                if left != right:
                    for sign, shown in (("<=", "≤"), ("<", "<")):
                        yield _Atom(
                            f"{_said(left)} {shown} {_said(right)}",
                            f"{_number(left)} {sign} {_number(right)}",
                            True,
                        )


def _number(name: str) -> str:
    field, scaled, _ = name.partition("*")
    return f"s.{field} * s.e.block_size" if scaled else f"s.{field}"


def _said(name: str) -> str:
    field, scaled, _ = name.partition("*")
    record, _, field = field.partition(".")
    shown = field.replace("_", " ")
    if record in ("place", "held", "copy", "more", "others", "b", "e"):
        shown = f"{record}.{shown}"
    return f"{shown} in tokens" if scaled else shown


def _unless(
    about: About, atom: _Atom, kinds: Mapping[str, str], explored: Columns
) -> Iterator[Candidate]:
    """It holds unless the state is one of those in which it did not."""
    subject = SUBJECT[about]
    if f"s.{subject} " in f"{atom.text} ":
        return
    reached = explored[subject]
    enum = STATES[subject]
    broken = set(reached[~holds(atom.text, explored)].tolist())
    kept = set(reached.tolist()) - broken
    if not broken or not kept:
        return
    field = subject.partition(".")[2]
    if len(broken) <= len(kept):
        names = [enum(each).name for each in sorted(broken)]
        condition = f"no({_is_one_of(subject, names)})"
        words = f"{atom.words} unless {field} is {' or '.join(names)}"
    else:
        names = [enum(each).name for each in sorted(kept)]
        condition = _is_one_of(subject, names)
        words = f"{field} is {' or '.join(names)} ⇒ {atom.words}"
    text = f"implies({condition}, {atom.text})"
    yield Candidate(about, words, text, 2 + len(names) // 3 + atom.order)


def _is_one_of(subject: str, names: list[str]) -> str:
    if len(names) == 1:
        return f"s.{subject} == {names[0]}"
    return f"among(s.{subject}, ({', '.join(names)}))"


def holds(text: str, columns: Columns) -> npt.NDArray[np.bool_]:
    """In which of the states a formula, given as Python, is true."""
    return np.asarray(eval(text, _ON_COLUMNS, {"s": _State(columns)}), dtype=np.bool_)


#: The same names where `s` is columns of values instead of symbols.
_ON_COLUMNS = {
    **_NAMES,
    "no": np.logical_not,
    "implies": lambda condition, conclusion: ~condition | conclusion,
    "among": lambda value, members: np.isin(value, [int(member) for member in members]),
}


class _State:
    """`s` over columns: `s.r.covered` is what it was worth in each state."""

    def __init__(self, columns: Columns, record: str = "") -> None:
        self._columns = columns
        self._record = record

    def __getattr__(self, name: str) -> object:
        if self._record:
            return self._columns[f"{self._record}.{name}"]
        return _State(self._columns, name)
