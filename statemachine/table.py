"""Decision tables: the form in which the three machines are written down.

A row has the shape of a transition of the `transitions` library: trigger, source, dest,
conditions, unless, before. The rows of a (state, event) cell are tried in the order in which they
are written; the first whose guards hold decides. Refusals are rows too (their `dest` is None and
they have no effects), so that a reader sees every answer and why it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from .answers import GO, Answer
from .errors import SpecificationError

#: A plain function of the records, whose result is a truth value. It changes nothing.
Guard = Callable[..., Any]
#: A plain function of the records that changes its subject and returns hold commands.
Effect = Callable[..., int]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table.

    `dest` None leaves the state as it is. `why` says in words what the row is for; of a refusal
    it is what the caller is told.
    """

    trigger: IntEnum
    source: tuple[int, ...]
    dest: int | None = None
    conditions: tuple[Guard, ...] = ()
    unless: tuple[Guard, ...] = ()
    before: tuple[Effect, ...] = ()
    answer: int = GO
    why: str = ""


@dataclass(frozen=True)
class Table:
    """A machine: its states, events and rows. `parameters` are the arguments of its functions.

    The first parameter is the subject, whose field `state_field` the compiler writes.
    """

    name: str
    parameters: tuple[str, ...]
    state_field: str
    states: type[IntEnum]
    events: type[IntEnum]
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        check_total(self)

    def cell(self, state: int, event: int) -> list[tuple[int, Row]]:
        """The numbered rows that can decide about an event in a state, in order."""
        return [
            (number, row)
            for number, row in enumerate(self.rows)
            if row.trigger == event and state in row.source
        ]

    def legal_events(self, state: int) -> list[str]:
        """The names of the events that can go in a state."""
        return [
            event.name.lower()
            for event in self.events
            if any(row.answer == GO for _, row in self.cell(state, event))
        ]

    def go_rows(self) -> Iterable[tuple[int, Row]]:
        """The numbered rows that change something."""
        return ((number, row) for number, row in enumerate(self.rows) if row.answer == GO)


def check_total(table: Table) -> None:
    """Raise SpecificationError unless each cell ends in exactly one row without guards."""
    for number, row in enumerate(table.rows):
        if row.answer != GO and (row.before or row.dest is not None):
            raise SpecificationError(
                f"{table.name}: row {number} ({row.trigger.name}) answers "
                f"{Answer(row.answer).name} and yet changes something"
            )
    for state in table.states:
        for event in table.events:
            cell = table.cell(state, event)
            unguarded = [not row.conditions and not row.unless for _, row in cell]
            if not cell or not unguarded[-1]:
                raise SpecificationError(
                    f"{table.name}: {event.name} in {state.name} has no row for every case"
                )
            if any(unguarded[:-1]):
                raise SpecificationError(
                    f"{table.name}: {event.name} in {state.name} has a row that is never reached"
                )


def others(states: type[IntEnum], *named: Sequence[int]) -> tuple[int, ...]:
    """Every state that is in none of the sequences."""
    return tuple(int(state) for state in states if not any(state in some for some in named))
