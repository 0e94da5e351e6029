"""Symbolic ints and bools, which stand in for Python's own while a function runs.

Operators build Z3 terms with Python's semantics, exactly or not at all; the truth value of a
symbol is a question to the run that is going on, which forks the path there. Whatever Python
would force to a concrete object (an index, a hash, a length, a float) is an error.

A bool is a number here as in Python: `count + covers` adds one where `covers` holds. Numbers
that are 0 or 1 by construction remember the condition that they stand for (`_flag`), so that
branch-free arithmetic, such as `flag * a + (1 - flag) * b`, stays linear and short.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Literal, NoReturn, Protocol, TypeAlias

from . import terms
from .errors import UnsupportedOperationError, Where
from .terms import BoolTerm, IntTerm, Term

Value: TypeAlias = "int | bool | SymInt | SymBool"


class Decider(Protocol):
    """The run that is going on: chooses a branch and knows which line asked."""

    def decide(self, condition: BoolTerm) -> bool:
        """Take the condition to hold or not, on this path."""

    def where(self) -> Where | None:
        """The line of the executed function that is running now."""


#: Set by the executor for the time of one path.
current_run: ContextVar[Decider | None] = ContextVar("current_run", default=None)


def unsupported(what: str) -> NoReturn:
    """Refuse an operation, naming the line of the executed function that asked for it."""
    run = current_run.get()
    where = run.where() if run is not None else None
    raise UnsupportedOperationError(f"{where}: {what}" if where is not None else what)


def _decide(condition: BoolTerm) -> bool:
    known = terms.as_constant(condition)
    if known is not None:
        return bool(known)
    run = current_run.get()
    if run is None:
        unsupported(f"truth value of the symbol {condition} outside of a symbolic execution")
    return run.decide(condition)


def _refuse(operation: str, hint: str = "") -> Callable[..., Any]:
    def refused(self: object, *_: object) -> NoReturn:
        unsupported(f"{operation} of a symbolic value {self!r}{hint and '; ' + hint}")

    return refused


class Symbol:
    """What symbolic ints and bools share: what they refuse."""

    __slots__ = ("_expr",)
    _expr: Term

    def __repr__(self) -> str:
        return f"<{self._expr}>"

    __hash__ = _refuse("hash (a set, a dict key, a cache)")
    __index__ = _refuse("use as an index")
    __int__ = _refuse("int()")
    __float__ = _refuse("float()")
    __complex__ = _refuse("complex()")
    __len__ = _refuse("len()")
    __iter__ = _refuse("iteration")
    __contains__ = _refuse("`in`")
    __getitem__ = _refuse("look-up")
    __call__ = _refuse("call")
    __round__ = _refuse("round()")
    __trunc__ = _refuse("truncation")
    __truediv__ = __rtruediv__ = _refuse("true division", "use // or a comparison of products")
    __pow__ = __rpow__ = _refuse("power")
    __divmod__ = __rdivmod__ = _refuse("divmod()", "use // and %")
    __matmul__ = __rmatmul__ = _refuse("matrix product")

    def __getattr__(self, name: str) -> NoReturn:
        unsupported(f"attribute {name!r} of a symbolic value {self!r}")

    def __add__(self, other: object) -> Value:
        return _add(self, other)

    def __radd__(self, other: object) -> Value:
        return _add(other, self)

    def __sub__(self, other: object) -> Value:
        return _subtract(self, other)

    def __rsub__(self, other: object) -> Value:
        return _subtract(other, self)

    def __mul__(self, other: object) -> Value:
        return _multiply(self, other)

    def __rmul__(self, other: object) -> Value:
        return _multiply(other, self)

    def __floordiv__(self, other: object) -> Value:
        return _quotient(self, other)

    def __rfloordiv__(self, other: object) -> Value:
        return _quotient(other, self)

    def __mod__(self, other: object) -> Value:
        return _remainder(self, other)

    def __rmod__(self, other: object) -> Value:
        return _remainder(other, self)

    def __lshift__(self, other: object) -> Value:
        return _multiply(self, 1 << _shift_width(other))

    def __rshift__(self, other: object) -> Value:
        return _quotient(self, 1 << _shift_width(other))

    __rlshift__ = _refuse("shift by")
    __rrshift__ = _refuse("shift by")

    def __and__(self, other: object) -> Value:
        return _bitwise("&", self, other)

    def __rand__(self, other: object) -> Value:
        return _bitwise("&", self, other)

    def __or__(self, other: object) -> Value:
        return _bitwise("|", self, other)

    def __ror__(self, other: object) -> Value:
        return _bitwise("|", self, other)

    def __xor__(self, other: object) -> Value:
        return _bitwise("^", self, other)

    def __rxor__(self, other: object) -> Value:
        return _bitwise("^", self, other)

    def __neg__(self) -> Value:
        return _subtract(0, self)

    def __pos__(self) -> Value:
        return _add(0, self)

    def __abs__(self) -> Value:
        term = int_term(self)
        return SymInt(terms.choice(term >= 0, term, -term))

    def __eq__(self, other: object) -> Any:
        return _equal(self, other)

    def __ne__(self, other: object) -> Any:
        same = _equal(self, other)
        return not same if isinstance(same, bool) else SymBool(terms.negated(same._expr))

    def __lt__(self, other: object) -> SymBool | bool:
        return _ordered(self, other, "<")

    def __le__(self, other: object) -> SymBool | bool:
        return _ordered(self, other, "<=")

    def __gt__(self, other: object) -> SymBool | bool:
        return _ordered(self, other, ">")

    def __ge__(self, other: object) -> SymBool | bool:
        return _ordered(self, other, ">=")


class SymBool(Symbol):
    """A symbolic bool over a Z3 Bool term."""

    __slots__ = ()

    def __init__(self, expr: BoolTerm) -> None:
        self._expr = expr

    def __bool__(self) -> bool:
        return _decide(self._expr)

    # ~True is -2 in Python and False on a numpy array: no lane may depend on it.
    __invert__ = _refuse("~ (not the same on an int, a bool and an array)", "use 1 - flag")


class SymInt(Symbol):
    """A symbolic int over a Z3 Int term; `_flag` is the condition that a 0/1 number stands for."""

    __slots__ = ("_flag",)

    def __init__(self, expr: IntTerm, flag: BoolTerm | None = None) -> None:
        self._expr = expr
        self._flag = flag

    def __bool__(self) -> bool:
        return _decide(
            terms.negated(terms.equal(self._expr, terms.number(0)))
            if self._flag is None
            else self._flag
        )

    def __invert__(self) -> Value:
        return _subtract(-1, self)


def symbol(term: Term) -> Value:
    """A term as a value for a function to run on; a constant term as the plain Python value."""
    known = terms.as_constant(term)
    if known is not None:
        return known
    return SymBool(term) if terms.kind_of(term) == "bool" else SymInt(term)


def int_term(value: object) -> IntTerm:
    """The Int term of a value, true counting as one."""
    if isinstance(value, SymInt):
        return value._expr
    if isinstance(value, SymBool):
        return terms.choice(value._expr, terms.number(1), terms.number(0))
    if isinstance(value, int):
        return terms.number(int(value))
    if terms.is_term(value):
        unsupported(f"a bare Z3 term {value} among symbolic values")
    unsupported(f"arithmetic between a symbolic value and {type(value).__name__} {value!r}")


def bool_term(value: object) -> BoolTerm:
    """The Bool term of a value that is a bool, or 0 or 1 by construction."""
    flag = _condition_of(value)
    if flag is None:
        unsupported(f"use of {value!r} as a bool, which need not be 0 or 1")
    return flag


def _condition_of(value: object) -> BoolTerm | None:
    """The condition that a value stands for, if it is a bool, or 0 or 1 by construction."""
    if isinstance(value, SymBool):
        return value._expr
    if isinstance(value, SymInt):
        return value._flag
    if isinstance(value, int) and value in (0, 1):
        return terms.TRUE if value else terms.FALSE
    return None


def _flagged(condition: BoolTerm) -> Value:
    """The number that is one where the condition holds, else zero."""
    known = terms.as_constant(condition)
    if known is not None:
        return int(known)
    return SymInt(terms.choice(condition, terms.number(1), terms.number(0)), condition)


def _conditional(condition: BoolTerm) -> SymBool | bool:
    known = terms.as_constant(condition)
    return SymBool(condition) if known is None else bool(known)


def _is_int(value: object, number: int) -> bool:
    return isinstance(value, int) and value == number


def _int_value(term: IntTerm) -> Value:
    known = terms.as_constant(term)
    return SymInt(term) if known is None else int(known)


def _number(value: object) -> Value:
    """A value as Python's arithmetic returns it: never a bool."""
    if isinstance(value, SymBool):
        return _flagged(value._expr)
    if isinstance(value, SymInt):
        return value
    return _int_value(int_term(value))


