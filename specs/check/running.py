"""The declaration's functions on symbols, each merged to one total effect.

A cell of a table becomes a short list of outcomes, one for each row and set of commands; a block
function, a guard or a lane becomes one effect whose values are if-then-else terms. What was
executed once is remembered under a fingerprint of all the code that it reaches, so that a changed
declaration costs only what the change reaches.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType
from typing import Any

from ...statemachine.answers import answer_of, commands_of, row_of
from ..symbolic import PathSet, Record, execute, terms
from ..symbolic.feasibility import DEFAULT_BUDGET
from ..symbolic.terms import BoolTerm, Term
from .declaration import Declaration
from .memory import memory

Fingerprint = tuple[object, ...]
#: Where a function of any copy of the declaration is: a cell, or a module and a name.
Place = tuple[str, int, int] | tuple[str, str]

#: The records of the symbolic state, with the module and class of their facts.
RECORDS: Mapping[str, tuple[str, str]] = {
    "r": ("facts", "RequestFacts"),
    "t": ("facts", "TransferFacts"),
    "e": ("facts", "EngineFacts"),
    "b": ("facts", "BlockFacts"),
    "held": ("blocks", "HeldFacts"),
    "place": ("joined", "PlaceFacts"),
    "copy": ("joined", "CopyFacts"),
    "more": ("joined", "MoreBlockFacts"),
    # what an event is told
    "ask": ("facts", "Ask"),
    "pick": ("joined", "PickFacts"),
    "transfer_ask": ("facts", "TransferAsk"),
    "transfer_pick": ("joined", "PickFacts"),
    "engine_ask": ("facts", "EngineAsk"),
}

#: Which record each parameter of a machine's cell is, by position.
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "request": ("r", "e", "ask"),
    "transfer": ("t", "e", "transfer_ask"),
    "engine": ("e", "engine_ask"),
}


@dataclass(frozen=True)
class Effect:
    """What a function does under each circumstance: new values by variable, and its result."""

    writes: Mapping[str, Term]
    result: Term | int | None


@dataclass(frozen=True)
class Outcome:
    """One way in which a cell answers: the same row and the same commands on all its paths."""

    machine: str
    state: int
    event: int
    row: int
    answer: int
    commands: int
    condition: BoolTerm
    writes: Mapping[str, Term]
    paths: int


class Running:
    """Executes one declaration's functions on the symbolic state."""

    def __init__(self, declaration: Declaration, budget: int = DEFAULT_BUDGET) -> None:
        self.declaration = declaration
        self._budget = budget
        #: What was run, in the order of its first use: see `fingerprint_of`.
        self.used: dict[Place, None] = {}
        self._fingerprints: dict[Place, Fingerprint] = {}
        self.records = {
            name: Record.of(getattr(declaration.modules[module], facts), name)
            for name, (module, facts) in RECORDS.items()
        }

    def cell(self, machine: str, state: int, event: int) -> tuple[Outcome, ...]:
        """The outcomes of one cell, refusals included, in the order of the table's rows."""
        function = self.declaration.machine(machine).cell(state, event)
        self.used[machine, state, event] = None
        key = ("cell", machine, state, event, fingerprint(function), self._budget)
        found = _remembered.get(key)
        if found is None:
            found = _remembered[key] = _outcomes(
                self.paths(machine, state, event), machine, state, event
            )
        outcomes: tuple[Outcome, ...] = found
        return outcomes

    def fingerprint_of(self, place: Place) -> Fingerprint:
        """The fingerprint of what this copy has at a place."""
        found = self._fingerprints.get(place)
        if found is None:
            if len(place) == 3:
                function = self.declaration.machine(place[0]).cell(place[1], place[2])
            else:
                function = self.declaration.function(place[0], place[1])
            found = self._fingerprints[place] = fingerprint(function)
        return found

    def paths(self, machine: str, state: int, event: int) -> PathSet:
        """The unmerged paths of one cell."""
        compiled = self.declaration.machine(machine)
        records = [self.records[name] for name in PARAMETERS[machine]]
        subject = records[0].fixed(**{compiled.table.state_field: state})
        arguments = dict(zip(compiled.table.parameters, [subject, *records[1:]], strict=True))
        return execute(compiled.cell(state, event), arguments, budget=self._budget)

    def effect(self, module: str, name: str, **arguments: Record | Term | int) -> Effect:
        """A function's merged effect. Records are bound by the names of its parameters.

        `arguments` gives the parameters that are no records of the state, and those whose record
        has another name.
        """
        return self.effect_of(self.declaration.function(module, name), **arguments)

    def effect_of(self, function: Callable[..., Any], **arguments: Record | Term | int) -> Effect:
        """As `effect`, of a function that is at hand."""
        code = function.__code__
        self.used[function.__module__.rpartition(".")[2], function.__name__] = None
        read = _read(code)
        bound: dict[str, Record | Term | int] = {
            name: (arguments[name] if name in read else 0)
            if name in arguments
            else self.records[name]
            for name in code.co_varnames[: code.co_argcount]
        }
        key = ("effect", fingerprint(function), _binding(bound), self._budget)
        found = _remembered.get(key)
        if found is None:
            found = _remembered[key] = _merged(execute(function, bound, budget=self._budget))
        effect: Effect = found
        return effect


