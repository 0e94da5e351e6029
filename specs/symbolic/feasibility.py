"""Which branches of a path are possible, by the solver.

These questions dominate the time of symbolic execution. Three things keep them few: a condition
that the path has already decided is known; a model of the path answers for one side for free,
so that only the other is asked; and the solver keeps the assertions of the common prefix between
paths. Budgets are resource limits, which do not depend on how busy the machine is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import z3

from . import terms
from .errors import UndecidedError, UnsatisfiableError
from .terms import BoolTerm

#: Z3 resource units for one question; the usual question takes some thousands.
DEFAULT_BUDGET = 5_000_000


def satisfiable(conditions: Sequence[BoolTerm], budget: int = DEFAULT_BUDGET) -> Any | None:
    """A model of some conditions together, None if there is none; raises UndecidedError."""
    if any(terms.as_constant(each) is False for each in conditions):
        return None
    solver = _solver(budget)
    solver.add(*conditions)
    return _checked(solver, conditions[-1])


def _solver(budget: int) -> Any:
    solver = z3.SimpleSolver()
    solver.set("rlimit", budget)
    return solver


def _checked(solver: Any, asked: BoolTerm) -> Any | None:
    verdict = solver.check()
    if verdict == z3.sat:
        return solver.model()
    if verdict == z3.unsat:
        return None
    raise UndecidedError(f"the solver gave up ({solver.reason_unknown()}) on {asked}")


@dataclass
class _Level:
    """A literal of the path; a model of the path up to it, and of its negation in its place."""

    literal: BoolTerm
    model: Any
    other: Any
    #: Keys of the conditions that were decided here, and the terms that keep these keys valid.
    keys: list[tuple[int, ...]] = field(default_factory=list)
    kept: list[BoolTerm] = field(default_factory=list)


class Branches:
    """The solver's view of the path that is being run."""

    def __init__(self, precondition: BoolTerm, budget: int) -> None:
        self._solver = _solver(budget)
        self._solver.add(precondition)
        model = _checked(self._solver, precondition)
        if model is None:
            raise UnsatisfiableError(f"nothing satisfies the precondition {precondition}")
        self._known: dict[tuple[int, ...], bool] = {}
        self._levels = [_Level(precondition, model, None)]
        for conjunct in terms.conjuncts(precondition):
            self._learn(conjunct, True)
        self._models: tuple[Any, Any] = (None, None)

    def possible(self, condition: BoolTerm) -> tuple[bool, ...]:
        """The answers that the path leaves open: (True,), (False,) or (True, False)."""
        key, positive = terms.atom(condition)
        if key in self._known:
            return (self._known[key] == positive,)
        model = self._levels[-1].model
        holds = terms.as_constant(model.eval(condition, model_completion=True)) is True
        other = self._model_of(terms.negated(condition) if holds else condition)
        if other is None:
            self._learn(condition, holds)
            return (holds,)
        self._models = (model, other) if holds else (other, model)
        return (True, False)

    def take(self, condition: BoolTerm) -> None:
        """Go on along the path where the condition, just found to be open, holds."""
        self._push(condition, *self._models)

    def go_to(self, literals: Sequence[BoolTerm]) -> None:
        """Go back to a path where `take` was called, and there to the other side of it.

        `literals` are that path's own, but for the last, which is negated.
        """
        if not literals:
            return
        level = self._levels[len(literals)]
        while len(self._levels) > len(literals):
            self._solver.pop()
            for key in self._levels.pop().keys:
                del self._known[key]
        self._push(literals[-1], level.other, level.model)

    def _push(self, literal: BoolTerm, model: Any, other: Any) -> None:
        self._solver.push()
        self._solver.add(literal)
        self._levels.append(_Level(literal, model, other))
        self._learn(literal, True)

    def _learn(self, condition: BoolTerm, holds: bool) -> None:
        key, positive = terms.atom(condition)
        if key not in self._known:
            self._known[key] = positive == holds
            self._levels[-1].keys.append(key)
            self._levels[-1].kept.append(condition)

    def _model_of(self, condition: BoolTerm) -> Any | None:
        self._solver.push()
        self._solver.add(condition)
        model = _checked(self._solver, condition)
        self._solver.pop()
        return model
