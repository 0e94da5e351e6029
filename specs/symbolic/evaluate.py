"""Terms compiled to Python functions of concrete values: ints or numpy arrays.

Z3 can substitute and simplify, but takes milliseconds for it; the differential test evaluates
millions of terms. So a list of terms is compiled once to straight-line Python, each subterm
computed once. The code for single values and for arrays differs only in how it chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import z3

from .terms import Term, as_constant, subterms

#: From variables' names to values, and a choice `where(condition, then, otherwise)`, to results.
Compiled = Callable[[Mapping[str, Any], Callable[[Any, Any, Any], Any]], tuple[Any, ...]]


def compile_terms(wanted: Sequence[Term]) -> Compiled:
    """Compile terms to one function of their variables' values.

    Bool variables must be given as bools (or bool arrays). Raises ValueError for an operator that
    the executor does not build.
    """
    names: dict[int, str] = {}
    lines: list[str] = []
    for term in subterms(wanted):
        operands = [names[child.get_id()] for child in term.children()]
        code = _code(term, operands)
        if operands or not code.isidentifier():
            name = f"t{len(names)}"
            lines.append(f"    {name} = {code}")
            code = name
        names[term.get_id()] = code
    results = "".join(f"{names[term.get_id()]}, " for term in wanted)
    source = "\n".join(["def evaluate(env, where):", *lines, f"    return ({results})"])
    scope: dict[str, Any] = {}
    exec(source, scope)
    function: Compiled = scope["evaluate"]
    return function


def scalar_choice(condition: bool, then: Any, otherwise: Any) -> Any:
    """The choice for single values."""
    return then if condition else otherwise


def _code(term: Term, operands: list[str]) -> str:
    known = as_constant(term)
    if known is not None:
        return repr(known)
    kind = term.decl().kind()
    if kind == z3.Z3_OP_UNINTERPRETED and not operands:
        return f"env[{term.decl().name()!r}]"
    if kind in (z3.Z3_OP_IDIV, z3.Z3_OP_MOD):
        divisor = as_constant(term.arg(1))
        # Only there do Z3's and Python's division agree.
        if divisor is None or divisor <= 0:
            raise ValueError(f"division by something else than a positive constant: {term}")
    if kind in _INFIX:
        return f"({_INFIX[kind].join(operands)})"
    match kind, operands:
        case z3.Z3_OP_NOT, [operand]:
            return f"({operand} ^ True)"
        case z3.Z3_OP_UMINUS, [operand]:
            return f"(-{operand})"
        case z3.Z3_OP_ITE, [condition, then, otherwise]:
            return f"where({condition}, {then}, {otherwise})"
        case z3.Z3_OP_IMPLIES, [left, right]:
            return f"(({left} ^ True) | {right})"
        case z3.Z3_OP_DISTINCT, [left, right]:
            return f"({left} != {right})"
    raise ValueError(f"no concrete meaning known for {term.decl()} of {len(operands)} arguments")


# `&` and `|` are exact on bools, and work on arrays of bools, where `and` and `or` do not.
_INFIX = {
    z3.Z3_OP_AND: " & ",
    z3.Z3_OP_OR: " | ",
    z3.Z3_OP_XOR: " ^ ",
    z3.Z3_OP_EQ: " == ",
    z3.Z3_OP_LE: " <= ",
    z3.Z3_OP_LT: " < ",
    z3.Z3_OP_GE: " >= ",
    z3.Z3_OP_GT: " > ",
    z3.Z3_OP_ADD: " + ",
    z3.Z3_OP_SUB: " - ",
    z3.Z3_OP_MUL: " * ",
    z3.Z3_OP_IDIV: " // ",
    z3.Z3_OP_MOD: " % ",
}
