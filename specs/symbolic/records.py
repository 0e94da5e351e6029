"""Symbolic records: what a function reads and writes in place of the engine's slot records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NoReturn, cast

from . import terms
from .errors import UnknownFieldError
from .terms import BoolTerm, Kind, Term
from .values import (
    SymBool,
    SymInt,
    Value,
    bool_term,
    current_run,
    int_term,
    symbol,
    unsupported,
)


@dataclass(frozen=True, eq=False)
class Record:
    """A record before a function runs: the term of each field, a free variable if not given.

    `kinds` maps each field to "int" or "bool"; the variable of field `f` is named `name.f`.
    Two parameters bound to one Record are one object to the function.
    `facts`, if given, is the class of the real record, for the differential test.
    """

    name: str
    kinds: Mapping[str, Kind]
    facts: type | None = None
    given: Mapping[str, Term] = field(default_factory=dict)
    assumptions: tuple[BoolTerm, ...] = ()

    def __post_init__(self) -> None:
        for name, kind in self.kinds.items():
            if kind not in ("int", "bool"):
                raise ValueError(f"{self.name}.{name}: kind {kind!r} is neither int nor bool")
        object.__setattr__(self, "kinds", MappingProxyType(dict(self.kinds)))

    @classmethod
    def of(cls, facts: type, name: str) -> Record:
        """The symbolic record of a fact class, which says its kinds in `KINDS`."""
        return cls(name, cast("Mapping[str, Kind]", vars(facts)["KINDS"]), facts)

    def variable(self, name: str) -> Term:
        """The free variable of a field."""
        return terms.variable(f"{self.name}.{name}", self._kind(name))

    def term(self, name: str) -> Term:
        """What the field holds before the function runs."""
        given = self.given.get(name)
        return self.variable(name) if given is None else given

    def before(self) -> dict[str, Term]:
        """What each field holds before the function runs."""
        return {name: self.term(name) for name in self.kinds}

    def fixed(self, **values: int) -> Record:
        """The same record where some fields have known values.

        The function reads plain Python ints there and asks the solver nothing about them; that
        the fields' variables have these values becomes part of the precondition.
        """
        given, assumptions = dict(self.given), list(self.assumptions)
        for name, value in values.items():
            given[name] = terms.constant(value, self._kind(name))
            assumptions.append(terms.equal(self.variable(name), given[name]))
        return replace(self, given=given, assumptions=tuple(assumptions))

    def holding(self, **given: Term) -> Record:
        """The same record where some fields hold given terms, such as what another path wrote."""
        for name in given:
            self._kind(name)
        return replace(self, given={**self.given, **given})

    def _kind(self, name: str) -> Kind:
        if name not in self.kinds:
            raise UnknownFieldError(f"record {self.name} declares no field {name!r}")
        return self.kinds[name]


class LiveRecord:
    """The record that the function sees on one path: last written value, else what it held."""

    __slots__ = ("_record", "_values", "_written")
    _record: Record
    _values: dict[str, Value]
    _written: dict[str, None]

    def __init__(self, record: Record, initial: Mapping[str, Value]) -> None:
        object.__setattr__(self, "_record", record)
        object.__setattr__(self, "_values", dict(initial))
        object.__setattr__(self, "_written", {})

    def __getattr__(self, name: str) -> Value:
        try:
            return self._values[name]
        except KeyError:
            self._unknown(name, "read")

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self._values:
            self._unknown(name, "written")
        if not isinstance(value, int | SymInt | SymBool):
            unsupported(f"{self._record.name}.{name} written with {type(value).__name__} {value!r}")
        if self._record.kinds[name] == "bool":
            bool_term(value)
        self._values[name] = value
        self._written[name] = None

    def __delattr__(self, name: str) -> None:
        unsupported(f"deletion of {self._record.name}.{name}")

    def __bool__(self) -> bool:
        unsupported(f"truth value of the record {self._record.name}")

    def __eq__(self, other: object) -> bool:
        unsupported(f"comparison of the record {self._record.name}")

    def __hash__(self) -> int:
        unsupported(f"hash of the record {self._record.name}")

    def __repr__(self) -> str:
        return f"<record {self._record.name}>"

    def _unknown(self, name: str, how: str) -> NoReturn:
        run = current_run.get()
        where = run.where() if run is not None else None
        raise UnknownFieldError(
            f"{where}: record {self._record.name} declares no field {name!r}, which is {how} here"
        )


def values_of(record: Record) -> dict[str, Value]:
    """What each field holds before the function runs, as values to run on."""
    return {name: symbol(term) for name, term in record.before().items()}


def writes_of(record: LiveRecord) -> dict[str, Term]:
    """The fields that were written, in the order of the record's fields, with their last values."""
    kinds = record._record.kinds
    return {
        name: bool_term(record._values[name]) if kind == "bool" else int_term(record._values[name])
        for name, kind in kinds.items()
        if name in record._written
    }
