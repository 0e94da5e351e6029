"""A function becomes its paths: all of them, each once, in one order, or an error."""

from __future__ import annotations

import functools
import types
from typing import Any

import pytest
import z3
from kvproof.specs.symbolic import (
    IncompletePathsError,
    NondeterministicError,
    OutsidePreconditionError,
    OverlappingPathsError,
    PathSet,
    Record,
    TooManyPathsError,
    UndecidedError,
    UnexpectedExceptionError,
    UnknownFieldError,
    UnsatisfiableError,
    UnsupportedOperationError,
    execute,
    executor,
)
from kvproof.specs.symbolic.feasibility import Branches
from kvproof.specs.symbolic.paths import Decision

from .symbolic_source import define

R = Record("r", {"state": "int", "covered": "int", "waits_for": "int", "input_open": "bool"})
X = Record("x", {"blocks": "int", "free": "int"})

WAITING, RUNNING = 1, 2


class RefusedError(Exception):
    """Raised by the toy event."""


def room_exists(x: Any) -> bool:
    return 0 < x.blocks <= x.free


def admit(r: Any, x: Any) -> int:
    if r.state != WAITING:
        raise RefusedError("not waiting", r.state)
    if room_exists(x) and not r.waits_for:
        r.state = RUNNING
        r.covered += x.blocks
        return 4
    return 1


def run(source: str, precondition: Any = None, **arguments: Any) -> PathSet:
    bound = arguments or {"r": R}
    return execute(
        define(source), bound, z3.BoolVal(True) if precondition is None else precondition
    )


def proved(claim: Any) -> bool:
    solver = z3.Solver()
    solver.add(z3.Not(claim))
    return bool(solver.check() == z3.unsat)


def test_a_path_says_when_it_is_taken_and_what_it_writes_and_returns() -> None:
    paths = execute(admit, {"r": R, "x": X})
    going = [path for path in paths if path.result == 4]
    assert len(going) == 1
    state, covered, waits = R.term("state"), R.term("covered"), R.term("waits_for")
    blocks, free = X.term("blocks"), X.term("free")
    expected = z3.And(state == WAITING, blocks > 0, blocks <= free, waits == 0)
    assert proved(going[0].condition == expected)
    assert list(going[0].writes["r"]) == ["state", "covered"]
    assert proved(going[0].after("r", "state") == RUNNING)
    assert proved(going[0].after("r", "covered") == covered + blocks)
    assert going[0].after("r", "waits_for").eq(waits)
    assert going[0].before("r", "covered").eq(covered)
    assert going[0].unwritten("r") == {"waits_for", "input_open"}
    assert going[0].writes["x"] == {}


def test_a_raised_error_is_an_outcome_with_its_type() -> None:
    paths = execute(admit, {"r": R, "x": X})
    refused = [path for path in paths if path.raised is not None]
    assert [path.raised for path in refused] == [RefusedError]
    assert proved(refused[0].condition == (R.term("state") != WAITING))
    assert refused[0].result is None


def test_decisions_carry_the_line_that_asked() -> None:
    path = execute(admit, {"r": R, "x": X}).paths[-1]
    first = admit.__code__.co_firstlineno
    asked = [(each.where.function, each.where.line - first) for each in path.decisions]
    assert asked[0] == ("admit", 1)
    guard = execute(admit, {"r": R, "x": X}).paths[1].decisions[1].where
    assert (guard.function, guard.file) == ("room_exists", __file__)
    assert guard.line == room_exists.__code__.co_firstlineno + 1


def test_the_same_function_gives_the_same_paths_in_the_same_order() -> None:
    first, second = (execute(admit, {"r": R, "x": X}) for _ in range(2))
    assert str(first) == str(second)
    assert [str(path.condition) for path in first] == [str(path.condition) for path in second]
    assert first.paths[0].decisions[0].taken


def test_path_conditions_cover_everything_and_exclude_each_other() -> None:
    conditions = [path.condition for path in execute(admit, {"r": R, "x": X})]
    assert proved(z3.Or(conditions))
    assert proved(z3.AtMost(*conditions, 1))


def test_what_the_precondition_excludes_is_no_path() -> None:
    running = R.term("state") == RUNNING
    paths = execute(admit, {"r": R, "x": X}, running)
    assert [path.raised for path in paths] == [RefusedError]
    assert paths.paths[0].decisions[0].forced