#: What was executed before, under all that its result depends on.
_remembered: dict[Fingerprint, Any] = memory()


def fingerprint(function: Callable[..., Any]) -> Fingerprint:
    """All the code that a function reaches, and the constants that this code reads."""
    return _fingerprint(function, ())


def _fingerprint(function: Any, above: tuple[Any, ...]) -> Fingerprint:
    code = function.__code__
    known = _fingerprints.get(function)
    if known is not None:
        return known
    reached: list[object] = [code.co_code, code.co_varnames[: code.co_argcount]]
    reached += [(type(each), each) for each in code.co_consts if not isinstance(each, str)]
    for name in code.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, FunctionType):
            if value not in above:
                reached.append((name, _fingerprint(value, (*above, function))))
        elif isinstance(value, int):
            reached.append((name, int(value)))
        else:
            reached.append(name)
    found = tuple(reached)
    _fingerprints[function] = found
    return found


_fingerprints: dict[Any, Fingerprint] = memory()


@cache
def _read(code: CodeType) -> frozenset[str]:
    """The parameters that a function reads: of the others it cannot depend."""
    return frozenset(
        each.argval for each in dis.get_instructions(code) if each.opname.startswith("LOAD_FAST")
    )


def _binding(bound: Mapping[str, Record | Term | int]) -> tuple[object, ...]:
    return tuple(
        (
            name,
            (value.name, tuple(value.kinds.items()))
            if isinstance(value, Record)
            else str(value)
            if terms.is_term(value)
            else value,
        )
        for name, value in bound.items()
    )


def _outcomes(paths: PathSet, machine: str, state: int, event: int) -> tuple[Outcome, ...]:
    groups: dict[int, list[Any]] = {}
    for path in paths:
        if not isinstance(path.result, int):
            raise TypeError(f"{paths.function.__qualname__} returns {path.result}, not a code")
        groups.setdefault(path.result, []).append(path)
    return tuple(
        Outcome(
            machine,
            state,
            event,
            row_of(code),
            answer_of(code),
            commands_of(code),
            terms.disjunction(path.condition for path in group),
            _writes(group),
            len(group),
        )
        for code, group in sorted(groups.items(), key=lambda item: row_of(item[0]))
    )


def _merged(paths: PathSet) -> Effect:
    group = list(paths)
    result: Term | int | None = group[-1].result
    for path in reversed(group[:-1]):
        result = _chosen(path.condition, path.result, result)
    return Effect(_writes(group), result)


def _writes(group: list[Any]) -> dict[str, Term]:
    """The last values of all fields that any of the paths writes."""
    fields = {
        (record, field): None
        for path in group
        for record, written in path.writes.items()
        for field in written
    }
    writes: dict[str, Term] = {}
    for record, field in fields:
        value = group[-1].after(record, field)
        for path in reversed(group[:-1]):
            value = _chosen(path.condition, path.after(record, field), value)
        writes[f"{record}.{field}"] = value
    return writes


def _chosen(condition: BoolTerm, value: Any, otherwise: Any) -> Any:
    if value is None or otherwise is None:
        if value is not otherwise:
            raise TypeError("a function returns a value on some of its paths only")
        return None
    if not terms.is_term(value):
        value = terms.constant(value, "bool" if isinstance(value, bool) else "int")
    if not terms.is_term(otherwise):
        otherwise = terms.constant(otherwise, "bool" if isinstance(otherwise, bool) else "int")
    return value if terms.same(value, otherwise) else terms.choice(condition, value, otherwise)
