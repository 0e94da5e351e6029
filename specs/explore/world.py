"""Two ways to carry out an action: on real records with the real functions, and on expressions.

An action is written once, against `World`: it reads records, demands what must hold for it to be
enabled (`require`), fires events, runs block functions, and says what must be true of the step
itself (`check`). It branches on nothing but the shape of the instance; what depends on the state
is a `when` or a `choose`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ...statemachine.answers import GO
from ..check.declaration import Declaration
from . import expressions as ex
from . import walking
from .expressions import Expr, Value
from .instance import Instance
from .structure import Slot, State
from .summaries import Summaries, command_nodes


class Disabled(Exception):  # noqa: N818 - a signal, not an error
    """The action is not enabled in this state."""


class Fired(Protocol):
    """What became of an event."""

    went: Value

    def has(self, command: int) -> Value:
        """Whether it went and gave this hold command."""


class World(Protocol):
    """What an action is carried out on."""

    instance: Instance
    declaration: Declaration
    state: State
    normalises: bool

    def require(self, *conditions: Value) -> None:
        """The action is enabled only where these hold, now."""

    def check(self, name: str, condition: Value) -> None:
        """This must hold whenever the action is carried out; else it is a counterexample."""

    def record(self, kind: str, /, **fields: Value) -> Any:
        """A record of what an event is told: `Ask`, `TransferAsk`, `EngineAsk`, `PickFacts`."""

    def fire(self, machine: str, event: int, *records: Any, when: Value = True) -> Fired:
        """Fire an event where `when` holds. What does not go changes nothing."""

    def run(self, function: Callable[..., Any], *, when: Value = True, **arguments: Any) -> None:
        """Call a function that changes records, where `when` holds. `commands` may be a Fired."""

    def value(self, function: Callable[..., Any], **arguments: Any) -> Value:
        """Call a function for its result."""


# --- real records -------------------------------------------------------------------------------


class _Code:
    """The code that a real cell returned."""

    __slots__ = ("code", "went")

    def __init__(self, code: int, went: bool) -> None:
        self.code = code
        self.went: Value = went

    def has(self, command: int) -> Value:
        return bool(self.went and self.code & command)


_NOT_FIRED = _Code(0, False)


class RealWorld:
    """Runs the compiled cells and the block functions themselves, on slot records of ints."""

    normalises = True

    def __init__(self, instance: Instance, declaration: Declaration) -> None:
        self.instance = instance
        self.declaration = declaration
        self.state = State(instance, declaration)
        self.failed: list[str] = []
        #: Whether a record may have changed since it was set to False.
        self.dirty = False
        self._machines = {
            name: declaration.machine(name) for name in ("request", "transfer", "engine")
        }
        facts, joined = declaration.modules["facts"], declaration.modules["joined"]
        self._kinds = {
            "Ask": facts.Ask,
            "TransferAsk": facts.TransferAsk,
            "EngineAsk": facts.EngineAsk,
            "PickFacts": joined.PickFacts,
        }

    def require(self, *conditions: Value) -> None:
        for condition in conditions:
            if not condition:
                raise Disabled

    def check(self, name: str, condition: Value) -> None:
        if not condition:
            self.failed.append(name)

    def record(self, kind: str, /, **fields: Value) -> Any:
        return self._kinds[kind](**fields)

    def fire(self, machine: str, event: int, *records: Any, when: Value = True) -> Fired:
        if not when:
            return _NOT_FIRED
        code = self._machines[machine].fire(event, *records)
        if code & 3 != GO:
            return _NOT_FIRED
        self.dirty = True
        return _Code(code, True)

    def run(self, function: Callable[..., Any], *, when: Value = True, **arguments: Any) -> None:
        if not when:
            return
        commands = arguments.get("commands")
        self.dirty = True
        if isinstance(commands, _Code):
            arguments["commands"] = commands.code & 0x3FFC if commands.went else 0
        function(**arguments)

    def value(self, function: Callable[..., Any], **arguments: Any) -> Value:
        result: Value = function(**arguments)
        return result


# --- expressions --------------------------------------------------------------------------------


class _Conditions:
    """When an event went, and when it gave which command."""

    def __init__(self, went: Value, commands: Mapping[int, Value]) -> None:
        self.went = went
        self.commands = commands

    def has(self, command: int) -> Value:
        return ex.both(self.went, self.commands.get(command, False))


class _Told:
    """A record of what an event is told: fields that are not named are 0."""

    def __init__(self, kinds: Mapping[str, str], fields: Mapping[str, Value]) -> None:
        for name, kind in kinds.items():
            value = fields.get(name, 0)
            setattr(self, name, ex.truth(value) if kind == "bool" else ex.number(value))
        unknown = set(fields) - set(kinds)
        if unknown:
            raise TypeError(f"no fields {', '.join(sorted(unknown))}")


class TermWorld:
    """Builds an action's guard, checks and new values as expressions over the state before."""

    normalises = True

    def __init__(self, summaries: Summaries, slots: list[Slot], instance: Instance) -> None:
        self.instance = instance
        self.declaration = summaries.declaration
        self.state = State(instance, summaries.declaration)
        self.guard: list[Value] = []
        self.checks: list[tuple[str, Value]] = []
        self._summaries = summaries
        self._slots = slots
        initial_state(self.state, instance)
        self.state.put(
            slots,
            [
                ex.condition(slot.name)
                if slot.boolean
                else ex.variable(slot.name, slot.low, slot.high)
                for slot in slots
            ],
        )
        self.state.derive(instance)

    def require(self, *conditions: Value) -> None:
        self.guard.extend(conditions)

    def check(self, name: str, condition: Value) -> None:
        self.checks.append((name, condition))

    def record(self, kind: str, /, **fields: Value) -> Any:
        module = "joined" if kind == "PickFacts" else "facts"
        return _Told(getattr(self.declaration.modules[module], kind).KINDS, fields)

    def fire(self, machine: str, event: int, *records: Any, when: Value = True) -> Fired:
        if when is False:
            return _NOT_FIRED
        summary = self._summaries.event(machine, int(event))
        given = dict(zip(summary.parameters, records, strict=True))
        known = _given(given, summary.mentions)
        memo: dict[int, Value] = {}
        went = ex.both(when, walking.replace(summary.goes, known, memo))
        commands = {
            bit: ex.both(went, walking.replace(condition, known, memo))
            for bit, condition in summary.commands.items()
        }
        self._write(summary.writes, given, went, known, memo)
        return _Conditions(went, commands)

    def run(self, function: Callable[..., Any], *, when: Value = True, **arguments: Any) -> None:
        if when is False:
            return
        summary, given, known = self._bound(function, arguments)
        self._write(summary.writes, given, when, known, {})

    def value(self, function: Callable[..., Any], **arguments: Any) -> Value:
        summary, _, known = self._bound(function, arguments)
        return walking.replace(summary.result, known, {})

    def _bound(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """The function's summary, its record arguments by record, and what its variables are."""
        parameters = inspect.signature(function).parameters
        if set(parameters) != set(arguments):
            raise TypeError(f"{function.__name__}: {sorted(set(parameters) ^ set(arguments))}")
        arguments = dict(arguments)
        event = arguments.pop("event", None)
        commands = arguments.pop("commands", None)
        scalars = {
            name: value for name, value in arguments.items() if isinstance(value, int | Expr)
        }
        booleans = frozenset(name for name, value in scalars.items() if ex.is_boolean(value))
        summary = self._summaries.function(function, event, booleans)
        given = {
            Summaries.record_name(name): value
            for name, value in arguments.items()
            if name not in scalars
        }
        known = _given(given, summary.mentions)
        for name, value in scalars.items():
            node = (
                ex.condition(f"given.{name}") if name in booleans else ex.variable(f"given.{name}")
            )
            known[node.index] = value  # type: ignore[union-attr]
        if isinstance(commands, _Conditions | _Code):
            flags = commands.commands if isinstance(commands, _Conditions) else {}
            known |= command_nodes(flags)
        return summary, given, known

    def _write(
        self,
        writes: Mapping[str, Value],
        records: Mapping[str, Any],
        when: Value,
        known: dict[int, Value],
        memo: dict[int, Value],
    ) -> None:
        new: list[tuple[Any, str, Value]] = []
        for name, value in writes.items():
            record, _, field = name.partition(".")
            before = getattr(records[record], field)
            after = walking.replace(value, known, memo)
            new.append((records[record], field, ex.choose(when, after, before)))
        for target, field, value in new:
            setattr(target, field, value)


def _given(records: Mapping[str, Any], mentions: tuple[Expr, ...]) -> dict[int, Value]:
    """The placeholders that are mentioned, with what the records hold now."""
    known: dict[int, Value] = {}
    for node in mentions:
        record, _, field = node.args[0].partition(".")
        if record in records:
            value = getattr(records[record], field)
            known[node.index] = ex.truth(value) if node.boolean else ex.number(value)
    return known


def initial_state(state: State, instance: Instance) -> None:
    """The engine is active, its memory is there, nobody has ever come."""
    state.e.mode = 1
    state.e.weights_resident = True
    state.e.cache_resident = True
    for places in state.places:
        for place in places:
            place.position = -1
    for more in state.more:
        more.epoch = 1
    state.derive(instance)