def test_a_fixed_field_is_read_as_a_plain_int_and_becomes_part_of_the_precondition() -> None:
    paths = execute(admit, {"r": R.fixed(state=RUNNING, input_open=True), "x": X})
    assert len(paths) == 1
    assert paths.paths[0].decisions == ()
    assert proved(
        paths.precondition == z3.And(z3.Int("r.state") == RUNNING, z3.Bool("r.input_open"))
    )


def test_a_record_can_hold_what_another_path_wrote() -> None:
    first = next(path for path in execute(admit, {"r": R, "x": X}) if path.result == 4)
    written = {name: first.after("r", name) for name in R.kinds}
    again = execute(admit, {"r": R.holding(**written), "x": X}, first.condition)
    assert [path.raised for path in again] == [RefusedError]


def test_a_value_that_was_written_is_what_is_read() -> None:
    paths = run("""
        def f(r):
            r.covered = r.covered + 1
            r.covered = r.covered + r.input_open
            r.input_open = r.covered > 3
            r.waits_for = r.input_open
            return r.covered
    """)
    path = paths.paths[0]
    covered = z3.Int("r.covered") + 1 + z3.If(z3.Bool("r.input_open"), 1, 0)
    assert proved(path.result == covered)
    assert proved(path.after("r", "input_open") == (covered > 3))
    assert proved(path.after("r", "waits_for") == z3.If(covered > 3, 1, 0))


def test_two_parameters_bound_to_one_record_see_each_others_writes() -> None:
    source = "def f(a, b):\n a.covered = 7\n return b.covered"
    assert run(source, a=R, b=R).paths[0].result == 7
    other = Record("other", R.kinds)
    assert str(run(source, a=R, b=other).paths[0].result) == "other.covered"
    with pytest.raises(ValueError, match="two records are named r"):
        run(source, a=R, b=R.fixed(state=1))


def test_plain_ints_and_bare_terms_are_arguments_too() -> None:
    source = "def f(count, free, block_size=16):\n return count * block_size > free"
    count, free = z3.Int("count"), z3.Int("free")
    assert proved(run(source, count=count, free=free).paths[0].result == (count * 16 > free))
    assert proved(run(source, count=count, free=32, block_size=8).paths[0].result == (count > 4))
    assert run(source, count=1, free=2).paths[0].result is True


@pytest.mark.parametrize("bound", [{}, {"r": R, "y": R}, {"r": object()}])
def test_arguments_that_do_not_fit_are_named(bound: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        execute(define("def f(r): return 1"), bound)


def test_tuples_are_results() -> None:
    paths = run("def f(r):\n a, b = r.covered, r.state\n return (b, a, 3)")
    assert [str(each) for each in paths.paths[0].result] == ["r.state", "r.covered", "3"]
    state = {"state": 1, "covered": 2, "waits_for": 0, "input_open": False}
    assert paths.evaluate({"r": state}).result == (1, 2, 3)


def test_an_infeasible_branch_is_no_path() -> None:
    paths = run("""
        def f(r):
            if r.covered > 3:
                if r.covered > 2:
                    return 1
                return 2
            return 3
    """)
    assert [path.result for path in paths] == [1, 3]


def test_a_condition_that_is_decided_is_not_asked_again() -> None:
    paths = run("""
        def f(r):
            if r.covered < 3:
                return 1 if r.covered >= 3 or not 3 > r.covered else 2
            return 3 if 3 <= r.covered and not r.covered < 3 else 4
    """)
    assert [path.result for path in paths] == [2, 3]


def test_a_field_that_the_facts_do_not_declare_is_an_error_with_the_line() -> None:
    with pytest.raises(UnknownFieldError, match=r":3 in f: .*no field 'coverd', which is read"):
        run("def f(r):\n x = 1\n return r.coverd")
    with pytest.raises(UnknownFieldError, match=r":2 in f: .*no field 'coverd', which is written"):
        run("def f(r):\n r.coverd = 1")
    with pytest.raises(UnknownFieldError, match="record r declares no field 'coverd'"):
        R.fixed(coverd=1)
    with pytest.raises(ValueError, match="neither int nor bool"):
        Record("q", {"name": "str"})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("return 7 // r.covered", "positive constant"),
        ("r.input_open = r.covered", "which need not be 0 or 1"),
        ("r.input_open = 2", "which need not be 0 or 1"),
        ("r.covered = r", "written with LiveRecord"),
        ("return 1 if r else 2", "truth value of the record r"),
        ("return r == r", "comparison of the record r"),
        ("return r != r", "comparison of the record r"),
        ("a, b = r.covered", "iteration"),
    ],
)
def test_an_operation_without_exact_meaning_is_an_error_with_the_line(
    statement: str, said: str
) -> None:
    with pytest.raises(UnsupportedOperationError, match=":2 in f: ") as caught:
        run(f"def f(r):\n {statement}")
    assert said in str(caught.value)


