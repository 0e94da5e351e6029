"""S9: the three tables are total, and each row does what it says and nothing else.

Totality and exclusion are shown of the compiled cells themselves; that a cell is its rows is
shown guard by guard and effect by effect; what each event promises is written down a second time,
in `promises`, and both directions are shown: it goes exactly when it should, and then does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...statemachine.answers import GO, IGNORE, REJECT, Command
from ...statemachine.compile import Cell
from ...statemachine.table import Row
from ..symbolic import Record, terms
from ..symbolic.terms import BoolTerm, IntTerm, Term
from .conditions import Condition, Hypotheses
from .declaration import Declaration
from .draft import SUBJECT, Draft
from .functions import functions
from .lanes import lanes
from .logic import both, either, implies, no, same
from .memory import memory
from .promises import Case, Formula, Promise
from .promises_others import ENGINE_PROMISES, TRANSFER_PROMISES
from .promises_request import PROMISES as REQUEST_PROMISES
from .proofs import Proofs
from .running import PARAMETERS, Outcome, fingerprint
from .state import Values, View

PROMISES: Mapping[str, tuple[Promise, ...]] = {
    "request": REQUEST_PROMISES,
    "transfer": TRANSFER_PROMISES,
    "engine": ENGINE_PROMISES,
}
MACHINES = tuple(PROMISES)
_COMMANDS = tuple(int(command) for command in Command)
_NOTHING = Hypotheses(terms.TRUE)


def s9(p: Proofs, unlike: Declaration | None = None) -> Iterator[Condition]:
    """The tables are total; each row does what it says.

    With another declaration: of the cells only those that are not the same code there.
    """
    if unlike is not None and unlike.sources["facts.py"] != p.declaration.sources["facts.py"]:
        unlike = None
    for machine in MACHINES:
        mine = p.declaration.machine(machine)
        other = None if unlike is None else unlike.machine(machine)
        for event in mine.table.events:
            for state in mine.table.states:
                cell = mine.cell(int(state), int(event))
                if other is None or differ(cell, other.cell(int(state), int(event))):
                    yield from _cell(p, machine, int(state), int(event))
    yield from functions(p, _NOTHING)
    yield from lanes(p, _NOTHING)


def differ(cell: Cell, other: Cell) -> bool:
    """Whether two cells are not the same code."""
    return cell is not other and fingerprint(cell) != fingerprint(other)


def _cell(p: Proofs, machine: str, state: int, event: int) -> Iterator[Condition]:
    """The conditions of one cell; those of another copy, if its cell is the same code."""
    function = p.declaration.machine(machine).cell(state, event)
    if p.variables.readable:  # what is remembered is what was executed
        yield from _of_cell(p, machine, state, event)
        return
    key = (machine, state, event, fingerprint(function), p.declaration.sources["facts.py"])
    if key not in _asked:
        _asked[key] = tuple(_of_cell(p, machine, state, event))
    yield from _asked[key]


#: The conditions of cells that were looked at before.
_asked: dict[tuple[object, ...], tuple[Condition, ...]] = memory()


def _of_cell(p: Proofs, machine: str, state: int, event: int) -> Iterator[Condition]:
    table = p.declaration.machine(machine).table
    where = f"{table.events(event).name.lower()} in {table.states(state).name}"
    name = table.events(event).name.lower()
    outcomes = p.running.cell(machine, state, event)
    rows = dict.fromkeys(_decides(outcome.row) for outcome in outcomes)
    yield Condition(
        "S9", "total", "some row decides", where, _NOTHING,
        either(*(p.named(words, terms.TRUE) for words in rows)) if p.variables.readable
        else either(*(outcome.condition for outcome in outcomes)),
    )  # fmt: skip
    refused = [outcome for outcome in outcomes if outcome.answer != GO]
    idle = all(not outcome.writes and not outcome.commands for outcome in refused)
    yield Condition(
        "S9", "nothing else", "what does not go changes nothing and commands nothing", where,
        _NOTHING, _nothing_else(p, machine, name) if idle else terms.FALSE,
    )  # fmt: skip
    yield from _promised(p, machine, state, event, where)
    start = Draft(p.variables, _here(p, machine, state))
    earlier: list[BoolTerm] = []
    for number, row in table.cell(state, event):
        taken = both(
            *(_guard(p, start, guard, machine) for guard in row.conditions),
            *(no(_guard(p, start, guard, machine)) for guard in row.unless),
        )
        decided = p.named(
            _decides(number),
            either(*(outcome.condition for outcome in outcomes if outcome.row == number)),
        )
        yield Condition(
            "S9", "in order", f"row {number} decides exactly where its guards are the first",
            where, _NOTHING, same(decided, both(taken, no(either(*earlier)))),
        )  # fmt: skip
        earlier.append(taken)
        for outcome in outcomes:
            if outcome.row == number and outcome.answer == GO:
                yield from _effects(p, start, row, outcome, where)


def _here(p: Proofs, machine: str, state: int) -> Values:
    """The cell's state; for people its name, which comes with the condition, is enough."""
    return {} if p.variables.readable else {SUBJECT[machine]: terms.number(state)}


