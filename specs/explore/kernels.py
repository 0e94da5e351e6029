"""Expressions compiled once to straight-line array code, each shared subterm computed once.

A kernel reads columns of bytes, takes fields out of them, computes, and may put fields back into
bytes. Ints are of the smallest signed type that holds every intermediate value, truth values are
bools: a column of 64 Ki states is 64 KiB, and one operation on it takes a few microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import expressions as ex
from . import walking
from .backend import Array, Backend
from .expressions import Expr, Value
from .layout import Layout, Place

#: By the number of bits of a type: the least and the most that it holds.
_RANGES = {8: (-128, 127), 16: (-(1 << 15), (1 << 15) - 1), 32: (-(1 << 31), (1 << 31) - 1)}

#: From a matrix of bytes, a row a state, to results: arrays, or plain values for constants.
Compiled = Callable[[Array], tuple[Any, ...]]


@dataclass(frozen=True)
class NewByte:
    """A byte of the next state: what is kept of the old one, and which fields are put in."""

    byte: int
    keep: int  # mask of the bits that stay
    constant: int  # bits that are set
    fields: tuple[tuple[Place, Value], ...]


class Kernel:
    """Expressions, and bytes put together from them, as one function of byte columns.

    Results come in the order of `wanted`, then of `new_bytes`.
    """

    def __init__(
        self,
        layout: Layout,
        backend: Backend,
        wanted: Sequence[Value],
        new_bytes: Sequence[NewByte] = (),
    ) -> None:
        fields = [_stored(place, value) for new in new_bytes for place, value in new.fields]
        nodes = walking.subterms([*wanted, *fields])
        self.bits = _bits(nodes)
        self.operations = sum(node.op != "var" for node in nodes)
        widening, names_of_backend = backend.widening(self.bits)
        narrowing, names_of_bytes = backend.widening(8)
        if self.bits != 8:
            narrowing = narrowing.replace("kind", "byte").replace("view", "astype")
            names_of_backend = {**names_of_backend, "byte": names_of_bytes["kind"]}
        writer = _Writer(layout, self.bits, nodes, [*wanted, *fields], widening, narrowing)
        names = writer.names
        results = [_operand(value, names) for value in wanted]
        for new in new_bytes:
            results.append(writer.packed(new))
        writer.lines.append(f"    return ({''.join(f'{result}, ' for result in results)})")
        self.inputs = sorted(writer.columns)
        self.source = "\n".join(["def kernel(matrix):", *writer.lines]) + "\n"
        scope: dict[str, Any] = {"column": backend.column, **names_of_backend}
        exec(compile(self.source, "<kernel>", "exec"), scope)
        self.run: Compiled = scope["kernel"]


def _stored(place: Place, value: Value) -> Value:
    return value if place.slot.boolean else ex.number(value) - place.slot.low


def _bits(nodes: Sequence[Expr]) -> int:
    low = min((node.low for node in nodes if not node.boolean), default=0)
    high = max((node.high for node in nodes if not node.boolean), default=0)
    for bits, (least, most) in _RANGES.items():
        if least <= low and high <= most:
            return bits
    raise ValueError(f"values from {low} to {high} do not fit in 32 bits")


class _Writer:
    """Writes the lines of one kernel."""

    def __init__(
        self,
        layout: Layout,
        bits: int,
        nodes: Sequence[Expr],
        wanted: Sequence[Value],
        widening: str,
        narrowing: str,
    ) -> None:
        self._number = widening.format
        self._byte = narrowing.format
        self.lines: list[str] = []
        self.names: dict[int, str] = {}
        self.columns: set[int] = set()
        self._layout = layout
        self._bits = bits
        self._masks: dict[int, str] = {}
        # A name is dropped behind its last use: the memory serves the next result.
        last: dict[int, int] = {}
        for position, node in enumerate(nodes):
            for arg in _arguments(node):
                last[arg.index] = position
        kept = {value.index for value in wanted if isinstance(value, Expr)}
        for position, node in enumerate(nodes):
            name = f"t{position}"
            code = self._code(node, position)
            self.names[node.index] = name
            self.lines.append(f"    {name} = {code}")
            ending = {arg.index for arg in _arguments(node) if last[arg.index] == position}
            spent = [self.names[index] for index in sorted(ending - kept)]
            spent += [self._masks[index] for index in sorted(ending) if index in self._masks]
            if spent:
                self.lines.append(f"    del {', '.join(spent)}")

    def column(self, byte: int) -> str:
        """The name of a byte column."""
        if byte not in self.columns:
            self.columns.add(byte)
            self.lines.append(f"    b{byte} = column(matrix, {byte})")
        return f"b{byte}"

    def packed(self, new: NewByte) -> str:
        """The code of a new byte."""
        parts = [f"({self.column(new.byte)} & {_signed(new.keep)})"] if new.keep else []
        for place, value in new.fields:
            stored = _stored(place, value)
            assert isinstance(stored, Expr)
            part = self.names[stored.index]
            if place.slot.boolean or self._bits != 8:
                part = self._byte(part)
            parts.append(f"({part} << {place.shift})" if place.shift else part)
        if not parts:
            # Every bit is a constant: any column gives the shape.
            return f"(({self.column(new.byte)} & 0) | {_signed(new.constant)})"
        if new.constant:
            parts.append(str(_signed(new.constant)))
        return " | ".join(parts)

    def _code(self, node: Expr, position: int) -> str:
        if node.op == "var":
            return self._field(self._layout.by_name[node.args[0]])
        args = [_operand(arg, self.names) for arg in node.args]
        match node.op:
            case "add" | "sub" | "mul" | "div" | "mod" | "eq" | "le":
                return f"{args[0]} {_OPERATORS[node.op]} {args[1]}"
            case "and" | "or":
                return _OPERATORS[node.op].join(args)
            case "not":
                return f"~{args[0]}"
            case "ite" if node.boolean:
                return f"{args[2]} ^ (({args[1]} ^ {args[2]}) & {args[0]})"
            case "ite":
                return self._chosen(node, args, position)
        raise ValueError(f"no array code for {node.op}")

    def _field(self, place: Place) -> str:
        column = self.column(place.byte)
        if place.slot.boolean:
            return f"({column} & {_signed(place.mask << place.shift)}) != 0"
        # Bytes are signed: what a shift brings in from above is cut off.
        code = f"({column} >> {place.shift})" if place.shift else column
        code = f"({code} & {place.mask})"
        if self._bits != 8:
            code = self._number(code)
        return f"{code} + {place.slot.low}" if place.slot.low else code

    def _chosen(self, node: Expr, args: Sequence[str], position: int) -> str:
        """A choice between numbers, by bits: several times as fast as an elementwise one."""
        test, then, otherwise = node.args
        if not isinstance(then, Expr) and not isinstance(otherwise, Expr):
            chosen = self._number(args[0])
            if then - otherwise != 1:
                chosen += f" * {then - otherwise}"
            return f"{chosen} + {otherwise}" if otherwise else chosen
        if test.index not in self._masks:
            self._masks[test.index] = f"m{position}"
            self.lines.append(f"    m{position} = -{self._number(self.names[test.index])}")
        mask = self._masks[test.index]
        if not isinstance(otherwise, Expr) and otherwise == 0:
            return f"{args[1]} & {mask}"
        if not isinstance(then, Expr) and then == 0:
            return f"{args[2]} & ~{mask}"
        return f"{args[2]} ^ (({args[1]} ^ {args[2]}) & {mask})"


def _signed(byte: int) -> int:
    """A byte's bits as the signed number that they are."""
    return byte - 256 if byte > 127 else byte


def _arguments(node: Expr) -> list[Expr]:
    if node.op == "var":
        return []
    return [arg for arg in node.args if isinstance(arg, Expr)]


def _operand(value: Value, names: Mapping[int, str]) -> str:
    return names[value.index] if isinstance(value, Expr) else repr(value)


_OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "//",
    "mod": "%",
    "eq": "==",
    "le": "<=",
    "and": " & ",
    "or": " | ",
}
