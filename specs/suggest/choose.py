"""Chooses among candidates: the smallest set that makes what is refuted inductive.

A candidate must hold in every state that was explored, forbid a state that refutes a condition,
hold at the start, and be kept by every action, given the specification and the set itself. One
line is looked for first; then one for each statement that is refuted; else the largest set that
keeps itself is taken, and thinned out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import z3

from ..check.conditions import Decided, Verdict
from ..check.logic import both
from ..check.proofs import Proofs, _eyes
from ..check.run import Report
from ..symbolic import terms
from ..symbolic.terms import BoolTerm
from .explored import explored, refuting
from .templates import Candidate, candidates, holds

#: The most candidates that are tried together.
MOST = 2000
#: Z3's resource units for one question.
BUDGET = 1_000_000

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Suggestion:
    """Lines that would do, and what was tried for them."""

    lines: tuple[Candidate, ...]
    tried: int

    def as_python(self) -> list[str]:
        """As lines of `specs/check/invariants.py`."""
        return [line for each in self.lines for line in each.as_python().splitlines()]


class _Line:
    """A candidate with its formulas: for the one who acts, and for the one who looks on."""

    def __init__(self, candidate: Candidate, proofs: Proofs) -> None:
        self.candidate = candidate
        self._proofs = proofs
        self._invariant = candidate.invariant

    @cached_property
    def everywhere(self) -> tuple[tuple[str, BoolTerm], ...]:
        return tuple(self._invariant.everywhere(self._proofs.state))

    @cached_property
    def formula(self) -> BoolTerm:
        """Of all of whom it speaks."""
        return both(*(formula for _, formula in self.everywhere))

    @cached_property
    def mentions(self) -> frozenset[str]:
        return frozenset(terms.variables([self.formula]))

    @cached_property
    def at_the_start(self) -> BoolTerm:
        start = self._proofs.start
        return both(*(self._invariant.formula(_eyes(start, who)) for who, _ in self.everywhere))


def suggest(report: Report, tell: Tell = lambda what: None) -> Suggestion | None:
    """Lines without which the refuted conditions of a report do not hold; None if none are found.

    Only what is refuted by a state that the invariant allows counts: a statement that is false
    wherever it is asked has another fault.
    """
    proofs = report.proofs
    refuted = [
        failure
        for finding in report.findings
        for failure in finding.failures
        if failure.verdict is Verdict.REFUTED and _by_a_state(failure)
    ]
    if proofs is None or not refuted:
        return None
    tell("looking at states that can be reached")
    names = [name for name in proofs.variables.state if not name.partition(".")[0].endswith("2")]
    reached, bad = explored(proofs, names), refuting(proofs, refuted, names)
    tell("trying candidates")
    tried, lines = 0, []
    for candidate in candidates(proofs.variables.kinds, reached):
        if holds(candidate.text, reached).all():
            tried += 1
            if not holds(candidate.text, bad).all():
                lines.append(_Line(candidate, proofs))
    lines.sort(key=lambda line: (line.candidate.cost, len(line.candidate.text)))
    tell(f"{len(lines)} of {tried} candidates forbid a state that refutes")
    chosen = (
        _one(proofs, lines, refuted)
        or _one_each(proofs, lines, refuted)
        or _some(proofs, lines[:MOST], refuted, tell)
    )
    if chosen is None:
        return None
    return Suggestion(tuple(line.candidate for line in chosen), tried)


def _by_a_state(failure: Decided) -> bool:
    condition = failure.condition
    known = terms.as_constant(condition.hypotheses.formulas[0]) is True
    return failure.model is not None and not condition.possible and not known


def _follows(formulas: Iterable[BoolTerm], goal: BoolTerm) -> bool:
    solver = z3.SimpleSolver()
    solver.set("rlimit", BUDGET)
    solver.add(*formulas, terms.negated(goal))
    return bool(solver.check() == z3.unsat)


def _suffice(chosen: Sequence[_Line], refuted: Sequence[Decided]) -> bool:
    """With these lines assumed, what was refuted holds."""
    more = [line.formula for line in chosen]
    return all(
        _follows([*failure.condition.hypotheses.formulas, *more], failure.condition.goal)
        for failure in refuted
    )


def _kept(proofs: Proofs, chosen: Sequence[_Line]) -> bool:
    """They hold at the start, and every action keeps them."""
    more = [line.formula for line in chosen]
    for line in chosen:
        if not _follows(proofs._configured.formulas, line.at_the_start):
            return False
        for move in proofs.moves:
            if line.mentions & move.written and not _follows(
                [*move.hypotheses.formulas, *more], move.after.of(line.formula)
            ):
                return False
    return True


def _one(
    proofs: Proofs, lines: Sequence[_Line], refuted: Sequence[Decided]
) -> tuple[_Line, ...] | None:
    """The simplest line that does alone."""
    for line in lines:
        if _suffice([line], refuted) and _kept(proofs, [line]):
            return (line,)
    return None


def _one_each(
    proofs: Proofs, lines: Sequence[_Line], refuted: Sequence[Decided]
) -> tuple[_Line, ...] | None:
    """For each refuted statement the simplest line that does for it."""
    statements: dict[tuple[str, str], list[Decided]] = {}
    for failure in refuted:
        condition = failure.condition
        statements.setdefault((condition.obligation, condition.words), []).append(failure)
    if len(statements) == 1:
        return None
    chosen: dict[str, _Line] = {}
    for failures in statements.values():
        done = next((line for line in chosen.values() if _suffice([line], failures)), None)
        found = (done,) if done is not None else _one(proofs, lines, failures)
        if found is None:
            return None
        chosen[found[0].candidate.text] = found[0]
    return tuple(chosen.values())


def _some(
    proofs: Proofs, lines: Sequence[_Line], refuted: Sequence[Decided], tell: Tell
) -> tuple[_Line, ...] | None:
    """The largest set of them that keeps itself, thinned out; None if it does not do."""
    kept = [line for line in lines if _follows(proofs._configured.formulas, line.at_the_start)]
    again = True
    while again:
        again = False
        for move in proofs.moves:
            left = _left_by(kept, move)
            if len(left) < len(kept):
                kept, again = left, True
                tell(f"{len(kept)} candidates are left")
    if not _suffice(kept, refuted):
        return None
    chosen = _needed(proofs, kept, refuted)
    tell(f"{len(chosen)} of them carry what is refuted, and each other")
    for line in reversed(chosen):
        fewer = [each for each in chosen if each is not line]
        if _suffice(fewer, refuted) and _kept(proofs, fewer):
            chosen = fewer
    return tuple(chosen)


def _needed(proofs: Proofs, kept: Sequence[_Line], refuted: Sequence[Decided]) -> list[_Line]:
    """Of a set that keeps itself, a small one that does and that still does for what is refuted.

    What a proof of the solver's uses is needed, and what the proofs that this is kept use.
    """
    needed: list[_Line] = []

    def use(formulas: Sequence[BoolTerm], goal: BoolTerm) -> None:
        if not _follows([*formulas, *(line.formula for line in needed)], goal):
            used = _used(formulas, kept, goal)
            needed.extend(line for line in used if line not in needed)

    for failure in refuted:
        use(failure.condition.hypotheses.formulas, failure.condition.goal)
    for line in needed:  # grows meanwhile
        for move in proofs.moves:
            if line.mentions & move.written:
                use(move.hypotheses.formulas, move.after.of(line.formula))
    return needed


def _used(formulas: Sequence[BoolTerm], lines: Sequence[_Line], goal: BoolTerm) -> list[_Line]:
    """The lines that a proof of the goal uses."""
    solver = z3.SimpleSolver()
    solver.set("rlimit", BUDGET)
    solver.add(*formulas, terms.negated(goal))
    marks = [z3.Bool(f"line {number}") for number in range(len(lines))]
    solver.add(*(z3.Implies(mark, line.formula) for mark, line in zip(marks, lines, strict=True)))
    if solver.check(*marks) != z3.unsat:
        return list(lines)
    core = {mark.get_id() for mark in solver.unsat_core()}
    return [line for mark, line in zip(marks, lines, strict=True) if mark.get_id() in core]


def _left_by(lines: Sequence[_Line], move: Any) -> list[_Line]:
    """Those that a move keeps, if all of them held before; each that it does not is dropped."""
    kept = list(lines)
    while True:
        after = [
            (line, move.after.of(line.formula)) for line in kept if line.mentions & move.written
        ]
        if not after:
            return kept
        solver = z3.SimpleSolver()
        solver.set("rlimit", BUDGET)
        solver.add(*move.hypotheses.formulas, *(line.formula for line in kept))
        solver.add(terms.negated(both(*(formula for _, formula in after))))
        answer = solver.check()
        if answer == z3.unsat:
            return kept
        if answer == z3.unknown:
            gone = {id(line) for line, _ in after}
        else:
            model = solver.model()
            gone = {
                id(line)
                for line, formula in after
                if terms.as_constant(model.eval(formula, model_completion=True)) is not True
            }
        kept = [line for line in kept if id(line) not in gone]