def _decides(row: int) -> str:
    return f"row {row} decides"


def _nothing_else(p: Proofs, machine: str, name: str) -> BoolTerm:
    """What does not go leaves all records that the event is given, and commands nothing."""
    if not p.variables.readable:
        return terms.TRUE
    unchanged = [p.named(f"({record}' = {record})", terms.TRUE) for record in PARAMETERS[machine]]
    goes = p.named(f"{name} goes", terms.FALSE)
    return implies(no(goes), both(*unchanged, p.named("it commands nothing", terms.TRUE)))


def _promised(p: Proofs, machine: str, state: int, event: int, where: str) -> Iterator[Condition]:
    """The event goes exactly when its promise says so, and then does what it says."""
    promise = next(each for each in PROMISES[machine] if each.event == event)
    outcomes = p.running.cell(machine, state, event)
    name = p.declaration.machine(machine).table.events(event).name.lower()
    at = p.variables.view(_here(p, machine, state))
    cases = [_Said.of(case, at) for case in promise.cases if state in case.sources]

    def answered(answer: int, words: str) -> BoolTerm:
        found = either(*(each.condition for each in outcomes if each.answer == answer))
        return p.named(f"{name} {words}", found)

    def promised(formula: Formula, answer: int) -> BoolTerm:
        return formula(at) if cases else terms.constant(promise.elsewhere == answer, "bool")

    yield Condition(
        "S9", "both directions", "it goes, is refused and is ignored where it should",
        where, _NOTHING, both(
            same(answered(GO, "goes"), either(*(case.when for case in cases))),
            same(answered(REJECT, "is refused"), promised(promise.rejects, REJECT)),
            same(answered(IGNORE, "is ignored"), promised(promise.ignores, IGNORE)),
        ),
        cell=(machine, state, event),
    )  # fmt: skip
    for outcome in outcomes:
        if outcome.answer == GO:
            yield Condition(
                "S9", "both directions", "what goes does what it should, and nothing else", where,
                _NOTHING, both(*(_kept(p, at, case, outcome) for case in cases)),
                cell=(machine, state, event),
            )  # fmt: skip


@dataclass(frozen=True)
class _Said:
    """What a case says of one state."""

    dest: int | None
    when: BoolTerm
    sets: Mapping[str, Term | int | bool]
    commands: Mapping[int, BoolTerm]

    @classmethod
    def of(cls, case: Case, at: View) -> _Said:
        return cls(case.dest, case.when(at), case.sets(at), case.commands(at))


