"""What symbolic values cannot intercept is refused before it runs, with its file and line."""

from __future__ import annotations

import enum
import functools
import importlib.util
import linecache
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kvproof.specs.symbolic import ForbiddenSyntaxError, PathSet, Record, execute
from kvproof.specs.symbolic.whitelist import check

from .symbolic_source import define

R = Record("r", {"state": "int", "count": "int", "resident": "bool"})


def run(source: str, **scope: Any) -> PathSet:
    return execute(define(source, **scope), {"r": R})


# One for each construct that the values cannot intercept, or that has no business in a function
# of facts. The construct is always in line 2.
REJECTED = [
    ("return r.count is r.state", "`is`"),
    ("return r.count is not None", "`is not`"),
    ("return r.state in (1, 2)", "`in`"),
    ("return r.state not in (1, 2)", "`not in`"),
    ("return {1: 2}[r.state]", "subscript"),
    ("return TABLE[r.state]", "subscript"),
    ("return r[0]", "subscript"),
    ("return r[0:1]", "subscript"),
    ("r[0] = 1", "assignment to subscript"),
    ("return isinstance(r.count, int)", "call of `isinstance`, which is not on the whitelist"),
    ("try:\n  r.count = 1\n finally:\n  pass", "try"),
    ("try:\n  r.count = 1\n except ValueError:\n  pass", "try"),
    ("try:\n  r.count = 1\n except ValueError:\n  pass\n else:\n  pass", "try"),
    ("try:\n  r.count = 1\n except* ValueError:\n  pass", "try"),
    ("for i in range(3): r.count = i", "loop"),
    ("while r.count: r.count = 0", "loop"),
    ("return [i for i in range(3)]", "comprehension"),
    ("return {i for i in range(3)}", "comprehension"),
    ("return {i: i for i in range(3)}", "comprehension"),
    ("return (i for i in range(3))", "generator expression"),
    ("return lambda: r.count", "lambda"),
    ("yield r.count", "yield"),
    ("x = yield r.count", "yield"),
    ("x = yield from r", "yield"),
    ("x = r.state or r.count", "`or` used as a value"),
    ("x = r.state and r.count", "`and` used as a value"),
    ("return r.state or r.count", "`or` used as a value"),
    ("return 1 + (r.resident or r.count)", "`or` used as a value"),
    ("return abs(r.resident and r.count)", "`and` used as a value"),
    ("return (r.resident and r.count) if r.state else 0", "`and` used as a value"),
    ("return (r.resident and r.count) == 1", "`and` used as a value"),
    ("r.count += r.state or 1", "`or` used as a value"),
    ("r.resident = r.state == 1 and r.count == 1", "`and` used as a value"),
    ("return f'{r.count}'", "f-string"),
    ("return 'text'", "str constant 'text'"),
    ("return 0.5", "float constant 0.5"),
    ("return r.count == None", "NoneType constant None"),
    ("return ...", "ellipsis constant Ellipsis"),
    ("global TABLE\n TABLE = 1", "global"),
    ("TABLE.x = 1", "assignment to attribute"),
    ("return abs(*r)", "starred argument"),
    ("return abs(**r)", "starred argument"),
    ("a, *b = r", "assignment to starred argument"),
    ("return min(r.count, 1)", "call of `min`, which is not on the whitelist"),
    ("return max(r.count, 1)", "call of `max`, which is not on the whitelist"),
    ("return int(r.count)", "call of `int`, which is not on the whitelist"),
    ("return len(r)", "call of `len`, which is not on the whitelist"),
    ("return print(r)", "call of `print`, which is not on the whitelist"),
    ("return getattr(r, 'count')", "str constant 'count'"),
    ("return eval(r)", "call of `eval`, which is not on the whitelist"),
    ("return r.method()", "`r` is local: a call, method or attribute chain on it"),
    ("return r.count.real", "`r` is local: a call, method or attribute chain on it"),
    ("return r()", "`r` is local: a call, method or attribute chain on it"),
    (
        "return (abs if r.count else bool)(r.count)",
        "call, raise or attribute of conditional expression",
    ),
    ("return abs(r.count).real", "call, raise or attribute of call"),
    ("return OS.path", "`OS.path`, a module, used as a value"),
    ("return OS.path.basename.x", "attribute of `OS`, which is no parameter, module or enum"),
    ("return TABLE.x", "attribute of `TABLE`, which is no parameter, module or enum"),
    ("return undefined", "name `undefined`, which is not defined"),
    ("return TABLE", "`TABLE`, a dict, used as a value"),
    ("return abs", "`abs`, a builtin_function_or_method, used as a value"),
    ("return r._values", "private attribute `_values`"),
    ("r._values = 1", "private attribute `_values`"),
    ("assert r.count", "assert"),
    ("return (x := r.count)", "walrus"),
    ("del r.count", "del"),
    ("match r.count:\n  case 1: pass", "match"),
    ("with r: pass", "with"),
    ("import os", "import"),
    ("from os import path", "import"),
    ("def g(): pass", "nested function"),
    ("async def g(): pass", "coroutine"),
    ("class G: pass", "class"),
    ("raise", "bare raise or raise from"),
    ("raise ValueError from None", "bare raise or raise from"),
    ("raise TABLE", "raise of `TABLE`, which is not an exception class"),
    ("raise KeyboardInterrupt", "raise of `KeyboardInterrupt`, which is not an exception class"),
    ("return r.count / 2", "true division"),
    ("return r.count ** 2", "power"),
    ("return r.count @ 2", "matrix product"),
    ("r.count /= 2", "true division"),
    ("return [r.count]", "list"),
    ("return {r.count}", "set"),
    ("return {r.count: 1}", "dict"),
    ("return (r.count, 1) == (1, 2)", "tuple"),
    ("x: int", "annotation"),
    ("r.count", "expression without effect"),
]


