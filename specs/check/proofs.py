"""Turns the specification and its actions into proof conditions.

For an invariant: initiation (it holds at the start) and consecution (each way in which an action
goes keeps it). For an obligation's own statement: it follows from the invariant (`always`), or
holds of each action (`each`), or is a premise of its own (`premise`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import z3

from ...statemachine.answers import GO
from ...statemachine.states import ACTIVE
from ..symbolic import terms
from ..symbolic.terms import BoolTerm, Term
from .conditions import Condition, Hypotheses, Prover, Verdict, digest_of
from .contents import CONTENTS, EPOCHS
from .declaration import Declaration
from .draft import SUBJECT, Draft
from .invariants import CONFIGURED, INVARIANTS, About, Invariant
from .logic import Substitution, both, either
from .memory import memory
from .running import Running
from .state import View
from .system import System, Transition

SPECIFICATION: tuple[Invariant, ...] = (*INVARIANTS, *CONTENTS, *EPOCHS)

#: A statement about the state before and after an action.
StepFormula = Callable[[View, View], BoolTerm]


@dataclass(frozen=True)
class Line:
    """One line of the specification for one of those that it speaks of."""

    invariant: Invariant
    who: str
    formula: BoolTerm
    mentions: frozenset[str]


class Proofs:
    """The conditions of one declaration."""

    def __init__(self, declaration: Declaration, prover: Prover) -> None:
        self.declaration = declaration
        self.prover = prover
        self.running = Running(declaration)
        self.system = System(self.running)
        self.variables = self.system.variables
        self.state = self.variables.view()
        #: How many consecution conditions hold because nothing that they mention is written.
        self.framed: dict[str, int] = {}

    # --- hypotheses -----------------------------------------------------------------------------

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """The whole specification."""
        return tuple(
            Line(invariant, who, formula, _mentions(formula))
            for invariant in SPECIFICATION
            for who, formula in invariant.everywhere(self.state)
        )

    @cached_property
    def invariant(self) -> Hypotheses:
        """All lines of the specification hold."""
        return Hypotheses(both(*(line.formula for line in self.lines)))

    @cached_property
    def start(self) -> View:
        """The state at the start: nothing is known, nothing held, the engine is ACTIVE."""
        values = self.variables.blank(
            "r", "r2", "t", "t2", "b", "held", "held2", "place", "place2", "copy", "copy2", "others"
        )
        known = {
            "e.mode": terms.number(ACTIVE),
            "e.pausing": terms.number(0),
            "e.sleep_paused": terms.FALSE,
            "e.sleep_level": terms.number(0),
            "e.weights_resident": terms.TRUE,
            "e.cache_resident": terms.TRUE,
            "e.launched": terms.number(0),
            "e.processed": terms.number(0),
            "e.pending_reset": terms.FALSE,
            "e.epoch": terms.number(0),
            "e.quarantined": terms.number(0),
            "more.tier_present": terms.FALSE,
        }
        return self.variables.view({**values, **known})

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        """The transitions that can happen where the invariant holds."""
        moves = []
        for transition in self.system.transitions:
            move = Move(self, transition)
            possible = Condition(
                "", "", "", transition.label, move.hypotheses, terms.TRUE, transition, True
            )
            if self.prover.decide_one(possible).verdict is not Verdict.REFUTED:
                moves.append(move)
        return tuple(moves)

    @cached_property
    def _configured(self) -> Hypotheses:
        """What is known before anything has happened."""
        known = [line.formula for line in self.lines if line.invariant.words == CONFIGURED]
        return Hypotheses(both(*known, self._numbers_differ()))

    @property
    def has_moves(self) -> bool:
        """Whether any condition has asked for the moves; some obligations need none."""
        return "moves" in self.__dict__

    def _without(self, absent: tuple[str, ...]) -> Hypotheses:
        """The invariant where some are not looked at."""
        found = self._reduced.get(absent)
        if found is None:
            values = {**self.variables.second_request(), **self.variables.second_transfer()}
            substitution = Substitution(
                [(self.variables.terms[name], values[name]) for name in absent]
            )
            formulas = [
                z3.simplify(substitution.of(line.formula)) if absent else line.formula
                for line in self.lines
            ]
            known = [self.variables.terms[name] == values[name] for name in absent]
            kept = [each for each in formulas if terms.as_constant(each) is not True]
            found = self._reduced[absent] = Hypotheses(both(*kept, *known))
        return found

    @cached_property
    def _reduced(self) -> dict[tuple[str, ...], Hypotheses]:
        return {}

    # --- conditions -----------------------------------------------------------------------------

    def initiation(self, obligation: str) -> Iterator[Condition]:
        """Each line of the obligation's invariant holds at the start."""
        for line in self._lines_of(obligation):
            goal = line.invariant.formula(_eyes(self.start, line.who))
            yield Condition(
                obligation,
                "initiation",
                line.invariant.words,
                line.who,
                self._configured,
                goal,
                template=line.formula,
            )

    def consecution(self, obligation: str) -> Iterator[Condition]:
        """Each way in which an action goes keeps each line of the obligation's invariant."""
        lines = self._lines_of(obligation)
        for move in self.moves if lines else ():
            for line in lines:
                if not line.mentions & move.written:
                    self.framed[obligation] = self.framed.get(obligation, 0) + 1
                    continue
                yield Condition(
                    obligation,
                    "consecution",
                    line.invariant.words,
                    line.who,
                    move.hypotheses,
                    move.after.of(line.formula),
                    move.transition,
                    template=line.formula,
                    written=move,
                )

    def always(
        self,
        obligation: str,
        words: str,
        about: About,
        formula: Callable[[View], BoolTerm],
        *,
        part: str = "property",
        given: Callable[[View], BoolTerm] | None = None,
    ) -> Iterator[Condition]:
        """A statement that follows from the invariant."""
        hypotheses = self.invariant
        if given is not None:
            hypotheses = Hypotheses(given(self.state), self.invariant)
        for who, goal in Invariant(obligation, words, about, formula).everywhere(self.state):
            yield Condition(obligation, part, words, who, hypotheses, goal)

    def each(
        self,
        obligation: str,
        words: str,
        formula: StepFormula,
        *,
        part: str = "property",
        of: Callable[[Transition], bool] | None = None,
    ) -> Iterator[Condition]:
        """A statement about before and after, of every action or of some."""
        primed = {
            name: terms.variable(f"{name}'", self.variables.kinds[name])
            for name in self.variables.state
        }
        goal = formula(self.state, self.variables.view(primed))
        mentioned = {name for name in terms.variables([goal]) if name.endswith("'")}
        same = Substitution([(primed[name], self.variables.terms[name]) for name in primed])
        if of is None:
            yield Condition(
                obligation, part, words, "no change", self.invariant, same.of(goal), template=goal
            )
        for move in self.moves:
            if of is not None and not of(move.transition):
                continue
            if of is None and not any(name.rstrip("'") in move.written for name in mentioned):
                continue
            after = Substitution(
                [(primed[name], move.value(name)) for name in map(_unprimed, mentioned)]
            )
            yield Condition(
                obligation,
                part,
                words,
                move.transition.label,
                move.hypotheses,
                after.of(goal),
                move.transition,
                template=goal,
                written=move,
            )

    def premise(
        self,
        obligation: str,
        part: str,
        words: str,
        goal: BoolTerm,
        *given: BoolTerm,
        about: str = "",
        possible: bool = False,
    ) -> Condition:
        """One statement under the invariant and some hypotheses of its own."""
        hypotheses = Hypotheses(both(*given), self.invariant) if given else self.invariant
        return Condition(obligation, part, words, about, hypotheses, goal, possible=possible)

    # --- what events do -------------------------------------------------------------------------

    def named(self, words: str, term: BoolTerm) -> BoolTerm:
        """The term; where formulas are for people, the words that say what was executed."""
        return terms.variable(words, "bool") if self.variables.readable else term

    def left(self, name: str, value: Term) -> Term:
        """A variable's value afterwards; where formulas are for people, the primed variable."""
        if not self.variables.readable:
            return value
        return terms.variable(f"{name}'", self.variables.kinds[name])

    def goes(self, at: View, machine: str, event: int, **told: Any) -> BoolTerm:
        """The event goes in that state, if it is told so: `ask__fresh=…`."""
        if self.variables.readable:
            name = self.declaration.machine(machine).table.events(event).name.lower()
            return terms.variable(f"{name} goes", "bool")
        return either(*(condition for _, condition in self.ways(at, machine, event, GO, **told)))

    def ways(
        self, at: View, machine: str, event: int, answer: int, **told: Any
    ) -> Iterable[tuple[Any, BoolTerm]]:
        """The outcomes of an event with an answer, each with its condition in that state."""
        states = self.declaration.machine(machine).table.states
        values = dict(at.values)
        for name, value in told.items():
            values[name.replace("__", ".", 1)] = (
                value
                if terms.is_term(value)
                else terms.constant(value, self.variables.kinds[name.replace("__", ".", 1)])
            )
        draft = Draft(self.variables, values)
        current = values.get(SUBJECT[machine], self.variables.terms[SUBJECT[machine]])
        for state in states:
            here = current == int(state)
            for outcome in self.running.cell(machine, int(state), int(event)):
                if outcome.answer == answer:
                    yield outcome, both(here, draft.substituted(outcome.condition))

    def _lines_of(self, obligation: str) -> list[Line]:
        if all(invariant.of != obligation for invariant in SPECIFICATION):
            return []  # without writing all formulas down
        return [line for line in self.lines if line.invariant.of == obligation]

    def _numbers_differ(self) -> BoolTerm:
        return both(
            self.state.copy.number > 0,
            self.state.at(transfer="2").copy.number > 0,
            self.state.copy.number != self.state.at(transfer="2").copy.number,
        )


