"""The differential test itself: it compares what it says, and a wrong executor does not pass."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy
import pytest
import z3
from kvproof.specs.symbolic import (
    DisagreementError,
    OutsidePreconditionError,
    PathSet,
    Record,
    agree,
    agree_at,
    agree_on_arrays,
    execute,
    terms,
    values,
    witness,
)
from kvproof.specs.symbolic.evaluate import compile_terms, scalar_choice

from .symbolic_source import define


class Facts:
    KINDS: ClassVar[dict[str, str]] = {"state": "int", "covered": "int", "open": "bool"}
    __slots__ = ("covered", "open", "state")


R = Record.of(Facts, "r")

EVENT = """
def f(r, n):
    if r.state == 1 and n > 0:
        r.covered += n // 4
        r.open = r.covered > 7
        if r.covered % 3 == 2:
            raise ValueError("covered", r.covered)
        return 4 | r.open
    if r.open:
        r.state = 1
    return 0
"""
N = z3.Int("n")


def paths_of(source: str = EVENT, precondition: Any = True) -> PathSet:
    return execute(
        define(source), {"r": R, "n": N}, z3.BoolVal(True) if precondition is True else precondition
    )


def test_a_function_and_its_paths_agree_on_states_that_visit_every_path() -> None:
    found = agree(paths_of())
    assert found.small == (0, 1, 2, 3)
    assert all(found.visits)
    assert found.states >= 2 * 4**3 + 200


def test_too_many_small_states_are_sampled_and_said_to_be() -> None:
    assert agree(paths_of(), small_cases=3).small == ()
    assert agree(paths_of(), small_cases=20).small == (0, 1)


def test_states_outside_of_the_precondition_are_left_out() -> None:
    paths = paths_of(precondition=z3.And(N == 77, R.term("covered") > 1000))
    found = agree(paths)
    assert all(found.visits)
    assert found.states < 100
    with pytest.raises(OutsidePreconditionError):
        agree_at(paths, {"r": {"state": 1, "covered": 1, "open": 0}, "n": 77})


def test_a_witness_takes_its_path() -> None:
    paths = paths_of()
    for path in paths:
        assert agree_at(paths, witness(paths, path)) is path


def test_fixed_fields_stay_as_they_are() -> None:
    paths = execute(define(EVENT), {"r": R.fixed(state=1), "n": 6})
    found = agree(paths)
    assert all(found.visits)


def test_the_real_record_is_of_the_class_of_facts() -> None:
    assert agree(execute(only_on_slots, {"r": R})).states > 0
    held = {"r": {"state": 1, "covered": 1, "open": 0}}
    with pytest.raises(ValueError, match="holds terms"):
        agree_at(execute(only_on_slots, {"r": R.holding(covered=N)}), {**held, "n": 1})


def only_on_slots(r: Any) -> int:
    r.covered = r.covered + 1
    return 0


# Seeded faults: an executor that is wrong about Python is found out.


@pytest.mark.parametrize(
    ("attribute", "fault"),
    [
        ("_add", lambda left, right: values._int_value(values.int_term(left) + 1)),
        ("_quotient", lambda left, right: values._int_value(values.int_term(left))),
        ("_remainder", lambda left, right: values._int_value(values.int_term(left))),
        ("_ordered", lambda left, right, operator: False),
        ("_equal", lambda left, right: True),
        ("_bitwise", lambda operator, left, right: right),
    ],
)
def test_a_wrong_operator_is_found(
    attribute: str, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, attribute, fault)
    with pytest.raises(DisagreementError, match="expected"):
        agree(paths_of())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("    return 1", "returns 1, expected 0"),
        ("    r.covered = 5\n    return 0", "r.covered is 5, expected"),
        ("    raise ValueError", "raises <class 'ValueError'>, expected None"),
        ("    return None", "returns None, expected 0"),
    ],
)
def test_another_function_than_the_one_executed_is_found(changed: str, said: str) -> None:
    paths = paths_of()
    other = define(EVENT.rsplit("    return 0", 1)[0] + changed)
    swapped = PathSet(other, paths.arguments, paths.precondition, paths.paths)
    with pytest.raises(DisagreementError) as caught:
        agree(swapped)
    assert said in str(caught.value)
    assert "on the path:\n" in str(caught.value)


# Lanes


def must_grow(computed: Any, scheduled: Any, covered: Any, size: int = 16) -> Any:
    return computed + scheduled > covered * size


def choose(flag: Any, then: Any, otherwise: Any) -> Any:
    return flag * then + (1 - flag) * otherwise


def bad_on_arrays(flag: Any, other: Any) -> Any:
    return flag + other  # 1 + 1 is 2 on bools, and True on arrays of bools


def lane(function: Any, **kinds: str) -> PathSet:
    return execute(function, {name: terms.variable(name, kind) for name, kind in kinds.items()})


def test_a_lane_agrees_on_ints_arrays_and_symbols() -> None:
    agree_on_arrays(lane(must_grow, computed="int", scheduled="int", covered="int"))
    agree_on_arrays(lane(choose, flag="bool", then="int", otherwise="int"))


def test_a_lane_that_means_something_else_on_arrays_is_found() -> None:
    with pytest.raises(DisagreementError, match="2 on ints, True on arrays"):
        agree_on_arrays(lane(bad_on_arrays, flag="bool", other="bool"))


def test_a_function_that_branches_is_no_lane() -> None:
    with pytest.raises(ValueError, match="is not branch-free"):
        agree_on_arrays(lane(define("def f(n): return 1 if n else 2"), n="int"))


# The evaluator is not the solver: each holds the other.


def test_compiled_terms_are_worth_what_the_solver_says() -> None:
    a, b, p, q = z3.Int("a"), z3.Int("b"), z3.Bool("p"), z3.Bool("q")
    wanted = [
        a + b * 3 - 4,
        -a,
        a / 4,
        a % 4,
        z3.If(z3.And(p, a < b), a, b - 1),
        z3.Or(z3.Not(p), z3.Xor(p, q), a >= b),
        z3.Implies(p, q),
        a != b,
        p == q,
        z3.And(a <= b, a > 3),
        z3.IntVal(-7),
        z3.BoolVal(True),
    ]
    compiled = compile_terms(wanted)
    columns: dict[str, list[Any]] = {"a": [], "b": [], "p": [], "q": []}
    rows = []
    for x in (-9, -4, -1, 0, 3, 5):
        for y in (-2, 0, 4):
            for s, t in ((False, False), (True, False), (False, True), (True, True)):
                for name, each in zip("abpq", (x, y, s, t), strict=True):
                    columns[name].append(each)
                known = [
                    (a, z3.IntVal(x)),
                    (b, z3.IntVal(y)),
                    (p, z3.BoolVal(s)),
                    (q, z3.BoolVal(t)),
                ]
                expected = [
                    terms.as_constant(z3.simplify(z3.substitute(term, *known))) for term in wanted
                ]
                env = {"a": x, "b": y, "p": s, "q": t}
                assert list(compiled(env, scalar_choice)) == expected
                rows.append(expected)
    arrays = compiled({name: numpy.array(each) for name, each in columns.items()}, numpy.where)
    together = numpy.stack([numpy.broadcast_to(each, (len(rows),)) for each in arrays], axis=1)
    assert together.tolist() == rows


def test_a_term_without_known_meaning_is_not_evaluated() -> None:
    a = z3.Int("a")
    with pytest.raises(ValueError, match="positive constant"):
        compile_terms([a / -2])
    with pytest.raises(ValueError, match="no concrete meaning"):
        compile_terms([z3.ToReal(a)])
