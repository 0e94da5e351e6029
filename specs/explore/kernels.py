"""Expressions compiled once to straight-line array code, each shared subterm computed once.

The code runs on numpy arrays or torch tensors: ints in the smallest signed type that holds every
intermediate value of the kernel, truth values as bools. Small types are what makes it fast: a
column of 64 Ki states is 64 KiB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from . import expressions as ex
from .expressions import Expr, Value

#: By the number of bits of a type: the least and the most that it holds.
_RANGES = {8: (-128, 127), 16: (-(1 << 15), (1 << 15) - 1), 32: (-(1 << 31), (1 << 31) - 1)}


class Arrays(Protocol):
    """The array operations that kernels need beside operators."""

    def where(self, condition: Any, then: Any, otherwise: Any) -> Any:
        """Elementwise choice; one branch at least is an array."""

    def constant(self, value: int, bits: int) -> Any:
        """A number in the type of that width."""

    def one(self, condition: Any, bits: int) -> Any:
        """A truth value as 0 or 1 in the type of that width."""

    def widen(self, column: Any, bits: int) -> Any:
        """A column of ints in the type of that width; itself if it is that already."""


#: From columns by slot name to results: arrays, or plain values where a result is constant.
Compiled = Callable[[Mapping[str, Any]], tuple[Any, ...]]


class Kernel:
    """A list of expressions as one function of columns."""

    def __init__(self, wanted: Sequence[Value], arrays: Arrays) -> None:
        self.wanted = tuple(wanted)
        self.inputs: list[str] = ex.variables(self.wanted)
        nodes = ex.subterms(self.wanted)
        self.bits = _bits(nodes)
        self.operations = sum(node.op != "var" for node in nodes)
        self._source = _source(self.wanted, nodes, self.bits)
        scope: dict[str, Any] = {
            "where": arrays.where,
            "constant": lambda value: arrays.constant(value, self.bits),
            "one": lambda condition: arrays.one(condition, self.bits),
            "widen": lambda column: arrays.widen(column, self.bits),
        }
        exec(compile(self._source, "<kernel>", "exec"), scope)
        self.run: Compiled = scope["kernel"]


def _bits(nodes: Sequence[Expr]) -> int:
    low = min((node.low for node in nodes if not node.boolean), default=0)
    high = max((node.high for node in nodes if not node.boolean), default=0)
    for bits, (least, most) in _RANGES.items():
        if least <= low and high <= most:
            return bits
    raise ValueError(f"values from {low} to {high} do not fit in 32 bits")


def _source(wanted: Sequence[Value], nodes: Sequence[Expr], bits: int) -> str:
    names: dict[int, str] = {}
    lines = ["def kernel(columns):"]
    # A name is dropped behind its last use: the memory serves the next result.
    last: dict[int, int] = {}
    for position, node in enumerate(nodes):
        if node.op != "var":
            for arg in node.args:
                if isinstance(arg, Expr):
                    last[arg.index] = position
    kept = {value.index for value in wanted if isinstance(value, Expr)}
    for position, node in enumerate(nodes):
        name = f"t{position}"
        names[node.index] = name
        lines.append(f"    {name} = {_code(node, names, bits)}")
        spent = [
            names[arg.index]
            for arg in {a.index: a for a in node.args if isinstance(a, Expr)}.values()
            if node.op != "var" and last[arg.index] == position and arg.index not in kept
        ]
        if spent:
            lines.append(f"    del {', '.join(spent)}")
    results = "".join(f"{_operand(value, names)}, " for value in wanted)
    lines.append(f"    return ({results})")
    return "\n".join(lines) + "\n"


def _operand(value: Value, names: Mapping[int, str]) -> str:
    return names[value.index] if isinstance(value, Expr) else repr(value)


def _code(node: Expr, names: Mapping[int, str], bits: int) -> str:
    if node.op == "var":
        column = f"columns[{node.args[0]!r}]"
        return column if node.boolean or bits == 8 else f"widen({column})"
    args = [_operand(arg, names) for arg in node.args]
    match node.op:
        case "add" | "sub" | "mul" | "div" | "mod" | "eq" | "le":
            return f"{args[0]} {_OPERATORS[node.op]} {args[1]}"
        case "and" | "or":
            return _OPERATORS[node.op].join(args)
        case "not":
            return f"~{args[0]}"
        case "ite" if not node.boolean:
            then, otherwise = node.args[1:]
            if isinstance(then, Expr) or isinstance(otherwise, Expr):
                chosen = [
                    arg if isinstance(value, Expr) else f"constant({arg})"
                    for arg, value in zip(args[1:], node.args[1:], strict=True)
                ]
                return f"where({args[0]}, {', '.join(chosen)})"
            if otherwise == 0:
                return f"one({args[0]})" if then == 1 else f"one({args[0]}) * {then}"
            return f"one({args[0]}) * {then - otherwise} + {otherwise}"
        case "ite":
            return f"where({', '.join(args)})"
    raise ValueError(f"no array code for {node.op}")


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
