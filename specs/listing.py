"""The declaration's rows in words: what `kvproof table`, the diagrams and docs/lifecycle.md show.

Everything here is read from the tables, or found by running an event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..statemachine import (
    ENGINE,
    REQUEST,
    TRANSFER,
    Answer,
    Ask,
    Command,
    EngineFacts,
    Machine,
    RequestEvent,
    RequestFacts,
    RequestState,
    Row,
    Table,
    commands_of,
    reset,
)
from ..statemachine.answers import GO
from ..statemachine.states import (
    ACTIVE,
    FINISHED,
    LIVE,
    RUNNING,
    WAITING,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
)

MACHINES: dict[str, Machine] = {"request": REQUEST, "transfer": TRANSFER, "engine": ENGINE}

#: Sets of states that have a name of their own.
GROUPS: dict[str, dict[str, tuple[int, ...]]] = {
    "request": {"live": LIVE, "finished": FINISHED},
    "transfer": {},
    "engine": {},
}


@dataclass(frozen=True, slots=True)
class NumberedRow:
    """A row with its machine and its number in the table."""

    machine: str
    number: int
    row: Row

    def as_dict(self) -> dict[str, Any]:
        """For JSON: states, events and answers by name."""
        table, row = MACHINES[self.machine].table, self.row
        return {
            "machine": self.machine,
            "row": self.number,
            "event": row.trigger.name.lower(),
            "from": [table.states(state).name for state in row.source],
            "to": None if row.dest is None else table.states(row.dest).name,
            "conditions": [guard.__name__ for guard in row.conditions],
            "unless": [guard.__name__ for guard in row.unless],
            "effects": [effect.__name__ for effect in row.before],
            "answer": Answer(row.answer).name.lower(),
            "why": row.why,
        }


def rows(machine: str, states: Sequence[int] = (), events: Sequence[int] = ()) -> list[NumberedRow]:
    """The rows of a machine, in order; `states` and `events` keep those that can decide there."""
    return [
        NumberedRow(machine, number, row)
        for number, row in enumerate(MACHINES[machine].table.rows)
        if (not states or set(states) & set(row.source))
        and (not events or int(row.trigger) in events)
    ]


def states_in_words(machine: str, states: Sequence[int]) -> str:
    """A set of states by its groups, or by the states that it lacks where that is shorter."""
    table = MACHINES[machine].table
    every = tuple(int(state) for state in table.states)
    if set(states) == set(every):
        return "any"
    for name, group in GROUPS[machine].items():
        missing = [state for state in group if state not in states]
        if set(states) < set(group) and len(missing) < 3:
            return f"{name} but {', '.join(_named(machine, missing))}"
    direct = _named(machine, states)
    rest = _named(machine, [state for state in every if state not in states])
    return ", ".join(direct) if len(direct) <= len(rest) + 1 else f"any but {', '.join(rest)}"


def _named(machine: str, states: Iterable[int]) -> list[str]:
    left, names = set(states), []
    for name, group in GROUPS[machine].items():
        if left >= set(group):
            names.append(name)
            left -= set(group)
    return names + [MACHINES[machine].table.states(state).name for state in sorted(left)]


def guards_in_words(row: Row) -> str:
    """The guards of a row as a condition; empty for one that holds always."""
    return " and ".join(
        [guard.__name__.replace("_", " ") for guard in row.conditions]
        + [f"not ({guard.__name__.replace('_', ' ')})" for guard in row.unless]
    )


def refusals_before(listed: NumberedRow) -> int:
    """How many rows can refuse the event before this one is looked at."""
    table = MACHINES[listed.machine].table
    return sum(
        row.answer != GO and row.trigger == listed.row.trigger
        for row in table.rows[: listed.number]
        if set(row.source) & set(listed.row.source)
    )


def effects_in_words(row: Row) -> str:
    """The effects of a row, in order."""
    return ", ".join(effect.__name__.replace("_", " ") for effect in row.before)


def state_named(machine: str, name: str) -> int:
    """The state of this name, in any case. KeyError names those that there are."""
    return _member(MACHINES[machine].table, "states", name)


def event_named(machine: str, name: str) -> int:
    """The event of this name, in any case. KeyError names those that there are."""
    return _member(MACHINES[machine].table, "events", name)


def _member(table: Table, kind: str, name: str) -> int:
    known = getattr(table, kind)
    if name.upper() not in known.__members__:
        # As the tables print them: states in capitals, events small.
        names = ", ".join(each.lower() if kind == "events" else each for each in known.__members__)
        raise KeyError(f"the {table.name} machine has no {kind[:-1]} {name!r}; it has {names}")
    return int(known[name.upper()])


# --- the reset -----------------------------------------------------------------------------------


def reset_table() -> list[list[str]]:
    """The table of `statemachine.reset`, head first; a test holds it equal to the functions."""
    lines = [line for line in str(reset.__doc__).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [cells[0], *cells[2:]]


@dataclass(frozen=True, slots=True)
class Forced:
    """What a forced reset did to a sample holder, by running the declaration."""

    holder: str
    before: str  # its state
    event: str  # what it is sent; "" when it refuses
    after: str
    commands: str  # what becomes of its hold
    said: str  # in a sentence

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def forced_reset() -> Iterator[Forced]:
    """What a forced reset does to one holder of each kind.

    The events are fired at sample records of three blocks, so the words describe what happened.
    """
    for holder, state in (
        ("parked session", WAITING_FOR_STREAMING_REQ),
        ("loading request", WAITING_FOR_REMOTE_KVS),
        ("running request, a step in flight", RUNNING),
        ("resident waiting request", WAITING),
    ):
        name = RequestState(state).name
        if reset.request_refuses(state, resident=True, force=True):
            said = "refused, and nothing changed: its transfer is named, and it beside it"
            yield Forced(holder, name, "", name, "kept", said)
            continue
        # The engine processes what it has launched before it looks at anybody.
        e = EngineFacts(mode=ACTIVE, block_size=4, launched=5, processed=5)
        r = RequestFacts(state=state, covered=3, computed=9, written=9, hashed=2, newest_step=5)
        r.prompt, r.delivered = 7, 3
        event = RequestEvent(reset.forced_event(state))
        code = REQUEST.fire(event, r, e, Ask(forced=True))
        first = "its step's token is delivered; " if state == RUNNING else ""
        yield Forced(
            holder,
            name,
            event.name.lower(),
            RequestState(r.state).name,
            str(Command(commands_of(code)).name).lower(),
            f"{first}it keeps {r.prompt + r.delivered} of 10 tokens and {r.covered} of 3 blocks, "
            f"and recomputes from token {r.computed}",
        )