class Move:
    """A transition as consecution needs it."""

    def __init__(self, proofs: Proofs, transition: Transition) -> None:
        self.transition = transition
        variables = proofs.variables
        absent = transition.before.values
        self._values: dict[str, Term] = {
            name: value
            for name, value in transition.after.values.items()
            if name not in absent and not terms.same(value, variables.terms[name])
        }
        self._variables = variables
        #: The variables that have, or may have, another value afterwards.
        self.written = frozenset(self._values)
        self.after = Substitution(
            [(variables.terms[name], value) for name, value in self._values.items()]
        )
        above = proofs._without(tuple(sorted(absent)))
        self.hypotheses = Hypotheses(transition.condition, above)

    @cached_property
    def digest(self) -> str:
        """Names what the move does; its condition is among the hypotheses."""
        written = "\0".join(f"{name}\0{digest_of(value)}" for name, value in self._values.items())
        return hashlib.sha256(written.encode()).hexdigest()

    def value(self, name: str) -> Term:
        """A variable's value afterwards."""
        found = self._values.get(name)
        return self._variables.terms[name] if found is None else found


def _mentions(formula: BoolTerm) -> frozenset[str]:
    """The variables of a formula; most copies of the declaration have the same formulas."""
    known = _mentioned.get(formula.get_id())
    if known is None:
        known = _mentioned[formula.get_id()] = (frozenset(terms.variables([formula])), formula)
    return known[0]


#: With the formulas, which keep the keys valid.
_mentioned: dict[int, tuple[frozenset[str], BoolTerm]] = memory()


def _unprimed(name: str) -> str:
    return name.rstrip("'")


def _eyes(view: View, who: str) -> View:
    """The view from those that a line speaks of."""
    names = who.split()
    return view.at(request="2" if "r2" in names else "", transfer="2" if "t2" in names else "")
