"""The compiled dispatch and the `transitions` machine are the same machine.

Every state, every event and every truth value of each guard goes through both: the guards are
replaced by stubs, the effects by recorders, so that what is compared is the tables' logic alone.
"""

import dataclasses
import itertools
from collections.abc import Callable

import pytest
from kvproof.statemachine import Machine, Row, Table, as_transitions_machine, compile_table

from .records import MACHINES, NAMES, RECORDS, cells


class Stubs:
    """A table whose guards answer what `truth` says and whose effects note that they ran."""

    def __init__(self, table: Table) -> None:
        self.truth: dict[str, bool] = {}
        self.ran: list[str] = []
        self._stubs: dict[Callable[..., object], Callable[..., object]] = {}
        self.table = dataclasses.replace(table, rows=tuple(self._row(row) for row in table.rows))

    def _row(self, row: Row) -> Row:
        return dataclasses.replace(
            row,
            conditions=tuple(self._of(guard, self._guard) for guard in row.conditions),
            unless=tuple(self._of(guard, self._guard) for guard in row.unless),
            before=tuple(self._of(effect, self._effect) for effect in row.before),
        )

    def _of(self, function: Callable[..., object], make: Callable[[str, int], object]) -> object:
        """One stub for a function, the same in every row."""
        if function not in self._stubs:
            stub = make(function.__name__, len(self._stubs))
            stub.__name__ = function.__name__
            self._stubs[function] = stub
        return self._stubs[function]

    def _guard(self, name: str, _: int) -> Callable[..., bool]:
        return lambda *records: self.truth[name]

    def _effect(self, name: str, number: int) -> Callable[..., int]:
        def note(*records: object) -> int:
            self.ran.append(name)
            return 1 << (2 + number % 12)

        return note

    def guards_of(self, state: int, event: int) -> list[str]:
        """The names of the guards that can matter in a cell."""
        rows = [row for _, row in self.table.cell(state, event)]
        return sorted({g.__name__ for row in rows for g in (*row.conditions, *row.unless)})


def differences(table: Table, compiled: Machine, stubs: Stubs) -> tuple[int, list[str]]:
    """How many cases were compared, and those in which the two machines differ."""
    subject, machine = as_transitions_machine(table, min(table.states))
    records = [kind() for kind in RECORDS[table.name]]
    compared, different = 0, []
    for state, event in cells(compiled):
        guards = stubs.guards_of(state, event)
        for values in itertools.product((False, True), repeat=len(guards)):
            stubs.truth = dict(zip(guards, values, strict=True))
            stubs.ran.clear()
            setattr(records[0], table.state_field, state)
            code = compiled.cell(state, event)(*records)
            one = (getattr(records[0], table.state_field), code, list(stubs.ran))

            stubs.ran.clear()
            setattr(records[0], table.state_field, state)
            machine.set_state(table.states(state).name)
            taken = getattr(subject, table.events(event).name.lower())(*records)
            assert subject.state == table.states(getattr(records[0], table.state_field)).name
            two = (getattr(records[0], table.state_field), subject.code, list(stubs.ran))
            compared += 1
            if not taken or one != two:
                different.append(f"{table.events(event).name} in {table.states(state).name}")
    return compared, different


@pytest.mark.parametrize("machine", MACHINES, ids=NAMES)
def test_both_give_the_same_end_effects_and_refusal_for_every_truth_value(machine: Machine) -> None:
    stubs = Stubs(machine.table)
    compared, different = differences(stubs.table, compile_table(stubs.table), stubs)
    assert different == []
    assert compared > len(machine.table.states) * len(machine.table.events)


def swapped(table: Table, number: int) -> Table:
    """The table with a row and the next one in the other order."""
    rows = list(table.rows)
    rows[number], rows[number + 1] = rows[number + 1], rows[number]
    return dataclasses.replace(table, rows=tuple(rows))


def test_two_rows_in_another_order_are_noticed() -> None:
    stubs = Stubs(MACHINES[2].table)
    names = [(row.trigger.name, row.why) for row in stubs.table.rows]
    number = names.index(("PAUSE_REACHED", "a launched step is not processed"))
    assert differences(swapped(stubs.table, number), compile_table(stubs.table), stubs)[1] != []


def test_a_lost_effect_is_noticed() -> None:
    stubs = Stubs(MACHINES[1].table)
    rows = [
        dataclasses.replace(row, before=()) if row.trigger.name == "GIVE_UP" else row
        for row in stubs.table.rows
    ]
    faulty = dataclasses.replace(stubs.table, rows=tuple(rows))
    found = differences(stubs.table, compile_table(faulty), stubs)[1]
    assert found == ["GIVE_UP in CANCELLING"]
