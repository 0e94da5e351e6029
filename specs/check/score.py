"""The mutation score: which obligation, if any, refutes each mutant of the declaration.

A mutant is killed by the import (it is no declaration), by the executor (it cannot be run on
symbols), or by the first obligation that refutes it. It is *equivalent* only where the solver
proves that each function that differs has the same effects and answers under every condition.
What is neither is a survivor, by name, with its change.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from ...statemachine import SpecificationError
from ..symbolic import SymbolicError, terms
from ..symbolic.terms import BoolTerm, Term
from .conditions import Condition, Hypotheses, Prover, Verdict
from .declaration import Change, Declaration, standard
from .logic import both, either, implies, no
from .mutants import Mutant, mutants
from .obligations import BY_ID, OBLIGATIONS
from .proofs import Proofs
from .running import Effect, Outcome, Running, fingerprint
from .system import ENUMS

IMPORT = "the import"
EXECUTOR = "the executor"
EQUIVALENT = "equivalent"
SURVIVES = ""
#: The obligation that is asked first: it looks at cells alone.
_FIRST = "S9"


@dataclass(frozen=True)
class Fate:
    """What became of one mutant: who killed it, EQUIVALENT, or SURVIVES."""

    mutant: Mutant
    change: Change | None
    by: str
    #: What was broken, in words.
    broken: str = ""


def sample(every: Sequence[Mutant], count: int, seed: int = 0) -> list[Mutant]:
    """Some mutants, the same ones for the same seed, in their order."""
    chosen = random.Random(seed).sample(range(len(every)), min(count, len(every)))
    return [every[index] for index in sorted(chosen)]


def score(
    chosen: Iterable[Mutant] | None = None,
    *,
    declaration: Declaration | None = None,
    prover: Prover | None = None,
) -> Iterator[Fate]:
    """The fates of some mutants, all if none are chosen."""
    original = declaration or standard()
    asked = mutants(original.sources) if chosen is None else chosen
    prover = prover or Prover()
    for mutant in asked:
        yield _fate(original, mutant, prover)


def _fate(original: Declaration, mutant: Mutant, prover: Prover) -> Fate:
    try:
        changed = original.edited(mutant.edit)
    except SpecificationError as error:
        return Fate(mutant, None, IMPORT, str(error))
    try:
        proofs = Proofs(changed, prover)
        ids = [_FIRST, *(each.id for each in OBLIGATIONS if each.id != _FIRST)]
        for name in ids:
            condition = _refuted(BY_ID[name].conditions(proofs), prover)
            if condition is not None:
                words = f"{condition.words} ({condition.about})"
                return Fate(mutant, changed.change, name, words)
        if _equivalent(original, changed, prover):
            return Fate(mutant, changed.change, EQUIVALENT)
    except SymbolicError as error:
        return Fate(mutant, changed.change, EXECUTOR, str(error))
    return Fate(mutant, changed.change, SURVIVES)


def _refuted(conditions: Iterable[Condition], prover: Prover) -> Condition | None:
    for condition in conditions:
        if prover.decide_one(condition).verdict is Verdict.REFUTED:
            return condition
    return None


# --- equivalence ---------------------------------------------------------------------------------


def _equivalent(original: Declaration, changed: Declaration, prover: Prover) -> bool:
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
                mine = one.cell(machine, int(state), int(event))
                theirs = other.cell(machine, int(state), int(event))
                if mine is not theirs:
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
            if not _own(function, module) or not isinstance(theirs, FunctionType):
                continue
            if fingerprint(function) != fingerprint(theirs):
                yield _same_effects(one, _called(one, function), _called(other, theirs))


def _own(function: object, module: str) -> bool:
    return (
        isinstance(function, FunctionType)
        and function.__module__.endswith(f".{module}")
        and not function.__name__.startswith("_")
    )


def _called(running: Running, function: Callable[..., object]) -> Effect:
    """A function's effect on arbitrary arguments, by what its parameters are called."""
    code = function.__code__
    given: dict[str, Any] = {}
    for name in code.co_varnames[: code.co_argcount]:
        if name == "h":
            given[name] = running.records["held"]
        elif name not in running.records:
            truth = function.__annotations__.get(name) == "bool"
            given[name] = terms.variable(f"given.{name}", "bool" if truth else "int")
        if name == "commands":
            given[name] = terms.variable("given.commands", "int")
    return running.effect_of(function, **given)


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
