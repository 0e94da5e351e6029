"""From the symbolic executor's terms (Z3's) to expressions, exactly or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import z3

from ..symbolic.terms import Term, as_constant
from . import expressions as ex
from .expressions import Value


def translate(term: Term, variable: Callable[[str, bool], Value], known: dict[int, Value]) -> Value:
    """The expression of a term. `variable` gives the expression of a variable, by name and kind.

    `known` remembers what was translated, by the term's id; share it only between terms that are
    kept alive. Raises ValueError for an operator that the executor does not build.
    """
    stack = [term]
    while stack:
        each = stack[-1]
        number = each.get_id()
        if number in known:
            stack.pop()
            continue
        children = each.children()
        missing = [child for child in children if child.get_id() not in known]
        if missing:
            stack.extend(missing)
            continue
        known[number] = _built(each, [known[child.get_id()] for child in children], variable)
        stack.pop()
    return known[term.get_id()]


def _built(term: Term, arguments: list[Value], variable: Callable[[str, bool], Value]) -> Value:
    constant = as_constant(term)
    if constant is not None:
        return constant
    kind = term.decl().kind()
    if kind == z3.Z3_OP_UNINTERPRETED and not arguments:
        return variable(term.decl().name(), z3.is_bool(term))
    build = _OPERATORS.get(kind)
    if build is None:
        raise ValueError(f"no meaning known for {term.decl()} of {len(arguments)} arguments")
    return build(*arguments)


def _constant_divisor(function: Callable[[Value, int], Value]) -> Callable[[Value, Value], Value]:
    def divided(left: Value, right: Value) -> Value:
        if not isinstance(right, int):
            raise ValueError(f"division by {right!r}, which the instance does not fix")
        return function(left, right)

    return divided


_OPERATORS: Mapping[int, Callable[..., Value]] = {
    z3.Z3_OP_AND: ex.both,
    z3.Z3_OP_OR: ex.either,
    z3.Z3_OP_XOR: lambda left, right: ex.no(ex.equal(left, right)),
    z3.Z3_OP_NOT: ex.no,
    z3.Z3_OP_IMPLIES: lambda left, right: ex.either(ex.no(left), right),
    z3.Z3_OP_EQ: ex.equal,
    z3.Z3_OP_DISTINCT: lambda left, right: ex.no(ex.equal(left, right)),
    z3.Z3_OP_LE: ex.at_most,
    z3.Z3_OP_LT: lambda left, right: ex.no(ex.at_most(right, left)),
    z3.Z3_OP_GE: lambda left, right: ex.at_most(right, left),
    z3.Z3_OP_GT: lambda left, right: ex.no(ex.at_most(left, right)),
    z3.Z3_OP_ADD: lambda *values: reduce(ex.add, values),
    z3.Z3_OP_SUB: lambda *values: reduce(ex.subtract, values),
    z3.Z3_OP_MUL: lambda *values: reduce(ex.multiply, values),
    z3.Z3_OP_UMINUS: lambda value: ex.subtract(0, value),
    z3.Z3_OP_IDIV: _constant_divisor(ex.divide),
    z3.Z3_OP_MOD: _constant_divisor(ex.modulo),
    z3.Z3_OP_ITE: ex.choose,
}


def simple_variable(name: str, boolean: bool) -> Value:
    """A variable of that name with no known interval."""
    return ex.condition(name) if boolean else ex.variable(name)


def constants_first(constants: Mapping[str, int]) -> Callable[[str, bool], Value]:
    """Variables, but for those that have a fixed value."""

    def variable(name: str, boolean: bool) -> Value:
        found: Any = constants.get(name)
        if found is None:
            return simple_variable(name, boolean)
        return bool(found) if boolean else int(found)

    return variable