def _add(left: object, right: object) -> Value:
    if _is_int(right, 0):
        return _number(left)
    if _is_int(left, 0):
        return _number(right)
    return _int_value(int_term(left) + int_term(right))


def _subtract(left: object, right: object) -> Value:
    if _is_int(right, 0):
        return _number(left)
    flag = _condition_of(right)
    if flag is not None and _is_int(left, 1):
        return _flagged(terms.negated(flag))
    if _is_int(left, 0):
        return _int_value(-int_term(right))
    return _int_value(int_term(left) - int_term(right))


def _multiply(left: object, right: object) -> Value:
    one, other = _condition_of(left), _condition_of(right)
    if one is not None and other is not None:
        return _flagged(terms.conjunction([one, other]))
    if one is not None:
        return _where(one, right)
    if other is not None:
        return _where(other, left)
    # A product of two symbols is exact too, but not linear: the solver may not decide it.
    return _int_value(int_term(left) * int_term(right))


def _where(condition: BoolTerm, value: object) -> Value:
    """The value where the condition holds, else zero."""
    known = terms.as_constant(condition)
    if known is not None:
        return _number(value) if known else 0
    return SymInt(terms.choice(condition, int_term(value), terms.number(0)))


def _quotient(left: object, right: object) -> Value:
    divisor = _divisor(left, right)
    return _number(left) if right == 1 else _int_value(int_term(left) / divisor)


