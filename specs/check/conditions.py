"""Proof conditions, and the solver that decides them.

A condition says: under these hypotheses the goal always holds (or, where something must be
*possible*, that a state exists). Conditions that share their hypotheses share a solver. Budgets
are the solver's resource units, which do not depend on how busy the machine is; what is not
decided within its budget is *unknown*, and unknown is never a pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import z3

from ..symbolic import terms
from ..symbolic.terms import BoolTerm
from .cache import Cache
from .system import Transition

#: Z3 resource units for one condition; the usual condition takes some hundreds.
DEFAULT_BUDGET = 3_000_000


class Verdict(Enum):
    """What became of a condition or an obligation."""

    PROVED = "proved"
    REFUTED = "refuted"
    UNKNOWN = "unknown"
    #: Shown, but by means of an invariant of another obligation that is refuted or unknown.
    RESTS = "rests on what is not proved"


@dataclass(frozen=True)
class Hypotheses:
    """What is assumed together: compared by identity, so that a solver is set up once for all."""

    formulas: tuple[BoolTerm, ...]
    #: Part of the digest: the text of the formulas, hashed once.
    digest: str

    @classmethod
    def of(cls, *formulas: BoolTerm, above: Hypotheses | None = None) -> Hypotheses:
        """Some formulas, and those of `above`."""
        text = "\0".join(formula.sexpr() for formula in formulas)
        digest = hashlib.sha256(text.encode())
        if above is not None:
            digest.update(above.digest.encode())
            formulas = (*above.formulas, *formulas)
        return cls(formulas, digest.hexdigest())


@dataclass(frozen=True)
class Condition:
    """One question to the solver.

    `part` is "initiation", "consecution", "property" or the name of a premise; `about` the way
    in which an event goes, or whom the goal speaks of.
    """

    obligation: str
    part: str
    words: str
    about: str
    hypotheses: Hypotheses
    goal: BoolTerm
    transition: Transition | None = None
    #: The goal must be possible under the hypotheses, rather than always hold.
    possible: bool = False
    #: The text that names the goal, if that is shorter than the goal itself.
    named: str = ""

    @property
    def formula(self) -> BoolTerm:
        """What is given to the solver beside the hypotheses."""
        return self.goal if self.possible else terms.negated(self.goal)

    def digest(self) -> str:
        """Names the condition by its text."""
        kind = "possible" if self.possible else "always"
        text = f"{kind}\0{self.hypotheses.digest}\0{self.named or self.goal.sexpr()}"
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Decided:
    """A condition with its verdict; a refuted one has a state that refutes it."""

    condition: Condition
    verdict: Verdict
    model: Any = None
    reason: str = ""
    cached: bool = False


class Prover:
    """Decides conditions, group by group."""

    def __init__(self, budget: int = DEFAULT_BUDGET, cache: Cache | None = None) -> None:
        self.budget = budget
        self._cache = cache
        self._solver: Any = None
        self._hypotheses: Hypotheses | None = None

    def decide(self, conditions: Iterable[Condition]) -> Iterator[Decided]:
        """Decide the conditions in their order."""
        for condition in conditions:
            yield self.decide_one(condition)

    def decide_one(self, condition: Condition) -> Decided:
        """Decide one condition, or find that it was proved before."""
        digest = condition.digest() if self._cache is not None else ""
        if self._cache is not None and digest in self._cache:
            return Decided(condition, Verdict.PROVED, cached=True)
        decided = self._ask(condition)
        if self._cache is not None and decided.verdict is Verdict.PROVED:
            self._cache.add(digest)
        return decided

    def _ask(self, condition: Condition) -> Decided:
        if condition.hypotheses is not self._hypotheses:
            self._solver = z3.SimpleSolver()
            self._solver.set("rlimit", self.budget)
            self._solver.add(*condition.hypotheses.formulas)
            self._hypotheses = condition.hypotheses
        solver = self._solver
        solver.push()
        try:
            solver.add(condition.formula)
            answer = solver.check()
            if answer == z3.unknown:
                return Decided(condition, Verdict.UNKNOWN, reason=solver.reason_unknown())
            if answer == z3.sat:
                if condition.possible:
                    return Decided(condition, Verdict.PROVED)
                return Decided(condition, Verdict.REFUTED, solver.model())
            return Decided(condition, Verdict.REFUTED if condition.possible else Verdict.PROVED)
        finally:
            solver.pop()


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of many: refuted beats unknown beats proved."""
    for verdict in (Verdict.REFUTED, Verdict.UNKNOWN, Verdict.RESTS):
        if verdict in verdicts:
            return verdict
    return Verdict.PROVED