def _kept(p: Proofs, at: View, case: _Said, outcome: Outcome) -> BoolTerm:
    """The outcome sets what the case says, leaves all other facts, commands what it says."""
    field = SUBJECT[outcome.machine]
    record = field.partition(".")[0]
    dest = outcome.state if case.dest is None else case.dest
    facts = {field: dest, **{f"{record}.{name}": v for name, v in case.sets.items()}}
    goals = []
    for name in {**facts, **outcome.writes}:
        before = at.value(*name.split("."))
        left: Any = facts.get(name, before)
        wanted = left if terms.is_term(left) else terms.constant(int(left), p.variables.kinds[name])
        found = outcome.writes.get(name, before)
        if p.variables.readable or not terms.same(found, wanted):
            goals.append(terms.equal(p.left(name, found), wanted))
    for bit in _COMMANDS:
        wanted = case.commands.get(bit, terms.FALSE)
        goals.append(_commanded(p, bit, outcome.commands, wanted))
    return implies(both(p.named(_decides(outcome.row), outcome.condition), case.when), both(*goals))


def _commanded(p: Proofs, bit: int, commands: int, wanted: BoolTerm) -> BoolTerm:
    """The command is among what the cell commands exactly if it is wanted."""
    if p.variables.readable:
        commanded = p.named(f"commands({Command(bit).name})", terms.FALSE)
        known = terms.as_constant(wanted)
        if known is None:
            return same(commanded, wanted)
        return commanded if known else no(commanded)
    return wanted if commands & bit else no(wanted)


def _guard(p: Proofs, at: Draft, function: Callable[..., Any], machine: str) -> BoolTerm:
    effect = p.running.effect_of(function, **_records(p, function, machine))
    result = effect.result
    if not terms.is_term(result):
        return terms.constant(bool(result), "bool")
    if terms.kind_of(result) == "int":
        result = result != 0
    return at.substituted(result)


def _records(p: Proofs, function: Callable[..., Any], machine: str) -> dict[str, Record]:
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    return {
        name: p.running.records[record]
        for name, record in zip(names, PARAMETERS[machine], strict=True)
    }


def _effects(
    p: Proofs, start: Draft, row: Row, outcome: Outcome, where: str
) -> Iterator[Condition]:
    """The row's effects one after the other leave what the compiled cell leaves."""
    draft = start
    results: list[Term | int] = []
    for function in row.before:
        records = _records(p, function, outcome.machine)
        effect = p.running.effect_of(function, **records)
        result = effect.result
        results.append(draft.substituted(result) if terms.is_term(result) else result or 0)
        draft = draft.after(effect)
    dest = row.dest
    if dest is not None:
        draft = draft.put(**{SUBJECT[outcome.machine].replace(".", "__"): terms.number(int(dest))})
    values: Values = draft.values
    state = terms.number(outcome.state)
    goals = []
    for name in {**values, **outcome.writes}:
        before = p.variables.terms[name]
        if name == SUBJECT[outcome.machine] and not p.variables.readable:
            before = state
        left, found = values.get(name, before), outcome.writes.get(name, before)
        if p.variables.readable:
            goals.append(terms.equal(p.left(name, found), left))
        elif not terms.same(left, found):
            goals.append(terms.equal(left, found))
    goals.append(_commands(p, results, outcome.commands))
    yield Condition(
        "S9", "effects", f"row {outcome.row} leaves what its effects leave, and commands what they "
        "command", where, _NOTHING,
        implies(p.named(_decides(outcome.row), outcome.condition), both(*goals)),
    )  # fmt: skip


def _commands(p: Proofs, results: list[Term | int], commands: int) -> BoolTerm:
    """The bits of the effects' results together are exactly these commands."""
    goals = []
    for bit in _COMMANDS:
        given = either(*(_has(result, bit) for result in results))
        goals.append(_commanded(p, bit, commands, given))
    return both(*goals)


def _has(result: Term | int, bit: int) -> BoolTerm:
    if not terms.is_term(result):
        return terms.constant(bool(int(result) & bit), "bool")
    quotient: IntTerm = result / terms.number(bit)
    return quotient % terms.number(2) == 1
