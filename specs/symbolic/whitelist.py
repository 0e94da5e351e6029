"""What a function may say if symbols are to stand in for its ints: a whitelist of syntax.

Symbolic values intercept operators and truth values. They cannot intercept `is`, `in`, a look-up
by key, `isinstance`, or an exception handler, and a loop over symbols need not end: Python would
take a branch there that no path condition records. So each function is checked by its syntax
tree before it runs, with every function that it calls, and what is not on the list is an error
with its line. The list says what is allowed; nothing has to be thought of to be refused.

`and`, `or` and `not` are allowed where only the truth of the result counts (a test, an operand
of another such operator, the result of a function annotated `-> bool`): there they fork like an
`if`. Used as a value, `a or b` reads as arithmetic and is none.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, NoReturn, TypeAlias

from .errors import ForbiddenSyntaxError, Where
from .source import tree_of

#: Builtins that keep their exact meaning on symbols: `abs` builds a term, `bool` forks.
ALLOWED_BUILTINS: tuple[object, ...] = (abs, bool)

PACKAGE = "kvproof.statemachine"

Dotted: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class Checked:
    """What a function may run: itself and all that it calls, and what they may raise."""

    codes: frozenset[CodeType]
    raises: tuple[type[Exception], ...]


def check(function: Callable[..., object], package: str = PACKAGE) -> Checked:
    """Check a function and every function that it can reach against the whitelist.

    Functions of `package` may be called, and those of the module in which `function` itself is.
    Raises ForbiddenSyntaxError at the first construct that is not allowed.
    """
    if not isinstance(function, FunctionType):
        name = getattr(function, "__qualname__", repr(function))
        raise ForbiddenSyntaxError(Where("?", 0, name), "not a plain Python function")
    seen = {function}
    pending = [function]
    raises: dict[type[Exception], None] = {}
    while pending:
        names = _Names(pending.pop(), package, function.__module__)
        names.check_constants()
        for callee in names.callees():
            if callee not in seen:
                seen.add(callee)
                pending.append(callee)
        raises.update(dict.fromkeys(names.exceptions()))
    return Checked(frozenset(each.__code__ for each in seen), tuple(raises))


@dataclass
class _Mentions:
    """The global and captured names that one function mentions, each with its lines."""

    calls: list[tuple[Dotted, int]] = field(default_factory=list)
    constants: list[tuple[Dotted, int]] = field(default_factory=list)
    raises: list[tuple[Dotted, int]] = field(default_factory=list)


@cache
def _mentions(code: CodeType) -> _Mentions:
    tree = tree_of(code)
    reader = _Reader(code, tree)
    reader.read()
    return reader.mentions


class _Names:
    """Looks up what a checked function's names stand for: again in each run, since globals and
    captured variables may be bound anew."""

    def __init__(self, function: FunctionType, package: str, module: str | None) -> None:
        self._function = function
        self._code = function.__code__
        self._package = package
        self._module = module
        self._mentions = _mentions(self._code)
        # Generated functions may have been given builtins of their own.
        self._builtins: dict[str, Any] = getattr(function, "__builtins__")  # noqa: B009

    def check_constants(self) -> None:
        function = self._function
        for value in [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]:
            if not _is_constant(value):
                self._refuse(self._code.co_firstlineno, f"default value {value!r}")
        for name, line in self._mentions.constants:
            value = self._look_up(name, line)
            if not _is_constant(value):
                self._refuse(line, f"`{'.'.join(name)}`, a {type(value).__name__}, used as a value")

    def callees(self) -> Iterable[FunctionType]:
        for name, line in self._mentions.calls:
            value = self._look_up(name, line)
            if any(value is allowed for allowed in ALLOWED_BUILTINS):
                continue
            # The argument of `bool` was read as a test, so no other function may have its name.
            shadowed = name == ("bool",)
            if shadowed or not isinstance(value, FunctionType) or not self._may_call(value):
                self._refuse(line, f"call of `{'.'.join(name)}`, which is not on the whitelist")
            yield value

    def exceptions(self) -> Iterable[type[Exception]]:
        for name, line in self._mentions.raises:
            value = self._look_up(name, line)
            if not isinstance(value, type) or not issubclass(value, Exception):
                self._refuse(line, f"raise of `{'.'.join(name)}`, which is not an exception class")
            yield value

    def _may_call(self, function: FunctionType) -> bool:
        module = function.__module__
        return module is not None and (
            module in (self._package, self._module) or module.startswith(self._package + ".")
        )

    def _look_up(self, dotted: Dotted, line: int) -> Any:
        name, *attributes = dotted
        if name in self._code.co_freevars:
            cells = dict(zip(self._code.co_freevars, self._function.__closure__ or (), strict=True))
            value = cells[name].cell_contents
        elif name in self._function.__globals__:
            value = self._function.__globals__[name]
        elif name in self._builtins:
            value = self._builtins[name]
        else:
            self._refuse(line, f"name `{name}`, which is not defined")
        for attribute in attributes:
            if not isinstance(value, ModuleType) and not _is_enum(value):
                self._refuse(line, f"attribute of `{name}`, which is no parameter, module or enum")
            if not hasattr(value, attribute):
                self._refuse(line, f"name `{'.'.join(dotted)}`, which is not defined")
            value = getattr(value, attribute)
        return value

    def _refuse(self, line: int, construct: str) -> NoReturn:
        where = Where(self._code.co_filename, line, self._code.co_name)
        raise ForbiddenSyntaxError(where, construct)


def _is_enum(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Enum)


def _is_constant(value: object) -> bool:
    """Ints, bools and int enums: what has Python's own int operators."""
    return type(value) in (int, bool) or (isinstance(value, int) and isinstance(value, Enum))


