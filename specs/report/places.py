"""Which lines of the declaration a refuted condition is about.

A condition is about an action (rows of the tables, with their effects and guards, and what they
command of a block), a cell of a table, or functions that a formula names. Of what took part, those
come first that write what the broken statement speaks of; then what let the event go; then the
rest. It is a pointer for a reader, no proof of guilt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import z3

from ...statemachine.answers import GO
from ...statemachine.table import Row
from ..check.conditions import Condition, Decided
from ..check.draft import SUBJECT, Call
from ..check.obligations import BY_ID
from ..check.proofs import Move, Proofs
from ..symbolic import terms
from .sources import Place, Sources

#: What an action does beside the rows that it takes.
_BESIDE: dict[str, tuple[tuple[str, str], ...]] = {
    "step_processed": (("blocks", "step_processed"),),
    "evict": (("blocks", "drop"),),
    "reset": (
        ("reset", "sent_event"),
        ("reset", "drops_prefixes"),
        ("blocks", "drop"),
        ("reset", "clears_tier"),
        ("reset", "request_refuses"),
        ("reset", "transfer_refuses"),
    ),
}
#: Of a reset's functions the one that decides about a record.
_DECIDES = {"b": "drops_prefixes", "more": "clears_tier", "t": "transfer_refuses"}
#: Records of which an event speaks by commands, which the block functions carry out.
_BY_COMMAND = ("held", "held2", "b", "place", "place2", "more", "copy", "others")

_Where = tuple[str, str]


class Blame:
    """Finds the places of one declaration's conditions."""

    def __init__(self, proofs: Proofs) -> None:
        self._proofs = proofs
        self._sources = Sources(proofs.declaration)
        self._named: dict[tuple[str, str, str], tuple[str, ...]] = {}

    def places(self, failure: Decided) -> tuple[Place, ...]:
        """What to look at, the likeliest first; never empty."""
        condition = failure.condition
        if condition.transition is not None:
            found = self._of_action(condition)
        elif condition.obligation == "S9":
            found = self._of_cell(failure)
        else:
            found = self._of_statement(condition)
        return tuple(dict.fromkeys(found or self._of_nobody(condition)))[:_MOST]

    # --- actions --------------------------------------------------------------------------------

    def _of_action(self, condition: Condition) -> list[Place]:
        transition = condition.transition
        assert transition is not None
        speaks_of = {
            name.rstrip("'")
            for name in terms.variables(
                [condition.goal if condition.template is None else condition.template]
            )
        }
        move = condition.written
        changed = speaks_of & move.written if isinstance(move, Move) else set()
        writers: list[_Where] = []
        guards: list[_Where] = []
        effects: list[_Where] = []
        rows: list[Place] = []
        for call in transition.calls:
            row = self._row(call)
            guards += self._guards(call)
            if call.answer != GO:
                continue
            mine = self._writers(call.machine, row, changed)
            if SUBJECT[call.machine] in changed and not mine:
                rows.append(self._sources.row(call.machine, call.row))
            writers += mine
            effects += [_where(effect) for effect in row.before]
        fields = {name.partition(".")[2] for name in speaks_of}
        guards.sort(key=lambda where: not self._sources.reads(*where) & fields)
        beside = list(_BESIDE.get(transition.action, ())) if changed else []
        decisive = [_DECIDES.get(name.partition(".")[0], "sent_event") for name in sorted(changed)]
        beside.sort(key=lambda where: where[1] not in decisive)
        return [
            *self._functions([*beside, *writers]),
            *rows,
            *self._functions(self._carried_out(transition.calls, changed)),
            # Where nothing that it speaks of is written, what let the event go is at fault.
            *self._functions(self._all_reached(guards)),
            *(self._sources.row(call.machine, call.row) for call in transition.calls),
            *self._functions(self._all_reached([*writers, *effects, *beside])),
            *self._functions(_BESIDE.get(transition.action, ())),
        ]

    def _guards(self, call: Call) -> list[_Where]:
        """What let the row decide: its guards, and those of the rows above that did not refuse."""
        table = self._proofs.declaration.machine(call.machine).table
        above = [row for number, row in table.cell(call.source, call.event) if number <= call.row]
        return [_where(each) for row in above[::-1] for each in (*row.conditions, *row.unless)]

    def _writers(self, machine: str, row: Row, changed: set[str]) -> list[_Where]:
        """The row's effects that set what the statement speaks of, or command it of the block."""
        subject = SUBJECT[machine].partition(".")[0]
        fields = {
            name.partition(".")[2] for name in changed if name.partition(".")[0] in (subject, "e")
        }
        commanded = any(name.partition(".")[0] in _BY_COMMAND for name in changed)
        effects = [_where(effect) for effect in row.before]
        return [
            *(each for each in effects if self._sources.writes(*each) & fields),
            *(each for each in effects if commanded and self._sources.commands(*each)),
        ]

    def _carried_out(self, calls: Iterable[Call], changed: set[str]) -> Iterator[_Where]:
        """The block functions that carry out what the rows command."""
        machines = dict.fromkeys(call.machine for call in calls if call.commands)
        for machine in machines:
            name = {"request": "request_command", "transfer": "transfer_command"}.get(machine)
            if name is not None:
                yield "blocks", name
        fields = {name.partition(".")[2] for name in changed if name.startswith(("b.", "held"))}
        for machine in machines:
            for where in self._sources.reached("blocks", f"{machine}_command"):
                if self._sources.writes(*where) & fields:
                    yield where
        if "b.cached" in changed:
            yield "blocks", "publish"

    # --- cells ----------------------------------------------------------------------------------

    def _of_cell(self, failure: Decided) -> list[Place]:
        condition = failure.condition
        if condition.part == "lanes":
            lane = self._sources.function("lanes", condition.about)
            return [lane] if lane is not None else []
        event, _, state = condition.about.partition(" in ")
        for machine in SUBJECT:
            table = self._proofs.declaration.machine(machine).table
            if state not in table.states.__members__:
                continue
            where = (int(table.states[state]), int(table.events[event.upper()]))
            cell = table.cell(*where)
            decided = self._decided(failure, machine, *where)
            mine = [(number, row) for number, row in cell if decided in (None, number)] or cell
            above = [row for number, row in cell if decided is None or number <= decided]
            effects = [_where(effect) for _, row in mine for effect in row.before]
            guards = [
                _where(each) for row in above[::-1] for each in (*row.conditions, *row.unless)
            ]
            rows = [self._sources.row(machine, number) for number, _ in mine]
            says_how = condition.words.startswith("what goes does")
            first = effects if says_how else guards
            found = self._functions(self._all_reached(first))
            return [*found, *rows] if says_how else [*rows, *found]
        return []

    def _decided(self, failure: Decided, machine: str, state: int, event: int) -> int | None:
        """The row that decides in the state that refutes the condition, if there is one."""
        if failure.model is None:
            return None
        for outcome in self._proofs.running.cell(machine, state, event):
            held = failure.model.eval(outcome.condition, model_completion=True)
            if terms.as_constant(held) is True:
                return outcome.row
        return None

    # --- statements about no action ---------------------------------------------------------------

    def _of_statement(self, condition: Condition) -> list[Place]:
        found: list[Place] = []
        for name in self._names(condition) if condition.part != "initiation" else ():
            if name.endswith(" goes"):
                found += self._of_event(name.removesuffix(" goes"))
                continue
            module = self._sources.module_of(name)
            if module is not None:
                found += self._functions(self._sources.reached(module, name))
        return found

    def _of_event(self, name: str) -> Iterator[Place]:
        """The guards of an event's rows, then the rows."""
        for machine in SUBJECT:
            table = self._proofs.declaration.machine(machine).table
            event = table.events.__members__.get(name.upper())
            rows = [pair for pair in enumerate(table.rows) if pair[1].trigger == event]
            guards = [_where(each) for _, row in rows for each in (*row.conditions, *row.unless)]
            yield from self._functions(self._all_reached(guards))
            yield from (self._sources.row(machine, number) for number, _ in rows)

    def _names(self, condition: Condition) -> tuple[str, ...]:
        """The functions and events that the statement names, when it is written for people."""
        key = (condition.obligation, condition.part, condition.words)
        if key not in self._named:
            variables = self._proofs.variables
            variables.readable = True
            try:
                goals = [
                    each.goal
                    for each in BY_ID[condition.obligation].own(self._proofs)
                    if (each.part, each.words) == key[1:] and each.transition is None
                ]
            finally:
                variables.readable = False
            self._named[key] = tuple(
                dict.fromkeys(name for goal in goals for name in _called(goal))
            )
        return self._named[key]

    # --- helpers --------------------------------------------------------------------------------

    def _of_nobody(self, condition: Condition) -> list[Place]:
        """Where nothing better is known: the table of whom the condition speaks."""
        machine = {"r": "request", "t": "transfer"}.get(condition.about[:1], "engine")
        machine = condition.about if condition.about in SUBJECT else machine
        return [self._sources.table(machine)]

    def _row(self, call: Call) -> Row:
        return self._proofs.declaration.machine(call.machine).table.rows[call.row]

    def _all_reached(self, functions: Iterable[_Where]) -> Iterator[_Where]:
        for where in functions:
            yield from self._sources.reached(*where)

    def _functions(self, functions: Iterable[_Where]) -> Iterator[Place]:
        for where in functions:
            place = self._sources.function(*where)
            if place is not None:
                yield place


#: Places of one condition: a code host shows a few beside the first.
_MOST = 40


def _where(function: Callable[..., Any]) -> _Where:
    return function.__module__.rpartition(".")[2], function.__name__


def _called(formula: Any) -> Iterator[str]:
    """The names in a formula that are no variables of the state."""
    seen, waiting = set(), [formula]
    while waiting:
        term = waiting.pop()
        if term.get_id() in seen:
            continue
        seen.add(term.get_id())
        waiting += term.children()
        if z3.is_app(term) and term.decl().kind() == z3.Z3_OP_UNINTERPRETED:
            name = str(term.decl().name())
            if "." not in name:
                yield name
