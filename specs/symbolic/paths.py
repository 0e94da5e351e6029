"""What symbolic execution returns: the finite list of a function's paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from . import terms
from .errors import IncompletePathsError, OutsidePreconditionError, OverlappingPathsError, Where
from .evaluate import Compiled, compile_terms, scalar_choice
from .records import Record
from .terms import BoolTerm, Kind, Term

#: A plain int, bool or None where every run of the path returns that; else a term, or a tuple.
Result: TypeAlias = Any


@dataclass(frozen=True, eq=False)
class Decision:
    """One question that the function asked: a condition, the answer on this path, the line.

    `forced` says that the precondition and the earlier decisions left no other answer, so that
    the path did not fork there.
    """

    condition: BoolTerm
    taken: bool
    forced: bool
    where: Where

    @property
    def literal(self) -> BoolTerm:
        """The condition as it holds on this path."""
        return self.condition if self.taken else terms.negated(self.condition)


@dataclass(frozen=True, eq=False)
class Path:
    """One way through a function.

    `condition` says, under the precondition, when it is taken. `writes` gives for each record the
    fields written on it and their last values, as terms over what the records held before.
    `result` is what it returns, `raised` the type of what it raises instead.
    """

    condition: BoolTerm
    writes: Mapping[str, Mapping[str, Term]]
    result: Result
    raised: type[Exception] | None
    decisions: tuple[Decision, ...]
    records: Mapping[str, Record]

    def before(self, record: str, field: str) -> Term:
        """What a field holds before."""
        return self.records[record].term(field)

    def after(self, record: str, field: str) -> Term:
        """What a field holds after: the last value written, else what it held."""
        written = self.writes[record]
        return written[field] if field in written else self.records[record].term(field)

    def unwritten(self, record: str) -> frozenset[str]:
        """The fields that this path leaves alone: the frame."""
        return frozenset(self.records[record].kinds) - frozenset(self.writes[record])

    def __str__(self) -> str:
        lines = [
            f"{'if' if decision.taken else 'unless'} {decision.condition}"
            f"{' (always so here)' if decision.forced else ''}  [{decision.where}]"
            for decision in self.decisions
        ]
        lines += [
            f"{record}.{field} = {term}"
            for record, fields in self.writes.items()
            for field, term in fields.items()
        ]
        lines.append(f"raise {self.raised.__name__}" if self.raised else f"return {self.result}")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Evaluated:
    """What the paths say about a concrete state: the path it takes, its writes and its result."""

    path: Path
    writes: dict[str, dict[str, int]]
    result: Any


@dataclass(frozen=True, eq=False)
class PathSet:
    """The paths of one function: they cover the precondition and exclude each other.

    `arguments` maps the parameters to what they were bound to. `precondition` includes what the
    records' fixed fields assume.
    """

    function: Callable[..., object]
    arguments: Mapping[str, Record | Term | int]
    precondition: BoolTerm
    paths: tuple[Path, ...]

    def __iter__(self) -> Iterator[Path]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __str__(self) -> str:
        title = f"{self.function.__qualname__}: {len(self)} paths"
        return "\n\n".join([title, *map(str, self.paths)])

    @cached_property
    def records(self) -> dict[str, Record]:
        """The records among the arguments, by their own names."""
        return {each.name: each for each in self.arguments.values() if isinstance(each, Record)}

    def evaluate(self, values: Mapping[str, object]) -> Evaluated:
        """Follow the one path that a concrete state takes.

        `values` gives for each record, by name, a mapping from its fields or an object that has
        them, and for every other variable its value. Raises OutsidePreconditionError,
        IncompletePathsError if no path condition holds and OverlappingPathsError if two do.
        """
        env = self.environment(values)
        required, *conditions = self._conditions(env, scalar_choice)
        if not required:
            raise OutsidePreconditionError(f"{values} is outside of the precondition")
        taken = [index for index, holds in enumerate(conditions) if holds]
        if not taken:
            raise IncompletePathsError(f"no path of {self.function.__qualname__} at {values}")
        if len(taken) > 1:
            raise OverlappingPathsError(f"two paths of {self.function.__qualname__} at {values}")
        path = self.paths[taken[0]]
        fields = [(record, field) for record in path.writes for field in path.writes[record]]
        outcome = self._outcomes[taken[0]](env, scalar_choice)
        writes: dict[str, dict[str, int]] = {record: {} for record in path.writes}
        for (record, field), value in zip(fields, outcome, strict=False):
            writes[record][field] = value
        return Evaluated(path, writes, _rebuild(path.result, list(outcome[len(fields) :])))

    def evaluate_arrays(self, values: Mapping[str, Any]) -> Any:
        """The result of a branch-free function (one path, no writes) on arrays, one a variable.

        Raises ValueError for a function that branches, writes or raises.
        """
        import numpy

        if len(self.paths) != 1 or self.paths[0].raised or any(self.paths[0].writes.values()):
            raise ValueError(f"{self.function.__qualname__} is not branch-free")
        env = self.environment(values, bool_type=lambda value: numpy.asarray(value, dtype=bool))
        outcome = self._outcomes[0](env, numpy.where)
        return _rebuild(self.paths[0].result, list(outcome))

    def environment(
        self, values: Mapping[str, object], bool_type: Callable[[Any], Any] = bool
    ) -> dict[str, Any]:
        """The values of all variables by name (`record.field`), from the values of records."""
        env: dict[str, Any] = {}
        for name, value in values.items():
            record = self.records.get(name)
            if record is None:
                env[name] = bool_type(value) if self.kinds.get(name) == "bool" else value
                continue
            held = value if isinstance(value, Mapping) else _Attributes(value)
            for field, kind in record.kinds.items():
                each: Any = held[field]
                env[f"{name}.{field}"] = bool_type(each) if kind == "bool" else each
        return env

    @cached_property
    def terms(self) -> list[Term]:
        """The precondition, and each path's condition, written values and result."""
        outcomes = [term for path in self.paths for term in _outcome_terms(path)]
        return [self.precondition, *(path.condition for path in self.paths), *outcomes]

    @cached_property
    def variables(self) -> dict[str, Kind]:
        """The variables that any of the terms mentions."""
        return terms.variables(self.terms)

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """The variables that any of the terms mentions, and those among the arguments."""
        loose = [each for each in self.arguments.values() if terms.is_term(each)]
        return {**self.variables, **terms.variables(loose)}

    @cached_property
    def _conditions(self) -> Compiled:
        return compile_terms([self.precondition, *(path.condition for path in self.paths)])

    @cached_property
    def _outcomes(self) -> list[Compiled]:
        return [compile_terms(_outcome_terms(path)) for path in self.paths]


class _Attributes:
    """An object's attributes as items."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __getitem__(self, name: str) -> Any:
        return getattr(self._value, name)


def _outcome_terms(path: Path) -> list[Term]:
    written = [term for fields in path.writes.values() for term in fields.values()]
    return written + [each for each in _flat(path.result) if terms.is_term(each)]


def _flat(result: Result) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


def _rebuild(result: Result, values: list[Any]) -> Any:
    """A result with its terms replaced by their values, in order."""
    filled = [values.pop(0) if terms.is_term(each) else each for each in _flat(result)]
    return tuple(filled) if isinstance(result, tuple) else filled[0]
