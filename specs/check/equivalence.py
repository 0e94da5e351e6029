"""Whether two copies of the declaration are equivalent: proved, not guessed.

Each function that can be called and differs in its code has the same effects and answers under
every condition. What cannot be shown equal counts as different.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType

from ..symbolic import terms
from ..symbolic.terms import BoolTerm, Term
from .conditions import Condition, Hypotheses, Prover, Verdict
from .declaration import Declaration
from .functions import effect_of, is_own
from .logic import both, either, implies, no
from .rows import differ
from .running import Effect, Outcome, Running, fingerprint
from .system import ENUMS


def equivalent(original: Declaration, changed: Declaration, prover: Prover) -> bool:
    """Whether everything that can be called has the same effects in both."""
    one, other = Running(original), Running(changed)
    goals = [*_cells(one, other), *_functions(one, other)]
    always = Hypotheses(terms.TRUE)
    return all(
        prover.decide_one(Condition("", "equivalence", "", "", always, goal)).verdict
        is Verdict.PROVED
        for goal in goals
    )


def _cells(one: Running, other: Running) -> Iterator[BoolTerm]:
    for machine, (states, events) in ENUMS.items():
        for state in states:
            for event in events:
                at = int(state), int(event)
                cells = [each.declaration.machine(machine).cell(*at) for each in (one, other)]
                if differ(*cells):
                    mine, theirs = one.cell(machine, *at), other.cell(machine, *at)
                    yield from _same_outcomes(one, mine, theirs)


def _same_outcomes(
    running: Running, mine: Sequence[Outcome], theirs: Sequence[Outcome]
) -> Iterator[BoolTerm]:
    """Where two outcomes meet they answer, command and write the same."""
    for left in mine:
        for right in theirs:
            meet = both(left.condition, right.condition)
            same = left.answer == right.answer and left.commands == right.commands
            if not same:
                yield no(meet)
            else:
                yield implies(meet, _same_writes(running, left.writes, right.writes))


def _functions(one: Running, other: Running) -> Iterator[BoolTerm]:
    """Functions of the declaration that no cell reaches: blocks, policy, lanes, reset."""
    for module in ("blocks", "policy", "lanes", "reset", "request"):
        for name, function in vars(one.declaration.modules[module]).items():
            theirs = getattr(other.declaration.modules[module], name, None)
            if not is_own(function, module) or not isinstance(theirs, FunctionType):
                continue
            if fingerprint(function) != fingerprint(theirs):
                yield _same_effects(one, effect_of(one, function), effect_of(other, theirs))


def _same_effects(running: Running, mine: Effect, theirs: Effect) -> BoolTerm:
    return both(
        _same_writes(running, mine.writes, theirs.writes),
        *([] if mine.result is None else [_term(mine.result) == _term(theirs.result)]),
    )


def _term(value: Term | int | None) -> Term:
    if terms.is_term(value):
        return value
    return terms.constant(int(value or 0), "bool" if isinstance(value, bool) else "int")


def _same_writes(running: Running, left: Mapping[str, Term], right: Mapping[str, Term]) -> BoolTerm:
    goals = []
    for name in {**left, **right}:
        record, _, field = name.partition(".")
        before = running.records[record].variable(field)
        goals.append(terms.equal(left.get(name, before), right.get(name, before)))
    return both(*goals) if goals else either(terms.TRUE)