@pytest.mark.parametrize(("statement", "construct"), REJECTED, ids=[each for each, _ in REJECTED])
def test_a_construct_that_symbols_cannot_intercept_is_refused_with_its_line(
    statement: str, construct: str
) -> None:
    function = define(f"def f(r):\n {statement}\n", TABLE={1: 2}, OS=os)
    with pytest.raises(ForbiddenSyntaxError) as caught:
        execute(function, {"r": R})
    assert caught.value.construct == construct
    assert caught.value.where.line == 2
    assert caught.value.where.function == "f"
    assert caught.value.where.file == function.__code__.co_filename
    assert str(caught.value).startswith(f"{function.__code__.co_filename}:2 in f: ")


SIGNATURES = [
    ("def f(*r): pass", "starred parameter"),
    ("def f(**r): pass", "starred parameter"),
    ("@KEEP\ndef f(r): pass", "decorator"),
    ("async def f(r): pass", "a lambda, comprehension or coroutine, not a `def`"),
    ("f = lambda r: r.count", "a lambda, comprehension or coroutine, not a `def`"),
    ("def f(r, n=[]): pass", "default value []"),
    ("def f(r, *, n=None): pass", "default value None"),
    ("def f(r):\n def g(): return r", "nested function"),
]


@pytest.mark.parametrize(("source", "construct"), SIGNATURES, ids=[each for each, _ in SIGNATURES])
def test_a_signature_that_hides_something_is_refused(source: str, construct: str) -> None:
    with pytest.raises(ForbiddenSyntaxError) as caught:
        run(source, KEEP=lambda function: function)
    assert caught.value.construct == construct


def test_a_nonlocal_write_is_refused() -> None:
    source = """
    def make():
        n = 1
        def f(r):
            nonlocal n
            n = 2
        return f
    """
    with pytest.raises(ForbiddenSyntaxError, match=":4 in f: nonlocal"):
        execute(define(source, "make")(), {"r": R})


@pytest.mark.parametrize(
    "function",
    [len, functools.partial(abs, 1), functools.lru_cache(lambda r: 1), Record, R.fixed],
    ids=["builtin", "partial", "cached", "class", "method"],
)
def test_what_is_no_plain_function_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(ForbiddenSyntaxError, match="not a plain Python function"):
        check(function)


def test_a_function_that_is_called_is_checked_too() -> None:
    source = """
    def f(r): return outer(r)
    def outer(r): return inner(r.count)
    def inner(n):
        return n in (1, 2)
    """
    with pytest.raises(ForbiddenSyntaxError, match=":4 in inner: `in`"):
        run(source)


