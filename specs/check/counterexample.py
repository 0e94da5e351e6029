"""A refuted condition for people: the event, the state before and after, the broken statement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...statemachine.answers import ANSWER_MASK, COMMAND_MASK, ROW_SHIFT, Answer
from ..symbolic import terms
from ..symbolic.terms import Term
from .conditions import Condition, Decided
from .draft import Call
from .logic import Substitution, implies
from .pretty import pretty, value_name
from .proofs import Proofs
from .running import PARAMETERS
from .search import STATES, Found, breaks, search
from .system import ENUMS

Number = int | bool | None


@dataclass(frozen=True)
class Fired:
    """One event of the action, in words."""

    machine: str
    event: str
    source: str
    answer: str
    row: int
    why: str

    def __str__(self) -> str:
        return f"{self.event} of the {self.machine} in {self.source}: {self.answer}, “{self.why}”"


@dataclass(frozen=True)
class Counterexample:
    """A state, and what happens in it, that break a statement."""

    obligation: str
    part: str
    broken: str
    who: str
    formula: str
    action: str
    events: tuple[Fired, ...]
    told: Mapping[str, Number]
    before: Mapping[str, Number]
    after: Mapping[str, Number]
    #: The shortest script of events from the start that reaches it, if one was found.
    script: tuple[str, ...] | None = None
    searched: str = ""

    def changed(self) -> dict[str, tuple[Number, Number]]:
        """The facts that the action changes."""
        return {
            name: (value, self.after[name])
            for name, value in self.before.items()
            if self.after[name] != value
        }

    def lines(self) -> list[str]:
        """For people, one fact a line."""
        lines = [f"{self.obligation} {self.part}: {self.broken}"]
        if self.who:
            lines.append(f"  of {self.who}")
        lines.append(f"  broken: {self.formula}")
        lines += [f"  event: {event}" for event in self.events]
        if self.action and not self.events:
            lines.append(f"  event: {self.action}")
        changed = self.changed()
        for name, value in self.before.items():
            shown = value_name(name, value)
            if name in changed:
                shown += f" → {value_name(name, self.after[name])}"
            elif not value:
                continue
            lines.append(f"    {name}: {shown}")
        told = [f"{name}={value_name(name, value)}" for name, value in self.told.items() if value]
        if told:
            lines.append(f"  told: {', '.join(told)}")
        if self.script:
            lines.append("  shortest script from the start:")
            lines += [f"    {number}. {step}" for number, step in enumerate(self.script, 1)]
        elif self.searched:
            lines.append(f"  {self.searched}")
        return lines


def with_script(
    proofs: Proofs, failure: Decided, found: Counterexample, *, states: int = STATES
) -> Counterexample:
    """The same with the shortest script of events that reaches it, if the search finds one.

    `states` is how many states of each tiny instance are looked at.
    """
    if failure.condition.part == "initiation":
        return replace(found, script=(), searched=AT_THE_START)
    asked = _looked_for(proofs, failure.condition, found)
    if asked is None:
        return replace(found, searched=OF_THE_CODE)
    of_engine = all(name.partition(".")[0] == "e" for name in asked.mentioned)
    searched = search(proofs.declaration, asked.found, states=states, engine=of_engine)
    script = searched.script.steps if searched.script is not None else None
    return replace(found, script=script, searched=str(searched))


#: Why no script is looked for.
OF_THE_CODE = "a statement about the code: it is to hold of every state, whether reached or not"
AT_THE_START = "it does not hold at the start"


@dataclass(frozen=True)
class _Asked:
    """What a script has to reach, and the variables of the state that it mentions."""

    found: Found
    mentioned: frozenset[str]


def _looked_for(proofs: Proofs, condition: Condition, example: Counterexample) -> _Asked | None:
    """What breaks the refuted statement over concrete states; None if it speaks of none."""
    if condition.possible or condition.hypotheses.formulas[0] is terms.TRUE:
        return None
    own = condition.transition is not None and condition.part != "consecution"
    if condition.hypotheses is proofs.invariant:  # of a state, "no change" included
        statement = condition.goal
    elif condition.template is not None:
        statement = condition.template
    else:
        statement = implies(condition.hypotheses.formula, condition.goal)
    known = proofs.variables.terms
    if condition.transition is None:  # it speaks of any telling; the refuted one is looked for
        told = [
            (known[name], terms.constant(value, proofs.variables.kinds[name]))
            for name, value in example.told.items()
            if value is not None
        ]
        statement = Substitution(told).of(statement)
    state = set(proofs.variables.state)
    names = [_unprimed(name) for name in terms.variables([statement])]
    mentioned = frozenset(name for name in names if name in state)
    if not mentioned or not all(name in known for name in names):
        return None
    return _Asked(breaks(statement, example.action, step=own), mentioned)


def _unprimed(name: str) -> str:
    return name.rstrip("'")


def counterexample(proofs: Proofs, failure: Decided) -> Counterexample:
    """What the solver found against a condition."""
    condition, model, transition = failure.condition, failure.model, failure.condition.transition
    variables = proofs.variables
    mentioned = set(terms.variables([condition.goal, condition.hypotheses.formula]))
    events = tuple(_fired(proofs, call) for call in transition.calls) if transition else ()
    found: dict[str, Number] = {}
    left: dict[str, Number] = {}
    if model is not None:

        def value(term: Term) -> Number:
            return terms.as_constant(model.eval(term, model_completion=True))

        found = {name: value(term) for name, term in variables.terms.items()}
        if transition is not None:
            left = {name: value(term) for name, term in transition.after.values.items()}
        elif condition.cell is not None:
            call, left = _by_cell(proofs, condition.cell, found)
            events = (_fired(proofs, call),)
    shown = [name for name in variables.state if found and (name in mentioned or name in left)]
    return Counterexample(
        condition.obligation,
        condition.part,
        condition.words,
        condition.about if transition is None else _who(condition),
        _formula(condition),
        transition.action if transition is not None else "",
        events,
        {
            name: given
            for name, given in found.items()
            if name in mentioned and name not in variables.state
        },
        {name: found[name] for name in shown},
        {name: left.get(name, found[name]) for name in shown},
    )


def _by_cell(
    proofs: Proofs, cell: tuple[str, int, int], found: dict[str, Number]
) -> tuple[Call, dict[str, Number]]:
    """Fire the event on these facts; how it went, and its subject's facts afterwards.

    The subject's state is that of the cell, in `found` too.
    """
    machine, state, event = cell
    declared = proofs.declaration.machine(machine)
    facts = vars(proofs.declaration.modules["facts"])
    first = PARAMETERS[machine][0]
    state_field = f"{first}.{declared.table.state_field}"
    found[state_field] = state
    records: list[Any] = []
    for name in PARAMETERS[machine]:
        record = object.__new__(facts[_RECORDS[name]])
        for fact in record.KINDS:
            setattr(record, fact, found[f"{name}.{fact}"])
        records.append(record)
    code = declared.fire(event, *records)
    call = Call(machine, event, state, code >> ROW_SHIFT, code & ANSWER_MASK, code & COMMAND_MASK)
    left = {f"{first}.{fact}": getattr(records[0], fact) for fact in records[0].KINDS}
    changed = {name: now for name, now in left.items() if now != found[name]}
    return call, {state_field: left[state_field], **changed}


_RECORDS = {
    "r": "RequestFacts", "t": "TransferFacts", "e": "EngineFacts",
    "ask": "Ask", "transfer_ask": "TransferAsk", "engine_ask": "EngineAsk",
}  # fmt: skip


def _who(condition: Condition) -> str:
    return "" if condition.part != "consecution" else str(condition.about)


def _formula(condition: Condition) -> str:
    """The statement itself, before the action's values were put in."""
    return pretty(condition.goal if condition.template is None else condition.template)


def _fired(proofs: Proofs, call: Call) -> Fired:
    table = proofs.declaration.machine(call.machine).table
    states, events = ENUMS[call.machine]
    return Fired(
        call.machine,
        events(call.event).name.lower(),
        states(call.source).name,
        Answer(call.answer).name.lower(),
        call.row,
        table.rows[call.row].why,
    )
