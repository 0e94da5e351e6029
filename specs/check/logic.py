"""The few connectives in which invariants are written, over Z3's terms.

Numbers may be given as plain ints. `among` says that a state is one of several.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import z3

from ..symbolic import terms
from ..symbolic.terms import BoolTerm, IntTerm, Term


def both(*parts: BoolTerm) -> BoolTerm:
    """All of them hold."""
    return terms.conjunction(parts)


def either(*parts: BoolTerm) -> BoolTerm:
    """At least one of them holds."""
    return terms.disjunction(parts)


def no(part: BoolTerm) -> BoolTerm:
    """It does not hold."""
    return terms.negated(part)


def implies(condition: BoolTerm, conclusion: BoolTerm) -> BoolTerm:
    """If the first holds, so does the second."""
    return z3.Implies(condition, conclusion)


def same(left: BoolTerm, right: BoolTerm) -> BoolTerm:
    """Both hold or neither does."""
    return left == right


def one(condition: BoolTerm) -> IntTerm:
    """1 where it holds, else 0: how a hold counts."""
    return z3.If(condition, terms.number(1), terms.number(0))


def total(parts: Iterable[IntTerm]) -> IntTerm:
    """The sum of some numbers."""
    return z3.Sum(list(parts))


def among(value: IntTerm, members: Iterable[int]) -> BoolTerm:
    """The value is one of these."""
    return either(*(terms.equal(value, terms.number(int(member))) for member in members))


class Substitution:
    """Terms put in the place of variables, prepared once for many terms.

    `z3.substitute` checks the sorts of every pair each time, which costs more than substituting.
    """

    def __init__(self, pairs: Sequence[tuple[Term, Term]]) -> None:
        self._kept = list(pairs)  # the arrays below do not keep their terms alive
        self._size = len(self._kept)
        self._from = (z3.Ast * self._size)(*(old.as_ast() for old, _ in self._kept))
        self._to = (z3.Ast * self._size)(*(new.as_ast() for _, new in self._kept))

    def __bool__(self) -> bool:
        return self._size > 0

    def of(self, term: Term) -> Term:
        """The term with the variables replaced."""
        if not self._size:
            return term
        done = z3.Z3_substitute(term.ctx_ref(), term.as_ast(), self._size, self._from, self._to)
        return _reference(done, term.ctx)


_reference = getattr(z3.z3, "_to_expr_ref")  # noqa: B009 - z3 offers no public name for it