def test_a_call_of_another_packages_function_is_refused() -> None:
    with pytest.raises(ForbiddenSyntaxError, match=r"call of `textwrap\.dedent`"):
        execute(calls_another_package, {"r": R})


def calls_another_package(r: Any) -> Any:
    return textwrap.dedent(r.count)


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2


def helper(count: Any, step: int = 1) -> Any:
    return count + step


ALLOWED = [
    ("if r.state == 1 or r.count: return 1", 3),
    ("if not (r.state and r.resident): return 1", 3),
    ("return 1 if r.state == 1 and r.resident else 0", 3),
    ("return not (r.state == 1 or r.resident)", 3),
    ("return bool(r.state == 1 or r.resident)", 3),
    ("if (r.state == 1 or r.resident) if r.count else r.resident: return 1", 5),
    ("return 0 < r.count < 9", 2),
    ("r.count += 1", 1),
    ("r.count = x = 2; return x", 1),
    ("a, b = r.count, 1; return a + b", 1),
    ("return (r.count, 1)", 1),
    ("x: int = r.count; return -x", 1),
    ("return abs(r.count) + helper(r.count, step=2)", 1),
    ("return Colour.RED + LIMIT + r.count", 1),
    ("if r.count == Colour.BLUE: raise ValueError('why', r.count)", 2),
    ("if Colour.BLUE == r.count: raise ValueError", 2),
    ("'a text of its own'; pass; return None", 1),
    ("return r.count & 6 | 1", 1),
    ("return r.count // 4 % 3 << 2 >> 1 ^ 1", 1),
]


@pytest.mark.parametrize(("statement", "count"), ALLOWED, ids=[each for each, _ in ALLOWED])
def test_what_is_on_the_list_runs(statement: str, count: int) -> None:
    source = f"def f(r):\n {statement}\n"
    assert len(run(source, Colour=Colour, helper=helper, LIMIT=7)) == count


def test_and_may_be_the_result_of_a_function_that_returns_a_bool() -> None:
    assert len(run("def f(r) -> bool: return r.resident and r.count == 1")) == 2
    assert len(run("def f(r) -> 'bool': return r.resident and r.count == 1")) == 2
    with pytest.raises(ForbiddenSyntaxError, match="`and` used as a value"):
        run("def f(r) -> int: return r.resident and r.count == 1")


def test_a_name_that_shadows_bool_does_not_get_its_licence() -> None:
    with pytest.raises(ForbiddenSyntaxError, match="call of `bool`"):
        run("def f(r): return bool(r.count or 1)\ndef bool(n): return n")


def test_captured_functions_and_constants_are_looked_up() -> None:
    source = """
    def make(n, g):
        def f(r):
            return g(r.count) + n
        return f
    def one(n): return n + 1
    def two(n): return n is None
    """
    make = define(source, "make")
    scope = make.__globals__
    assert str(execute(make(3, scope["one"]), {"r": R}).paths[0].result) == "r.count + 1 + 3"
    with pytest.raises(ForbiddenSyntaxError, match="in two: `is`"):
        execute(make(3, scope["two"]), {"r": R})
    with pytest.raises(ForbiddenSyntaxError, match="`n`, a list, used as a value"):
        execute(make([3], scope["one"]), {"r": R})


def test_a_global_that_is_bound_anew_is_checked_anew() -> None:
    function = define("def f(r): return g(r.count)\ndef g(n): return n")
    assert len(execute(function, {"r": R})) == 1
    function.__globals__["g"] = define("def g(n): return n is n", "g")
    with pytest.raises(ForbiddenSyntaxError, match="in g: `is`"):
        execute(function, {"r": R})


def test_a_source_that_changed_after_loading_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "changing.py"
    file.write_text("def f(r):\n    return r.count + 1\n")
    spec = importlib.util.spec_from_file_location("changing", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    file.write_text("def f(r):\n    return r.count + 22\n")
    linecache.checkcache(str(file))
    with pytest.raises(ForbiddenSyntaxError, match="not, or no longer, what was compiled"):
        check(module.f)


def test_a_function_without_source_is_refused() -> None:
    scope: dict[str, Any] = {}
    exec("def f(r): return r.count", scope)
    with pytest.raises(ForbiddenSyntaxError, match="its source cannot be found"):
        check(scope["f"])
