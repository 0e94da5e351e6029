"""The declaration's functions as expressions: what each writes, and when each event goes.

The symbolic executor has run every compiled cell and every block function on all its paths
(`specs.check.running` remembers them); here their merged effects are translated once, with the
sizes of the instance put in, and kept by what they are called with.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...statemachine.answers import GO
from ..check.declaration import Declaration
from ..check.running import PARAMETERS, Effect, Outcome, Running
from ..symbolic import terms
from . import expressions as ex
from . import walking
from .expressions import Expr, Value
from .instance import Instance
from .translate import constants_first, translate

#: Which symbolic record stands for a parameter whose name is not the record's own.
_RECORD_OF = {"x": "ask", "h": "held"}

#: The bits of hold commands.
COMMAND_BITS = tuple(1 << bit for bit in range(2, 14))


@dataclass(frozen=True)
class EventSummary:
    """When an event goes, in any state of its subject, and what it changes then.

    All are expressions over variables `parameter.field`; `commands` says for each bit when it is
    given. `writes` holds only where `goes` does.
    """

    parameters: tuple[str, ...]
    goes: Value
    writes: Mapping[str, Value]
    commands: Mapping[int, Value]

    @cached_property
    def mentions(self) -> tuple[Expr, ...]:
        """The variables."""
        return _variables([self.goes, *self.writes.values(), *self.commands.values()])


@dataclass(frozen=True)
class FunctionSummary:
    """What a function writes and returns, over `parameter.field` and `given.parameter`."""

    writes: Mapping[str, Value]
    result: Value

    @cached_property
    def mentions(self) -> tuple[Expr, ...]:
        """The variables."""
        return _variables([self.result, *self.writes.values()])


def _variables(values: list[Value]) -> tuple[Expr, ...]:
    return tuple(node for node in walking.subterms(values) if node.op == "var")


#: What was summarised before, by what it was summarised from: the executor's results, which it
#: keeps for ever, and the instance's sizes. Changed declarations share all that is unchanged.
_summarised: dict[Hashable, tuple[Any, Any]] = {}


class Summaries:
    """The summaries of one declaration in one instance."""

    def __init__(self, declaration: Declaration, instance: Instance) -> None:
        self.declaration = declaration
        self.running = Running(declaration)
        constants = {
            "e.block_size": instance.block_size,
            "e.pool_blocks": instance.blocks,
            "e.model_length": instance.model_length,
            "e.steps_ahead": instance.steps_ahead,
            "e.loads_limit": instance.loads_limit,
        }
        self._sizes = tuple(constants.values())
        self._variable = constants_first(constants)
        self._known: dict[int, Value] = {}
        self._kept: list[Any] = []  # terms whose ids `_known` has
        self._events: dict[tuple[str, int], EventSummary] = {}
        self._functions: dict[Any, FunctionSummary] = {}

    @staticmethod
    def record_name(parameter: str) -> str:
        """The record that a parameter stands for."""
        return _RECORD_OF.get(parameter, parameter)

    def event(self, machine: str, event: int) -> EventSummary:
        """The summary of an event over all states of its subject."""
        found = self._events.get((machine, event))
        if found is None:
            found = self._events[machine, event] = self._event(machine, event)
        return found

    def _event(self, machine: str, event: int) -> EventSummary:
        table = self.declaration.machine(machine).table
        sources = [
            source
            for source in table.states
            if any(row.answer == GO for _, row in table.cell(source, event))
        ]
        cells = [self.running.cell(machine, int(source), event) for source in sources]
        key = ("event", self._sizes, machine, event, tuple(id(cell) for cell in cells))
        found = _summarised.get(key)
        if found is None:
            field = f"{PARAMETERS[machine][0]}.{table.state_field}"
            found = self._merged(machine, field, list(zip(sources, cells, strict=True))), cells
            _summarised[key] = found
        summary: EventSummary = found[0]
        return summary

    def _merged(
        self, machine: str, state_field: str, cells: list[tuple[int, tuple[Outcome, ...]]]
    ) -> EventSummary:
        parameters = PARAMETERS[machine]
        state = self._variable(state_field, False)
        ways: list[tuple[Value, Mapping[str, Value], int]] = []
        for source, outcomes in cells:
            for outcome in outcomes:
                if outcome.answer != GO:
                    if outcome.writes or outcome.commands:
                        raise AssertionError(f"{machine} in {source}: a refusal changes something")
                    continue
                here = ex.both(ex.equal(state, int(source)), self._translated(outcome.condition))
                # Where the state is known, what is written says nothing more about it.
                known = walking.learned(here)
                memo: dict[int, Value] = {}
                written = {
                    name: walking.replace(self._translated(term), known, memo)
                    for name, term in outcome.writes.items()
                }
                ways.append((here, written, outcome.commands))
        fields = {name: None for _, writes, _ in ways for name in writes}
        merged: dict[str, Value] = {}
        for name in fields:
            boolean = self._kind(name) == "bool"
            before = self._variable(name, boolean)
            value = ways[-1][1].get(name, before)
            for condition, writes, _ in reversed(ways[:-1]):
                value = ex.choose(condition, writes.get(name, before), value)
            merged[name] = value
        commands = {
            bit: ex.either(*(condition for condition, _, given in ways if given & bit))
            for bit in COMMAND_BITS
            if any(given & bit for _, _, given in ways)
        }
        goes = ex.either(*(condition for condition, _, _ in ways))
        return EventSummary(parameters, goes, merged, commands)

    def function(
        self, function: Callable[..., Any], event: int | None, booleans: frozenset[str]
    ) -> FunctionSummary:
        """The summary of a function.

        Parameters that are records are bound by name, `event` is fixed if given, all others are
        variables `given.parameter`: truth values those in `booleans`, ints the rest.
        """
        key = (function, event, booleans)
        found = self._functions.get(key)
        if found is None:
            found = self._functions[key] = self._function(function, event, booleans)
        return found

    def _function(
        self, function: Callable[..., Any], event: int | None, booleans: frozenset[str]
    ) -> FunctionSummary:
        code = function.__code__
        bound: dict[str, Any] = {}
        for name in code.co_varnames[: code.co_argcount]:
            record = self.running.records.get(self.record_name(name))
            if record is not None:
                bound[name] = record
            elif name == "event" and event is not None:
                bound[name] = event
            else:
                kind: terms.Kind = "bool" if name in booleans else "int"
                bound[name] = terms.variable(f"given.{name}", kind)
        effect = self.running.effect_of(function, **bound)
        key = ("function", self._sizes, id(effect))
        known = _summarised.get(key)
        if known is None:
            known = _summarised[key] = self._translated_effect(effect), effect
        summary: FunctionSummary = known[0]
        return summary

    def _translated_effect(self, effect: Effect) -> FunctionSummary:
        writes: dict[str, Value] = {}
        for name, term in effect.writes.items():
            value = self._translated(term)
            if value is not self._variable(name, self._kind(name) == "bool"):
                writes[name] = value
        result = effect.result
        if terms.is_term(result):
            result = self._translated(result)
        return FunctionSummary(writes, 0 if result is None else result)

    def _translated(self, term: Any) -> Value:
        self._kept.append(term)
        return translate(term, self._variable, self._known)

    def _kind(self, name: str) -> str:
        record, _, field = name.partition(".")
        return self.running.records[record].kinds[field]


def command_nodes(flags: Mapping[int, Value]) -> dict[int, Value]:
    """What `commands & BIT` is worth, as the executor writes it, where each bit is known."""
    commands = ex.variable("given.commands")
    found: dict[int, Value] = {}
    for bit in COMMAND_BITS:
        masked = ex.modulo(ex.divide(commands, bit), 2)
        assert isinstance(masked, ex.Expr)
        found[masked.index] = ex.number(flags.get(bit, False))
    return found