def _remainder(left: object, right: object) -> Value:
    divisor = _divisor(left, right)
    return 0 if right == 1 else _int_value(int_term(left) % divisor)


def _divisor(left: object, right: object) -> IntTerm:
    # Z3's div and mod round towards minus infinity for a positive divisor, as Python's do.
    if not isinstance(right, int) or right <= 0:
        unsupported(f"division of {left!r} by {right!r}: the divisor must be a positive constant")
    return terms.number(int(right))


def _shift_width(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        unsupported(f"shift by {value!r}: the width must be a constant and not negative")
    return int(value)


def _bitwise(operator: str, left: Symbol, right: object) -> Value:
    one, other = _condition_of(left), _condition_of(right)
    if one is not None and other is not None:
        if operator == "&":
            joined = terms.conjunction([one, other])
        elif operator == "|":
            joined = terms.disjunction([one, other])
        else:
            joined = terms.exclusive_or(one, other)
        both = isinstance(left, SymBool) and isinstance(right, SymBool | bool)
        return _conditional(joined) if both else _flagged(joined)
    if not isinstance(right, int):
        unsupported(
            f"{left!r} {operator} {right!r}: one side must be a constant, or both 0 or 1 by "
            "construction; use + for bits that cannot overlap"
        )
    common = _masked(left, int(right))
    if operator == "&":
        return common
    # a | m == a + m - (a & m) and a ^ m == a + m - 2 (a & m), for negative numbers too.
    return _add(_subtract(left, common if operator == "|" else _multiply(common, 2)), int(right))


def _masked(value: object, mask: int) -> Value:
    """`value & mask` by division: exact for every int, since Python's ints are two's complement."""
    if mask < 0:
        return _subtract(value, _masked(value, ~mask))
    total: Value = 0
    low = 0
    while mask >> low:
        if not mask >> low & 1:
            low += 1
            continue
        width = 0
        while mask >> (low + width) & 1:
            width += 1
        run = _remainder(_quotient(value, 1 << low), 1 << width)
        total = _add(total, _multiply(run, 1 << low))
        low += width
    return total


def _equal(left: object, right: object) -> SymBool | bool:
    one, other = _condition_of(left), _condition_of(right)
    if one is not None and other is not None:
        if other is terms.TRUE or other is terms.FALSE:
            return _conditional(one if other is terms.TRUE else terms.negated(one))
        if terms.same(one, other):
            return True
        return _conditional(terms.equal(one, other))
    if isinstance(right, int) and one is not None:
        return False  # 0 or 1 on the left, another number on the right
    mine, theirs = int_term(left), int_term(right)
    if terms.same(mine, theirs):
        return True
    return _conditional(terms.equal(mine, theirs))


def _ordered(
    left: object, right: object, operator: Literal["<", "<=", ">", ">="]
) -> SymBool | bool:
    mine, theirs = int_term(left), int_term(right)
    if terms.same(mine, theirs):
        return operator in ("<=", ">=")
    return _conditional(terms.compared(mine, operator, theirs))
