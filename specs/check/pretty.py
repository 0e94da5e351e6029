"""Formulas as people read them: infix, with the names of states instead of their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import z3

from ...statemachine.states import (
    EngineMode,
    HoldKind,
    PauseMode,
    RequestState,
    TransferState,
)
from ..symbolic import terms
from ..symbolic.terms import Term

#: Fields whose numbers have names.
NAMES: Mapping[str, type[IntEnum]] = {
    "r.state": RequestState,
    "r2.state": RequestState,
    "ask.reason": RequestState,
    "t.state": TransferState,
    "t2.state": TransferState,
    "t.kind": HoldKind,
    "t2.kind": HoldKind,
    "transfer_ask.kind": HoldKind,
    "e.mode": EngineMode,
    "e.pausing": PauseMode,
    "engine_ask.pausing": PauseMode,
}

_INFIX = {
    z3.Z3_OP_LE: " ≤ ",
    z3.Z3_OP_LT: " < ",
    z3.Z3_OP_GE: " ≥ ",
    z3.Z3_OP_GT: " > ",
    z3.Z3_OP_ADD: " + ",
    z3.Z3_OP_SUB: " - ",
    z3.Z3_OP_MUL: "·",
    z3.Z3_OP_IDIV: " div ",
    z3.Z3_OP_MOD: " mod ",
    z3.Z3_OP_AND: " ∧ ",
    z3.Z3_OP_OR: " ∨ ",
    z3.Z3_OP_IMPLIES: " → ",
    z3.Z3_OP_XOR: " xor ",
}
_SUMS = {z3.Z3_OP_ADD, z3.Z3_OP_SUB}
_QUOTIENTS = {z3.Z3_OP_IDIV, z3.Z3_OP_MOD}


def value_name(field: str, value: int | bool | None) -> str:
    """A field's value, by name if it has one."""
    names = NAMES.get(field.rstrip("'"))
    if names is not None and value in [int(each) for each in names]:
        return names(int(value or 0)).name
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def pretty(term: Term) -> str:
    """A formula on one line."""
    return _text(term, False)


def _text(term: Term, inner: bool) -> str:
    known = terms.as_constant(term)
    if known is not None:
        return str(known).lower() if isinstance(known, bool) else str(known)
    kind = term.decl().kind()
    children = term.children()
    if not children:
        return str(term.decl().name())
    if kind == z3.Z3_OP_NOT:
        child = children[0]
        if child.decl().kind() == z3.Z3_OP_EQ:
            return _equation(child, "≠", inner)
        return f"¬{_text(child, True)}"
    if kind == z3.Z3_OP_DISTINCT and len(children) == 2:
        return _equation(term, "≠", inner)
    if kind == z3.Z3_OP_EQ:
        both_bool = terms.kind_of(children[0]) == "bool"
        return _equation(term, "↔" if both_bool else "=", inner)
    if kind == z3.Z3_OP_ITE:
        condition, then, otherwise = (_text(child, False) for child in children)
        if then == "1" and otherwise == "0":
            return f"[{condition}]"
        return f"({then} if {condition} else {otherwise})"
    if kind == z3.Z3_OP_OR and (membership := _membership(children)) is not None:
        return membership
    if kind in _INFIX:
        operands = [_operand(child, kind, place) for place, child in enumerate(children)]
        text = _INFIX[kind].join(operands)
        return f"({text})" if inner and kind != z3.Z3_OP_MUL else text
    if kind == z3.Z3_OP_UMINUS:
        return f"-{_text(children[0], True)}"
    return f"{term.decl().name()}({', '.join(_text(child, False) for child in children)})"


def _operand(term: Term, of: int, place: int) -> str:
    """An operand with parentheses, unless the formula reads the same without."""
    kind = term.decl().kind()
    if of in _QUOTIENTS and kind in (z3.Z3_OP_MUL, z3.Z3_OP_UMINUS):
        return f"({_text(term, False)})"
    first_or_added = place == 0 or of == z3.Z3_OP_ADD
    return _text(term, not (of in _SUMS and kind in _SUMS and first_or_added))


def _equation(term: Term, sign: str, inner: bool) -> str:
    left, right = term.children()
    field = str(left.decl().name()) if not left.children() else ""
    value = terms.as_constant(right)
    shown = value_name(field, value) if value is not None else _text(right, True)
    text = f"{_text(left, True)} {sign} {shown}"
    return f"({text})" if inner else text


def _membership(children: list[Term]) -> str | None:
    """`x = a ∨ x = b` as `x ∈ {a, b}`."""
    field: str | None = None
    values: list[str] = []
    for child in children:
        if child.decl().kind() != z3.Z3_OP_EQ:
            return None
        left, right = child.children()
        value = terms.as_constant(right)
        if value is None or left.children() or field not in (None, str(left.decl().name())):
            return None
        field = str(left.decl().name())
        values.append(value_name(field, value))
    return f"{field} ∈ {{{', '.join(values)}}}"
