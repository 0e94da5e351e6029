"""Walks over expressions: replacing parts, collecting them, and what a guard says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from . import expressions as ex
from .expressions import Expr, Value

_BUILDERS: Mapping[str, Callable[..., Value]] = {
    "add": ex.add,
    "sub": ex.subtract,
    "mul": ex.multiply,
    "div": ex.divide,
    "mod": ex.modulo,
    "eq": ex.equal,
    "le": ex.at_most,
    "not": ex.no,
    "and": ex.both,
    "or": ex.either,
    "ite": ex.choose,
}


def replace(value: Value, known: Mapping[int, Value], memo: dict[int, Value]) -> Value:
    """The term with nodes replaced, by their index, and folded again.

    `memo` is shared between terms that are replaced under the same `known`.
    """
    if not isinstance(value, Expr):
        return value
    found = known.get(value.index)
    if found is not None:
        return found
    found = memo.get(value.index)
    if found is not None:
        return found
    if value.op == "var":
        result: Value = value
    else:
        args = [replace(each, known, memo) for each in value.args]
        unchanged = all(new is old for new, old in zip(args, value.args, strict=True))
        result = value if unchanged else _BUILDERS[value.op](*args)
    memo[value.index] = result
    return result


def subterms(values: Iterable[Value]) -> list[Expr]:
    """Every distinct node, arguments before the nodes that use them."""
    seen: set[int] = set()
    ordered: list[Expr] = []
    for root in values:
        if not isinstance(root, Expr):
            continue
        stack = [(root, False)]
        while stack:
            node, expanded = stack.pop()
            if expanded:
                ordered.append(node)
            elif node.index not in seen:
                seen.add(node.index)
                stack.append((node, True))
                if node.op != "var":
                    stack.extend((arg, False) for arg in node.args if isinstance(arg, Expr))
    return ordered


def variables(values: Iterable[Value]) -> list[str]:
    """The names of the variables that are mentioned, sorted."""
    return sorted({node.args[0] for node in subterms(values) if node.op == "var"})


def conjuncts(value: Value) -> tuple[Value, ...]:
    """The conditions that a conjunction joins, itself if it is none."""
    return value.args if isinstance(value, Expr) and value.op == "and" else (value,)


def learned(guard: Value) -> dict[int, Value]:
    """What is known where a guard holds: nodes, by index, with the values that they have there."""
    known: dict[int, Value] = {}
    for part in conjuncts(guard):
        if not isinstance(part, Expr):
            continue
        known[part.index] = True
        if part.op == "not":
            known[part.args[0].index] = False
        if part.op == "eq" and not isinstance(part.args[1], Expr):
            known[part.args[0].index] = part.args[1]
    return known
