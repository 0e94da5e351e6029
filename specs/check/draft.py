"""One atomic action, put together call by call from the declared functions.

A draft is a list of conditions and the values that the state has after the calls so far, both as
terms over the state before. Each call is a cell of a table or a function, executed symbolically
once and substituted here: nothing is written down a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import z3

from ...statemachine.answers import GO
from ..symbolic import terms
from ..symbolic.terms import BoolTerm, Term
from .contracts import CONTRACTS
from .logic import Substitution, both, either
from .running import Effect, Outcome
from .state import Variables, View

#: The subject and its state field of each machine.
SUBJECT: Mapping[str, str] = {"request": "r.state", "transfer": "t.state", "engine": "e.mode"}


@dataclass(frozen=True)
class Call:
    """One event of an action: which row of which table decided."""

    machine: str
    event: int
    source: int
    row: int
    answer: int
    commands: int


@dataclass(frozen=True)
class Draft:
    """An action in the making."""

    variables: Variables
    values: Mapping[str, Term]
    conditions: tuple[BoolTerm, ...] = ()
    calls: tuple[Call, ...] = ()
    contracts: tuple[str, ...] = ()

    def view(self) -> View:
        """The state after the calls so far."""
        return self.variables.view(self.values)

    def given(self, *conditions: BoolTerm) -> Draft:
        """Only where these hold, in terms of the state before the action."""
        kept = [each for each in conditions if terms.as_constant(each) is not True]
        return replace(self, conditions=(*self.conditions, *kept))

    def possible(self) -> bool:
        """Not plainly impossible."""
        return not any(terms.as_constant(each) is False for each in self.conditions)

    def knowing(self, **values: Term) -> Draft:
        """Only where variables, named `record__field`, have these values."""
        named = {name.replace("__", ".", 1): value for name, value in values.items()}
        known = [self.variables.terms[name] == value for name, value in named.items()]
        return self.given(*known).put(**values)

    def put(self, **values: Term) -> Draft:
        """With new values of variables, named `record__field`."""
        named = {name.replace("__", ".", 1): value for name, value in values.items()}
        return replace(self, values={**self.values, **named})

    @cached_property
    def _changed(self) -> list[tuple[Term, Term]]:
        """Variables of those who act with new values: no function speaks of the others."""
        return [
            (self.variables.terms[name], value)
            for name, value in self.values.items()
            if not name.partition(".")[0].endswith("2")
            and not terms.same(value, self.variables.terms[name])
        ]

    @cached_property
    def _substitution(self) -> Substitution:
        return Substitution(self._changed)

    def substituted(self, term: Term) -> Term:
        """A term over the state after the calls so far, as a term over the state before."""
        return z3.simplify(self._substitution.of(term)) if self._changed else term

    def where(self, condition: BoolTerm, other: Draft) -> Draft:
        """This draft, but the values of the other one where the condition holds."""
        chosen = {}
        for name, value in other.values.items():
            mine = self.values.get(name, self.variables.terms[name])
            if not terms.same(mine, value):
                chosen[name] = terms.choice(condition, value, mine)
        return replace(self, values={**self.values, **chosen})

    def after(self, effect: Effect) -> Draft:
        """The state that a function leaves behind."""
        written = {name: self.substituted(term) for name, term in effect.writes.items()}
        return replace(self, values={**self.values, **written})

    def run(self, module: str, name: str, **arguments: Any) -> Draft:
        """Call a declared function; `arguments` as in `View.declared`."""
        return self.apply(self.variables.running.declaration.function(module, name), **arguments)

    def apply(self, function: Any, **arguments: Any) -> Draft:
        """Call a function that is at hand."""
        given = {
            each: terms.variable(f"given.{each}", terms.kind_of(value))
            if terms.is_term(value)
            else value
            for each, value in arguments.items()
        }
        effect = self.variables.running.effect_of(function, **given)
        pairs = [(given[each], value) for each, value in arguments.items() if terms.is_term(value)]
        if not effect.writes:
            return self
        substitution = Substitution(pairs + self._changed) if pairs else self._substitution
        bound = {
            name: z3.simplify(substitution.of(term)) if substitution else term
            for name, term in effect.writes.items()
        }
        return replace(self, values={**self.values, **bound})

    def fire(self, machine: str, event: int, *, only_go: bool = False) -> list[Draft]:
        """The ways in which an event is answered now, with what the contracts say of its ask.

        All refusals are one way, and so is a row that changes nothing, whatever the state.
        """
        field = SUBJECT[machine]
        states = self.variables.running.declaration.machine(machine).table.states
        current = self.values.get(field, self.variables.terms[field])
        known = terms.as_constant(current)
        ways: list[Draft] = []
        still: dict[int, list[tuple[BoolTerm, Outcome]]] = {}
        for state in states if known is None else [states(known)]:
            here = current == int(state) if known is None else terms.TRUE
            for outcome in self.variables.running.cell(machine, int(state), int(event)):
                if outcome.answer == GO and (outcome.writes or outcome.commands):
                    ways += self.given(here).take(outcome)
                elif outcome.answer == GO or not only_go:
                    group = still.setdefault(outcome.row if outcome.answer == GO else -1, [])
                    group.append((both(here, outcome.condition), outcome))
        for group in still.values():
            condition = either(*(each for each, _ in group))
            ways += self.take(replace(group[0][1], condition=condition))
        return ways

    def follow(self, machine: str, event: int) -> Draft:
        """Fire an event without hold commands, whatever it answers, as one effect."""
        field = SUBJECT[machine]
        states = self.variables.running.declaration.machine(machine).table.states
        current = self.values.get(field, self.variables.terms[field])
        changed: dict[str, Term] = {}
        for state in states:
            for outcome in self.variables.running.cell(machine, int(state), int(event)):
                taken = both(current == int(state), self.substituted(outcome.condition))
                for name, term in outcome.writes.items():
                    before = changed.get(name, self.view().value(*name.split(".")))
                    changed[name] = terms.choice(taken, self.substituted(term), before)
        return replace(self, values={**self.values, **changed})

    def take(self, outcome: Outcome) -> list[Draft]:
        """The state after one outcome of a cell, in a list; empty if it cannot be."""
        told = [
            contract
            for contract in CONTRACTS
            if contract.machine == outcome.machine and outcome.event in contract.events
        ]
        view = self.view()
        draft = self.given(
            self.substituted(outcome.condition), *(contract.formula(view) for contract in told)
        )
        call = Call(
            outcome.machine,
            outcome.event,
            outcome.state,
            outcome.row,
            outcome.answer,
            outcome.commands,
        )
        draft = replace(
            draft,
            calls=(*draft.calls, call),
            contracts=(*draft.contracts, *(contract.name for contract in told)),
        ).after(Effect(outcome.writes, None))
        return [draft] if draft.possible() else []
