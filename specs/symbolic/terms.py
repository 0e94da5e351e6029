"""The few terms of linear integer arithmetic that the executor builds, over Z3's own.

Z3 has no type stubs, so its terms are `Any` to the type checker: this module names the sorts in
signatures and keeps the folding of trivial terms (x + 0, not not x) in one place. Folding is
only there to keep formulas short and readable; nothing depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Literal, TypeAlias, TypeGuard

import z3

Kind: TypeAlias = Literal["int", "bool"]
IntTerm: TypeAlias = Any  # z3.ArithRef of sort Int
BoolTerm: TypeAlias = Any  # z3.BoolRef
Term: TypeAlias = Any  # either

TRUE: BoolTerm = z3.BoolVal(True)
FALSE: BoolTerm = z3.BoolVal(False)

# Terms are hash-consed: as long as both are kept, equal terms are one object to the solver, and its
# address says so without a call. The constructors below call the solver's C functions themselves,
# since z3.And and z3.If look at every argument's sort again and take most of the proofs' time.
_TRUE_AT, _FALSE_AT = TRUE.ast.value, FALSE.ast.value
_CONTEXT = TRUE.ctx
_REFERENCE = TRUE.ctx_ref()
_INT_AT = z3.IntSort().ast.value


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
    if isinstance(value, z3.ArithRef):
        return bool(z3.Z3_get_sort(_REFERENCE, value.ast).value == _INT_AT)
    return isinstance(value, z3.BoolRef)


def same(left: Term, right: Term) -> bool:
    """Whether two terms are the same syntactically (terms are hash-consed: a pointer compare)."""
    return bool(left.ast.value == right.ast.value)


def as_constant(term: Term) -> int | bool | None:
    """The Python value of a numeral or truth value, None for every other term."""
    if isinstance(term, z3.IntNumRef):
        return int(term.as_long())
    address = term.ast.value
    return True if address == _TRUE_AT else False if address == _FALSE_AT else None


def negated(term: BoolTerm) -> BoolTerm:
    """Not, without a double negation."""
    known = as_constant(term)
    if known is not None:
        return constant(not known, "bool")
    if _kind(term.ast) == z3.Z3_OP_NOT:
        return term.arg(0)
    return z3.BoolRef(z3.Z3_mk_not(_REFERENCE, term.ast), _CONTEXT)


def conjunction(terms: Iterable[BoolTerm]) -> BoolTerm:
    """And; true for none."""
    return _joined(terms, _TRUE_AT, _FALSE_AT, TRUE, FALSE, z3.Z3_mk_and)


def conjuncts(term: BoolTerm) -> list[BoolTerm]:
    """The terms that a conjunction joins, itself if it is none."""
    if not z3.is_and(term):
        return [term]
    return [each for child in term.children() for each in conjuncts(child)]


def disjunction(terms: Iterable[BoolTerm]) -> BoolTerm:
    """Or; false for none."""
    return _joined(terms, _FALSE_AT, _TRUE_AT, FALSE, TRUE, z3.Z3_mk_or)


def _joined(
    terms: Iterable[BoolTerm],
    neutral_at: int,
    deciding_at: int,
    neutral: BoolTerm,
    deciding: BoolTerm,
    make: Callable[..., Any],
) -> BoolTerm:
    kept = [term for term in terms if term.ast.value != neutral_at]
    if not kept:
        return neutral
    if any(term.ast.value == deciding_at for term in kept):
        return deciding
    if len(kept) == 1:
        return kept[0]
    arguments = (z3.Ast * len(kept))(*(term.ast for term in kept))
    return z3.BoolRef(make(_REFERENCE, len(kept), arguments), _CONTEXT)


def choice(condition: BoolTerm, then: Term, otherwise: Term) -> Term:
    """If-then-else of two terms of one sort."""
    made = z3.Z3_mk_ite(_REFERENCE, condition.ast, then.ast, otherwise.ast)
    return (z3.BoolRef if isinstance(then, z3.BoolRef) else z3.ArithRef)(made, _CONTEXT)


# Comparisons name their operands in order: a numeral's class derives from that of other terms, so
# Python would ask a numeral on the right first, and `state == 3` would come out as `3 == state`.


def equal(left: Term, right: Term) -> BoolTerm:
    """Equality of two terms of one sort."""
    return z3.BoolRef(z3.Z3_mk_eq(_REFERENCE, left.ast, right.ast), _CONTEXT)


def compared(left: IntTerm, operator: Literal["<", "<=", ">", ">="], right: IntTerm) -> BoolTerm:
    """An order relation between two Int terms."""
    return z3.BoolRef(_MAKE[operator](_REFERENCE, left.ast, right.ast), _CONTEXT)


_MAKE: dict[str, Callable[..., Any]] = {
    "<": z3.Z3_mk_lt,
    "<=": z3.Z3_mk_le,
    ">": z3.Z3_mk_gt,
    ">=": z3.Z3_mk_ge,
}


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
    addresses of terms: valid only while the term is kept alive.
    """
    positive, each = True, term.ast
    while (kind := _kind(each)) == z3.Z3_OP_NOT:
        each, positive = z3.Z3_get_app_arg(_REFERENCE, each, 0), not positive
    if kind in _ORDERED:
        swapped, holds = _ORDERED[kind]
        left, right = _arguments(each)
        return (0, right, left) if swapped else (0, left, right), positive == holds
    if kind == z3.Z3_OP_EQ:
        left, right = sorted(_arguments(each))
        return (1, left, right), positive
    return (each.value,), positive


def _kind(ast: Any) -> int:
    return int(z3.Z3_get_decl_kind(_REFERENCE, z3.Z3_get_app_decl(_REFERENCE, ast)))


def _arguments(ast: Any) -> tuple[int, int]:
    """The addresses of the two arguments."""
    left, right = (z3.Z3_get_app_arg(_REFERENCE, ast, index) for index in (0, 1))
    return left.value, right.value


# Each order relation as (arguments swapped, polarity) of `left <= right`.
_ORDERED: dict[int, tuple[bool, bool]] = {
    z3.Z3_OP_LE: (False, True),
    z3.Z3_OP_GE: (True, True),
    z3.Z3_OP_LT: (True, False),
    z3.Z3_OP_GT: (False, False),
}