class _Reader:
    """Walks one function's tree; collects the names that it mentions; refuses the rest."""

    def __init__(self, code: CodeType, tree: ast.FunctionDef) -> None:
        self._code = code
        self._tree = tree
        self._locals = frozenset(code.co_varnames)
        self._returns_bool = isinstance(tree.returns, ast.Name | ast.Constant) and (
            ast.unparse(tree.returns).strip("'\"") == "bool"
        )
        self.mentions = _Mentions()

    def read(self) -> None:
        arguments = self._tree.args
        for star in (arguments.vararg, arguments.kwarg):
            if star is not None:
                self._refuse(star, "starred parameter")
        for decorator in self._tree.decorator_list:
            self._refuse(decorator, "decorator")
        if self._code.co_cellvars:
            self._refuse(self._tree, "variable captured by a nested function")
        self._block(self._tree.body)

    # Statements

    def _block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Return(value=None) | ast.Return(value=ast.Constant(value=None)) | ast.Pass():
                pass
            case ast.Return(value=ast.Tuple(elts=elements)):
                for element in elements:
                    self._value(element)
            case ast.Return(value=ast.expr() as value):
                read = self._test if self._returns_bool else self._value
                read(value)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._target(target)
                self._assigned(value)
            case ast.AnnAssign(target=target, value=ast.expr() as value, simple=1):
                self._target(target)
                self._value(value)
            case ast.AugAssign(target=target, op=operator, value=value):
                self._target(target)
                self._operator(operator, node)
                self._value(value)
            case ast.If(test=test, body=body, orelse=orelse):
                self._test(test)
                self._block(body)
                self._block(orelse)
            case ast.Raise(exc=ast.expr() as exception, cause=None):
                self._raise(exception)
            case ast.Expr(value=ast.Constant(value=str())):
                pass
            case ast.Expr(value=ast.Call() as call):
                self._value(call)
            case _:
                self._refuse(node, _name_of(node))

    def _target(self, node: ast.expr) -> None:
        match node:
            case ast.Name(id=name) if name in self._locals:
                pass
            case ast.Name(id=name):
                self._refuse(node, f"assignment to `{name}`, which is not local")
            case ast.Attribute(value=ast.Name(id=name)) if name in self._locals:
                self._field(node)
            case ast.Tuple(elts=elements):
                for element in elements:
                    self._target(element)
            case _:
                self._refuse(node, f"assignment to {_name_of(node)}")

    def _assigned(self, node: ast.expr) -> None:
        if isinstance(node, ast.Tuple):
            for element in node.elts:
                self._value(element)
        else:
            self._value(node)

    def _raise(self, node: ast.expr) -> None:
        if isinstance(node, ast.Call):
            for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                    self._value(argument)
            node = node.func
        self.mentions.raises.append((self._dotted(node), node.lineno))

    # Expressions

    def _test(self, node: ast.expr) -> None:
        """An expression of which only the truth counts."""
        match node:
            case ast.BoolOp(values=values):
                for value in values:
                    self._test(value)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._test(operand)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self._test(test)
                self._test(body)
                self._test(orelse)
            case _:
                self._value(node)

    def _value(self, node: ast.expr) -> None:
        match node:
            case ast.Constant(value=int()):
                pass
            case ast.Name(id=name) if name in self._locals:
                pass
            case ast.Name():
                self.mentions.constants.append(((node.id,), node.lineno))
            case ast.Attribute(value=ast.Name(id=name)) if name in self._locals:
                self._field(node)
            case ast.Attribute():
                self.mentions.constants.append((self._dotted(node), node.lineno))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._test(operand)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Invert(), operand=operand):
                self._value(operand)
            case ast.BinOp(left=left, op=operator, right=right):
                self._operator(operator, node)
                self._value(left)
                self._value(right)
            case ast.Compare(left=left, ops=operators, comparators=comparators):
                # A chain `a < b < c` is `a < b and b < c`, and forks so.
                for compared in operators:
                    if not isinstance(compared, _COMPARISONS):
                        self._refuse(node, _name_of(compared))
                for value in [left, *comparators]:
                    self._value(value)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self._test(test)
                self._value(body)
                self._value(orelse)
            case ast.Call():
                self._call(node)
            case ast.BoolOp(op=operator):
                self._refuse(node, f"{_name_of(operator)} used as a value")
            case ast.Constant():
                self._refuse(node, f"{type(node.value).__name__} constant {node.value!r}")
            case _:
                self._refuse(node, _name_of(node))

    def _field(self, node: ast.Attribute) -> None:
        # Private attributes are how symbols and live records keep their terms.
        if node.attr.startswith("_"):
            self._refuse(node, f"private attribute `{node.attr}`")

    def _call(self, node: ast.Call) -> None:
        name = self._dotted(node.func)
        self.mentions.calls.append((name, node.lineno))
        for argument in node.args:
            if name == ("bool",):
                self._test(argument)
            else:
                self._value(argument)
        for keyword in node.keywords:
            if keyword.arg is None:
                self._refuse(node, "starred argument")
            self._value(keyword.value)

    def _dotted(self, node: ast.expr) -> Dotted:
        """A name or `module.name` that is looked up before the function runs."""
        match node:
            case ast.Name(id=name) if name not in self._locals:
                return (name,)
            case ast.Attribute(value=value, attr=attribute):
                return (*self._dotted(value), attribute)
            case ast.Name(id=name):
                self._refuse(node, f"`{name}` is local: a call, method or attribute chain on it")
            case _:
                self._refuse(node, f"call, raise or attribute of {_name_of(node)}")

    def _operator(self, operator: ast.operator, node: ast.AST) -> None:
        if not isinstance(operator, _OPERATORS):
            self._refuse(node, _name_of(operator))

    def _refuse(self, node: ast.AST, construct: str) -> NoReturn:
        line = getattr(node, "lineno", self._code.co_firstlineno)
        where = Where(self._code.co_filename, line, self._code.co_name)
        raise ForbiddenSyntaxError(where, construct)