@pytest.mark.parametrize("statement", ["return x", "return 1 // 0", "r = f(r)", "return f"])
def test_an_exception_that_no_raise_names_is_no_outcome(statement: str) -> None:
    source = f"def f(r):\n {statement}\n x = 1"
    if statement == "return f":
        with pytest.raises(UnexpectedExceptionError, match="no int or bool"):
            execute(define("def f(r): return r"), {"r": R})
        return
    with pytest.raises(UnexpectedExceptionError, match=":2 in f: "):
        run(source)


def test_an_unsatisfiable_precondition_is_an_error_not_a_proof() -> None:
    with pytest.raises(UnsatisfiableError):
        run("def f(r): return 1", z3.And(R.term("covered") > 3, R.term("covered") < 3))


HARD = "def f(a, b, c):\n if a * a * a + b * b * b == c * c * c + 33: return 1\n return 2"


def test_a_question_that_the_solver_gives_up_on_is_an_error() -> None:
    a, b, c = z3.Ints("a b c")
    with pytest.raises(UndecidedError, match="gave up"):
        execute(define(HARD), {"a": a, "b": b, "c": c}, z3.And(a > 9, b > 9, c > 9), budget=2000)


def test_too_many_paths_or_decisions_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "MAX_PATHS", 4)
    with pytest.raises(TooManyPathsError, match="more than 4 paths"):
        execute(admit, {"r": R, "x": X})
    monkeypatch.setattr(executor, "MAX_DECISIONS", 2)
    with pytest.raises(TooManyPathsError, match="more than 2 decisions"):
        execute(admit, {"r": R, "x": X})


# Seeded faults: each check of the list of paths can fail.


def test_a_lost_branch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Branches, "possible", lambda self, condition: (True,))
    with pytest.raises(IncompletePathsError, match="no path of admit is taken at"):
        execute(admit, {"r": R, "x": X})


def test_a_wrong_path_condition_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decision, "literal", property(lambda self: z3.BoolVal(True)))
    with pytest.raises(OverlappingPathsError, match="two paths of admit are taken at"):
        execute(admit, {"r": R, "x": X})


@pytest.mark.parametrize(
    "source",
    [
        "def f(r):\n if r.covered == N: return 1\n return 2",
        "def f(r):\n if r.covered == 1: r.state = N\n return 2",
        "def f(r):\n if r.covered == 1: return N\n return 2",
        "def f(r):\n if r.covered == 1: return 1 if r.state < 9 - N * 9 else 3\n return 2",
        "def f(r):\n if r.covered == 1 and (N or r.state == 3): return 1\n return 2",
        "def f(r):\n if r.covered == 1 and (N == 0 or r.state == 3): return 1\n return 2",
    ],
)
def test_a_function_that_does_not_repeat_is_noticed(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = define(source, N=0)
    run_once = executor._Explorer._run

    def changing(self: Any, prefix: Any, fork: Any) -> Any:
        try:
            return run_once(self, prefix, fork)
        finally:
            function.__globals__["N"] += 1

    monkeypatch.setattr(executor._Explorer, "_run", changing)
    with pytest.raises(NondeterministicError):
        execute(function, {"r": R})


def test_a_concrete_state_is_evaluated_on_its_one_path() -> None:
    paths = execute(admit, {"r": R, "x": X}, X.term("free") >= 0)
    state = {"state": WAITING, "covered": 3, "waits_for": 0, "input_open": 0}
    found = paths.evaluate({"r": state, "x": types.SimpleNamespace(blocks=2, free=2)})
    assert found.path.result == found.result == 4
    assert found.writes == {"r": {"state": RUNNING, "covered": 5}, "x": {}}
    with pytest.raises(OutsidePreconditionError):
        paths.evaluate({"r": state, "x": {"blocks": 2, "free": -1}})


def test_a_function_that_is_no_function_has_no_paths() -> None:
    with pytest.raises(Exception, match="not a plain Python function"):
        execute(functools.partial(admit), {"r": R, "x": X})


def test_paths_print_readably() -> None:
    text = str(execute(define("def f(r):\n if r.covered == 3: r.state = 2\n return 1"), {"r": R}))
    assert "if r.covered == 3  [" in text
    assert "unless r.covered == 3  [" in text
    assert "r.state = 2\nreturn 1" in text
