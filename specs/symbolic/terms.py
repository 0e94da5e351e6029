"""The few terms of linear integer arithmetic that the executor builds, over Z3's own.

Z3 has no type stubs, so its terms are `Any` to the type checker: this module names the sorts in
signatures and keeps the folding of trivial terms (x + 0, not not x) in one place. Folding is
only there to keep formulas short and readable; nothing depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal, TypeAlias, TypeGuard

import z3

Kind: TypeAlias = Literal["int", "bool"]
IntTerm: TypeAlias = Any  # z3.ArithRef of sort Int
BoolTerm: TypeAlias = Any  # z3.BoolRef
Term: TypeAlias = Any  # either

TRUE: BoolTerm = z3.BoolVal(True)
FALSE: BoolTerm = z3.BoolVal(False)
_TRUE_ID, _FALSE_ID = TRUE.get_id(), FALSE.get_id()


@lru_cache(maxsize=4096)
def variable(name: str, kind: Kind) -> Term:
    """A free variable of that sort."""
    return z3.Bool(name) if kind == "bool" else z3.Int(name)


@lru_cache(maxsize=4096)
def number(value: int) -> IntTerm:
    """The numeral of a Python int."""
    return z3.IntVal(value)


def constant(value: int, kind: Kind) -> Term:
    """The numeral or truth value of a Python int or bool."""
    if kind == "bool":
        return TRUE if value else FALSE
    return number(int(value))


def kind_of(term: Term) -> Kind:
    """The sort of a term."""
    return "bool" if z3.is_bool(term) else "int"


def is_term(value: object) -> TypeGuard[Term]:
    """Whether it is a Z3 term of sort Int or Bool."""
    return isinstance(value, z3.BoolRef) or (isinstance(value, z3.ArithRef) and value.is_int())


def same(left: Term, right: Term) -> bool:
    """Whether two terms are the same syntactically (terms are hash-consed: a pointer compare)."""
    return bool(left.get_id() == right.get_id())


def as_constant(term: Term) -> int | bool | None:
    """The Python value of a numeral or truth value, None for every other term."""
    if isinstance(term, z3.IntNumRef):
        return int(term.as_long())
    number = term.get_id()
    return True if number == _TRUE_ID else False if number == _FALSE_ID else None


def negated(term: BoolTerm) -> BoolTerm:
    """Not, without a double negation."""
    if term.decl().kind() == z3.Z3_OP_NOT:
        return term.arg(0)
    known = as_constant(term)
    return z3.Not(term) if known is None else constant(not known, "bool")


def conjunction(terms: Iterable[BoolTerm]) -> BoolTerm:
    """And; true for none."""
    kept = [term for term in terms if as_constant(term) is not True]
    if not kept:
        return TRUE
    if any(as_constant(term) is False for term in kept):
        return FALSE
    return kept[0] if len(kept) == 1 else z3.And(kept)


def conjuncts(term: BoolTerm) -> list[BoolTerm]:
    """The terms that a conjunction joins, itself if it is none."""
    if not z3.is_and(term):
        return [term]
    return [each for child in term.children() for each in conjuncts(child)]


def disjunction(terms: Iterable[BoolTerm]) -> BoolTerm:
    """Or; false for none."""
    kept = [term for term in terms if as_constant(term) is not False]
    if not kept:
        return FALSE
    if any(as_constant(term) is True for term in kept):
        return TRUE
    return kept[0] if len(kept) == 1 else z3.Or(kept)


def choice(condition: BoolTerm, then: Term, otherwise: Term) -> Term:
    """If-then-else."""
    return z3.If(condition, then, otherwise)


# Comparisons call the method: a numeral's class derives from that of other terms, so Python would
# ask a numeral on the right first, and `state == 3` would come out as `3 == state`.


def equal(left: Term, right: Term) -> BoolTerm:
    """Equality of two terms of one sort."""
    return left.__eq__(right)


def compared(left: IntTerm, operator: Literal["<", "<=", ">", ">="], right: IntTerm) -> BoolTerm:
    """An order relation between two Int terms."""
    match operator:
        case "<":
            return left.__lt__(right)
        case "<=":
            return left.__le__(right)
        case ">":
            return left.__gt__(right)
        case ">=":
            return left.__ge__(right)


def exclusive_or(left: BoolTerm, right: BoolTerm) -> BoolTerm:
    """Exclusive or."""
    return z3.Xor(left, right)


def variables(terms: Iterable[Term]) -> dict[str, Kind]:
    """The free variables of some terms with their sorts, in the order of their names."""
    found: dict[str, Kind] = {}
    for term in subterms(terms):
        if term.num_args() == 0 and term.decl().kind() == z3.Z3_OP_UNINTERPRETED:
            found[term.decl().name()] = kind_of(term)
    return dict(sorted(found.items()))


def numerals(terms: Iterable[Term]) -> set[int]:
    """The integer constants that some terms mention."""
    return {int(term.as_long()) for term in subterms(terms) if z3.is_int_value(term)}


def subterms(terms: Iterable[Term]) -> Iterable[Term]:
    """Every distinct subterm of some terms, arguments before the terms that use them."""
    seen: set[int] = set()
    for root in terms:
        stack = [(root, False)]
        while stack:
            term, expanded = stack.pop()
            if expanded:
                yield term
            elif term.get_id() not in seen:
                seen.add(term.get_id())
                stack.append((term, True))
                stack.extend((child, False) for child in reversed(term.children()))


def atom(term: BoolTerm) -> tuple[tuple[int, ...], bool]:
    """A key that a literal shares with its negation, and which of the two it is.

    `a < b`, `b > a`, `not b <= a` and `not a >= b` are one literal, `b <= a` the other. Keys are
    ids of terms: valid only while the term is kept alive.
    """
    positive = True
    while (kind := term.decl().kind()) == z3.Z3_OP_NOT:
        term, positive = term.arg(0), not positive
    if kind in _ORDERED:
        swapped, holds = _ORDERED[kind]
        left, right = term.arg(0).get_id(), term.arg(1).get_id()
        return (0, right, left) if swapped else (0, left, right), positive == holds
    if kind == z3.Z3_OP_EQ:
        left, right = sorted((term.arg(0).get_id(), term.arg(1).get_id()))
        return (1, left, right), positive
    return (term.get_id(),), positive


# Each order relation as (arguments swapped, polarity) of `left <= right`.
_ORDERED: dict[int, tuple[bool, bool]] = {
    z3.Z3_OP_LE: (False, True),
    z3.Z3_OP_GE: (True, True),
    z3.Z3_OP_LT: (True, False),
    z3.Z3_OP_GT: (False, False),
}