_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_OPERATORS = (
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.FloorDiv,
    ast.Mod,
    ast.BitAnd,
    ast.BitOr,
    ast.BitXor,
    ast.LShift,
    ast.RShift,
)

_NAMES: dict[type[ast.AST], str] = {
    ast.And: "`and`",
    ast.AsyncFunctionDef: "coroutine",
    ast.Assert: "assert",
    ast.Await: "await",
    ast.ClassDef: "class",
    ast.Delete: "del",
    ast.Dict: "dict",
    ast.DictComp: "comprehension",
    ast.Div: "true division",
    ast.For: "loop",
    ast.FunctionDef: "nested function",
    ast.GeneratorExp: "generator expression",
    ast.Global: "global",
    ast.Import: "import",
    ast.ImportFrom: "import",
    ast.In: "`in`",
    ast.Is: "`is`",
    ast.IsNot: "`is not`",
    ast.JoinedStr: "f-string",
    ast.Lambda: "lambda",
    ast.List: "list",
    ast.ListComp: "comprehension",
    ast.MatMult: "matrix product",
    ast.Match: "match",
    ast.NamedExpr: "walrus",
    ast.Nonlocal: "nonlocal",
    ast.NotIn: "`not in`",
    ast.Or: "`or`",
    ast.Pow: "power",
    ast.Raise: "bare raise or raise from",
    ast.Set: "set",
    ast.SetComp: "comprehension",
    ast.Slice: "slice",
    ast.Starred: "starred argument",
    ast.Subscript: "subscript",
    ast.Try: "try",
    ast.TryStar: "try",
    ast.Tuple: "tuple",
    ast.While: "loop",
    ast.With: "with",
    ast.Yield: "yield",
    ast.YieldFrom: "yield",
}


def _name_of(node: ast.AST) -> str:
    return _NAMES.get(type(node), type(node).__name__)
