"""The whitelist of syntax: what a function's tree may hold, and which names it mentions.

The list names what is allowed, so that a construct nobody thought of is refused. `whitelist` says
why there is a list, and looks the names up.

`and`, `or` and `not` are allowed where only the truth of the result counts (a test, an operand
of another such operator, the argument of `bool`, the result of a function annotated `-> bool`):
there they fork like an `if`. Used as a value, `a or b` reads as arithmetic and is none.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cache
from types import CodeType
from typing import NoReturn, TypeAlias

from .errors import ForbiddenSyntaxError, Where
from .source import tree_of

#: A name that is looked up before the function runs: `name` or `module.name`.
Dotted: TypeAlias = tuple[str, ...]


@dataclass
class Mentions:
    """The global and captured names that one function mentions, each with its lines."""

    calls: list[tuple[Dotted, int]] = field(default_factory=list)
    constants: list[tuple[Dotted, int]] = field(default_factory=list)
    raises: list[tuple[Dotted, int]] = field(default_factory=list)


@cache
def mentions(code: CodeType) -> Mentions:
    """Read a function's tree. Raises ForbiddenSyntaxError at what is not on the list."""
    tree = tree_of(code)
    reader = _Reader(code, tree)
    reader.read()
    return reader.mentions


class _Reader:
    """Walks one function's tree; collects the names that it mentions; refuses the rest."""

    def __init__(self, code: CodeType, tree: ast.FunctionDef) -> None:
        self._code = code
        self._tree = tree
        self._locals = frozenset(code.co_varnames)
        self._returns_bool = isinstance(tree.returns, ast.Name | ast.Constant) and (
            ast.unparse(tree.returns).strip("'\"") == "bool"
        )
        self.mentions = Mentions()

    def read(self) -> None:
        arguments = self._tree.args
        for star in (arguments.vararg, arguments.kwarg):
            if star is not None:
                self._refuse(star, "starred parameter")
        for decorator in self._tree.decorator_list:
            self._refuse(decorator, "decorator")
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
            case ast.Expr(value=value):
                self._value(value)
                self._refuse(node, "expression without effect")
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
        """An expression whose truth alone matters."""
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
    ast.AnnAssign: "annotation",
    ast.And: "`and`",
    ast.AsyncFunctionDef: "coroutine",
    ast.Assert: "assert",
    ast.Attribute: "attribute",
    ast.Call: "call",
    ast.ClassDef: "class",
    ast.Delete: "del",
    ast.Dict: "dict",
    ast.DictComp: "comprehension",
    ast.Div: "true division",
    ast.For: "loop",
    ast.FunctionDef: "nested function",
    ast.GeneratorExp: "generator expression",
    ast.Global: "global",
    ast.IfExp: "conditional expression",
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
