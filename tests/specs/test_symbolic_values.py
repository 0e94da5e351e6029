"""Symbolic ints and bools mean what Python's own mean, or refuse."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st
from kvproof.specs.symbolic import UnsupportedOperationError
from kvproof.specs.symbolic.terms import as_constant
from kvproof.specs.symbolic.values import SymBool, SymInt, int_term

Binary = Callable[[Any, Any], Any]

INTS = st.integers(-40, 40)
A, B = z3.Int("a"), z3.Int("b")
P, Q = z3.Bool("p"), z3.Bool("q")

ARITHMETIC = [operator.add, operator.sub, operator.mul]
DIVISION = [operator.floordiv, operator.mod]
BITS = [operator.and_, operator.or_, operator.xor]
ORDER = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


def worth(value: Any, **given: int) -> int | bool:
    """What Z3 itself makes of a symbolic value once its variables are replaced."""
    if isinstance(value, int):
        return value
    term = value._expr
    known: dict[str, Any] = {"a": A, "b": B, "p": P, "q": Q}
    pairs = [
        (known[name], z3.BoolVal(bool(each)) if name in "pq" else z3.IntVal(each))
        for name, each in given.items()
    ]
    result = as_constant(z3.simplify(z3.substitute(term, *pairs)))
    assert result is not None
    return result


@pytest.mark.parametrize("operate", [*ARITHMETIC, *ORDER], ids=lambda each: each.__name__)
@given(a=INTS, b=INTS)
def test_operators_on_two_ints_mean_what_python_means(operate: Binary, a: int, b: int) -> None:
    assert worth(operate(SymInt(A), SymInt(B)), a=a, b=b) == operate(a, b)
    assert worth(operate(SymInt(A), b), a=a) == operate(a, b)
    assert worth(operate(a, SymInt(B)), b=b) == operate(a, b)


@pytest.mark.parametrize("operate", [*ARITHMETIC, *ORDER], ids=lambda each: each.__name__)
@given(a=INTS, p=st.booleans(), q=st.booleans())
def test_a_bool_counts_as_zero_or_one(operate: Binary, a: int, p: bool, q: bool) -> None:
    assert worth(operate(SymInt(A), SymBool(P)), a=a, p=p) == operate(a, p)
    assert worth(operate(SymBool(P), SymInt(A)), a=a, p=p) == operate(p, a)
    assert worth(operate(SymBool(P), SymBool(Q)), p=p, q=q) == operate(p, q)
    assert worth(operate(SymBool(P), q), p=p) == operate(p, q)
    assert worth(operate(p, SymBool(Q)), q=q) == operate(p, q)
    assert worth(operate(SymBool(P), a), p=p) == operate(p, a)
    assert worth(operate(a, SymBool(P)), p=p) == operate(a, p)


@pytest.mark.parametrize("operate", DIVISION, ids=lambda each: each.__name__)
@given(a=INTS, p=st.booleans(), b=st.integers(1, 12))
def test_division_by_a_positive_constant_rounds_as_python_does(
    operate: Binary, a: int, p: bool, b: int
) -> None:
    assert worth(operate(SymInt(A), b), a=a) == operate(a, b)
    assert worth(operate(SymBool(P), b), p=p) == operate(p, b)


@pytest.mark.parametrize("operate", BITS, ids=lambda each: each.__name__)
@given(a=INTS, p=st.booleans(), q=st.booleans(), mask=st.integers(-20, 20))
def test_bit_operations_with_a_constant_or_on_bools_are_exact(
    operate: Binary, a: int, p: bool, q: bool, mask: int
) -> None:
    assert worth(operate(SymInt(A), mask), a=a) == operate(a, mask)
    assert worth(operate(mask, SymInt(A)), a=a) == operate(mask, a)
    assert worth(operate(SymBool(P), SymBool(Q)), p=p, q=q) == operate(p, q)
    assert worth(operate(SymBool(P), q), p=p) == operate(p, q)
    assert worth(operate(SymBool(P), mask), p=p) == operate(p, mask)
    assert type(operate(SymBool(P), SymBool(Q))) is SymBool


@given(a=INTS, p=st.booleans(), width=st.integers(0, 5))
def test_unary_operators_and_shifts_mean_what_python_means(a: int, p: bool, width: int) -> None:
    for operate in (operator.neg, operator.pos, abs, operator.invert):
        assert worth(operate(SymInt(A)), a=a) == operate(a)
    for operate in (operator.neg, operator.pos, abs):
        assert worth(operate(SymBool(P)), p=p) == operate(p)
    assert worth(SymInt(A) << width, a=a) == a << width
    assert worth(SymInt(A) >> width, a=a) == a >> width


@given(a=INTS, b=INTS, p=st.booleans(), q=st.booleans())
@settings(max_examples=50)
def test_a_choice_by_arithmetic_is_a_choice(a: int, b: int, p: bool, q: bool) -> None:
    def choose(flag: Any, then: Any, otherwise: Any) -> Any:
        return flag * then + (1 - flag) * otherwise

    def evaluate(flag: Any, other: Any, then: Any, otherwise: Any) -> Any:
        both = flag * other
        return choose(both, then, otherwise) + choose(1 - both, 1, 0) + (both == 1) + (both != 0)

    symbolic = evaluate(SymBool(P), SymBool(Q), SymInt(A), SymInt(B))
    assert worth(symbolic, a=a, b=b, p=p, q=q) == evaluate(p, q, a, b)


def test_a_choice_by_arithmetic_stays_linear() -> None:
    chosen = SymBool(P) * SymInt(A) + (1 - SymBool(P)) * SymInt(B)
    assert str(int_term(chosen)) == "If(p, a, 0) + If(Not(p), b, 0)"


@pytest.mark.parametrize(
    ("operate", "said"),
    [
        (hash, "hash"),
        (int, "int()"),
        (float, "float()"),
        (complex, "complex()"),
        (len, "len()"),
        (list, "iteration"),
        (operator.index, "use as an index"),
        (lambda value: 1 in value, "`in`"),
        (lambda value: value[0], "look-up"),
        (lambda value: value(), "call"),
        (lambda value: {value: 1}, "hash"),
        (lambda value: [1, 2][value], "use as an index"),
        (round, "round()"),
        (lambda value: value / 2, "true division"),
        (lambda value: 2 / value, "true division"),
        (lambda value: value**2, "power"),
        (lambda value: 2**value, "power"),
        (lambda value: divmod(value, 2), "divmod()"),
        (lambda value: value @ value, "matrix product"),
        (lambda value: 1 << value, "shift by"),
        (lambda value: value << -1, "width"),
        (lambda value: value // 0, "positive constant"),
        (lambda value: value // -2, "positive constant"),
        (lambda value: value % value, "positive constant"),
        (lambda value: 7 % value, "positive constant"),
        (lambda value: value + 0.5, "float"),
        (lambda value: value == None, "NoneType"),  # noqa: E711 - the comparison is the point
        (lambda value: value < "a", "str"),
        (lambda value: value + A, "bare Z3 term"),
        (lambda value: value.real, "attribute 'real'"),
        (bool, "outside of a symbolic execution"),
    ],
)
@pytest.mark.parametrize("value", [SymInt(A), SymBool(P)], ids=["int", "bool"])
def test_what_has_no_exact_symbolic_answer_is_a_typed_error(
    value: Any, operate: Callable[[Any], Any], said: str
) -> None:
    with pytest.raises(UnsupportedOperationError) as caught:
        operate(value)
    assert said in str(caught.value)


def test_bits_of_two_unknown_ints_are_refused() -> None:
    with pytest.raises(UnsupportedOperationError, match="use \\+ for bits"):
        SymInt(A) & SymInt(B)


def test_inverting_a_bool_is_refused_since_arrays_and_ints_differ() -> None:
    with pytest.raises(UnsupportedOperationError, match="use 1 - flag"):
        ~SymBool(P)
