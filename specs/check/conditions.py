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
from functools import cached_property
from typing import Any, Protocol

import z3

from ..symbolic import terms
from ..symbolic.terms import BoolTerm, Term
from .cache import Cache
from .memory import memory
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


def digest_of(term: Term) -> str:
    """Names a term by its text. Most are in many conditions, and writing them out takes longest."""
    known = _digests.get(term.get_id())
    if known is None:
        digest = hashlib.sha256(term.sexpr().encode()).hexdigest()
        known = _digests[term.get_id()] = (digest, term)
    return known[0]


#: With the terms, which keep the keys valid.
_digests: dict[int, tuple[str, Term]] = memory()


class Hypotheses:
    """What is assumed together. Compared by identity: a solver is set up once for all of them."""

    def __init__(self, formula: BoolTerm, above: Hypotheses | None = None) -> None:
        self.formula = formula
        self.above = above

    @cached_property
    def formulas(self) -> tuple[BoolTerm, ...]:
        """Everything that is assumed."""
        return (*(self.above.formulas if self.above is not None else ()), self.formula)

    @cached_property
    def key(self) -> tuple[int, ...]:
        """Names the formulas as long as they are kept: equal terms are one object to the solver."""
        return tuple(formula.get_id() for formula in self.formulas)

    @cached_property
    def digest(self) -> str:
        """Names the formulas by their text."""
        text = hashlib.sha256(digest_of(self.formula).encode())
        if self.above is not None:
            text.update(self.above.digest.encode())
        return text.hexdigest()


class Written(Protocol):
    """What an action leaves behind, as far as a digest needs it."""

    @property
    def digest(self) -> str:
        """Names the values by their text."""


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
    #: The goal may be a template into which an action's values were put: together they name it.
    template: BoolTerm | None = None
    written: Written | None = None
    #: The cell that it is about, if it is about one: machine, state, event.
    cell: tuple[str, int, int] | None = None

    @property
    def formula(self) -> BoolTerm:
        """What is given to the solver beside the hypotheses."""
        return self.goal if self.possible else terms.negated(self.goal)

    def digest(self) -> str:
        """Names the condition by its text."""
        kind = "possible" if self.possible else "always"
        if self.template is not None and self.written is not None:
            goal = f"{self.written.digest}\0{digest_of(self.template)}"
        else:
            goal = digest_of(self.goal)
        text = f"{kind}\0{self.hypotheses.digest}\0{goal}"
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
        """Decide one condition, or find that it was decided before."""
        key = (condition.hypotheses.key, condition.goal.get_id(), condition.possible, self.budget)
        known = _decided.get(key)
        digest = condition.digest() if self._cache is not None else ""
        if self._cache is not None and digest in self._cache:
            return Decided(condition, Verdict.PROVED, cached=True)
        decided = Decided(condition, known[0]) if known is not None else self._ask(condition)
        if decided.model is None and decided.verdict is not Verdict.UNKNOWN:
            _decided[key] = (decided.verdict, (condition.hypotheses.formulas, condition.goal))
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


#: What this process decided before, with the terms that keep the keys valid. A changed copy of the
#: declaration asks most of the same questions again.
_decided: dict[tuple[tuple[int, ...], int, bool, int], tuple[Verdict, object]] = memory()


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of many: refuted beats unknown beats proved."""
    for verdict in (Verdict.REFUTED, Verdict.UNKNOWN, Verdict.RESTS):
        if verdict in verdicts:
            return verdict
    return Verdict.PROVED
