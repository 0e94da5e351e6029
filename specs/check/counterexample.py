"""A refuted condition for people: the event, the state before and after, the broken statement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...statemachine.answers import Answer
from ..symbolic import terms
from ..symbolic.terms import BoolTerm, Term
from .conditions import Condition, Decided
from .draft import Call
from .logic import implies
from .pretty import pretty, value_name
from .proofs import Proofs
from .search import STATES, breaks, search
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
        if self.script is not None:
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
    statement = _statement(proofs, failure.condition)
    if statement is None:
        return found
    searched = search(proofs.declaration, breaks(statement, found.action), states=states)
    script = searched.script.steps if searched.script is not None else None
    return replace(found, script=script, searched=str(searched))


def _statement(proofs: Proofs, condition: Condition) -> BoolTerm | None:
    """The refuted statement over concrete states; None if it speaks of no state."""
    if condition.possible or condition.hypotheses.formulas[0] is terms.TRUE:
        return None
    if condition.hypotheses is proofs.invariant:  # of a state, "no change" included
        statement = condition.goal
    elif condition.template is not None:
        statement = condition.template
    elif condition.part == "initiation":
        statement = condition.goal
    else:
        statement = implies(condition.hypotheses.formula, condition.goal)
    known = proofs.variables.kinds
    mentioned = [name.rstrip("'") for name in terms.variables([statement])]
    return statement if all(name in known for name in mentioned) else None


def counterexample(proofs: Proofs, failure: Decided) -> Counterexample:
    """What the solver found against a condition."""
    condition = failure.condition
    model = failure.model
    transition = condition.transition
    mentioned = set(terms.variables([condition.goal, condition.hypotheses.formula]))

    def value(term: Term) -> Number:
        return terms.as_constant(model.eval(term, model_completion=True))

    before: dict[str, Number] = {}
    after: dict[str, Number] = {}
    told: dict[str, Number] = {}
    if model is not None:
        state = set(proofs.variables.state)
        for name, term in proofs.variables.terms.items():
            if name in state:
                written = transition is not None and name in transition.after.values
                if name in mentioned or written:
                    before[name] = value(term)
                    after[name] = (
                        value(transition.after.values[name])
                        if transition is not None and name in transition.after.values
                        else before[name]
                    )
            elif name in mentioned:
                told[name] = value(term)
    return Counterexample(
        condition.obligation,
        condition.part,
        condition.words,
        condition.about if transition is None else _who(condition),
        _formula(condition),
        transition.action if transition is not None else "",
        tuple(_fired(proofs, call) for call in transition.calls) if transition else (),
        told,
        before,
        after,
    )


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
