"""The mutation score: who notices each mutant of the declaration.

A mutant is killed by the import (it is no declaration), by the executor (it cannot be run on
symbols), by the first obligation that refutes it, or, where no obligation does, by exploration.
It is *equivalent* only where the solver proves that each function that differs has the same
effects and answers under every condition. What is neither is a survivor, by name, with its change.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ...statemachine import SpecificationError
from ..symbolic import SymbolicError
from .conditions import Condition, Prover, Verdict
from .declaration import Change, Declaration, standard
from .equivalence import equivalent
from .memory import passing
from .mutants import Mutant, mutants
from .obligations import BY_ID, OBLIGATIONS
from .proofs import Proofs
from .rows import s9
from .workers import spread

IMPORT = "the import"
EXECUTOR = "the executor"
EQUIVALENT = "equivalent"
SURVIVES = ""
#: The obligation that is asked first: it looks at cells alone.
FIRST = "S9"

#: Looks at a declaration in some other way; says who noticed and what, None if nothing.
Witness = Callable[[Declaration], tuple[str, str] | None]


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
    witnesses: Sequence[Witness] = (),
    jobs: int = 1,
) -> Iterator[Fate]:
    """The fates of some mutants, all if none are chosen, in their order.

    `witnesses` look at what no obligation refutes. What was asked of the declaration itself in
    this process is not asked again of a mutant that does not touch it: prove it first.
    """
    original = declaration or standard()
    asked = mutants(original.sources) if chosen is None else chosen
    fate = partial(_fate, original, prover or Prover(), witnesses)
    yield from spread(fate, list(asked), jobs)


def _fate(
    original: Declaration, prover: Prover, witnesses: Sequence[Witness], mutant: Mutant
) -> Fate:
    with passing():
        try:
            changed = original.edited(mutant.edit)
        except SpecificationError as error:
            return Fate(mutant, None, IMPORT, str(error))
        try:
            by, broken = _noticed(original, changed, prover, witnesses)
        except SymbolicError as error:
            by, broken = EXECUTOR, str(error)
        return Fate(mutant, changed.change, by, broken)


def _noticed(
    original: Declaration, changed: Declaration, prover: Prover, witnesses: Sequence[Witness]
) -> tuple[str, str]:
    proofs = Proofs(changed, prover)
    # Of the cells that are the same code the original's S9 has spoken.
    first = s9(proofs, original) if FIRST == "S9" else BY_ID[FIRST].conditions(proofs)
    condition = _refuted(first, prover)
    if condition is None and equivalent(original, changed, prover):
        return EQUIVALENT, ""  # then no other obligation can refute it
    others = iter(each for each in OBLIGATIONS if each.id != FIRST)
    while condition is None and (obligation := next(others, None)) is not None:
        condition = _refuted(obligation.conditions(proofs), prover)
    if condition is not None:
        return condition.obligation, f"{condition.words} ({condition.about})"
    for witness in witnesses:
        found = witness(changed)
        if found is not None:
            return found
    return SURVIVES, ""


def _refuted(conditions: Iterable[Condition], prover: Prover) -> Condition | None:
    for condition in conditions:
        if prover.decide_one(condition).verdict is Verdict.REFUTED:
            return condition
    return None
