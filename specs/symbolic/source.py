"""The syntax tree of a function that runs, and proof that it is the one that runs.

Sources come from `linecache`, so that functions compiled from generated text are found as well
as those in files. A source that changed since it was loaded would make every check of its tree
worthless; so the source is compiled again and its byte code compared with the function's own.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType

from .errors import ForbiddenSyntaxError, Where


def tree_of(code: CodeType) -> ast.FunctionDef:
    """The definition that a code object was compiled from, with the line numbers of its file."""
    where = Where(code.co_filename, code.co_firstlineno, code.co_name)
    # As `inspect` does: forget what is cached of a file that changed on disk.
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename))
    if not text:
        raise ForbiddenSyntaxError(where, "its source cannot be found")
    try:
        definitions, compiled = _parsed(code.co_filename, text)
    except SyntaxError as error:
        raise ForbiddenSyntaxError(where, f"its source does not parse: {error}") from error
    key = (code.co_name, code.co_firstlineno)
    found = definitions.get(key, [])
    if len(found) != 1 or not any(_same_code(code, other) for other in compiled.get(key, [])):
        raise ForbiddenSyntaxError(where, "its source is not, or no longer, what was compiled")
    definition = found[0]
    if not isinstance(definition, ast.FunctionDef):
        raise ForbiddenSyntaxError(where, "a lambda, comprehension or coroutine, not a `def`")
    return definition


_Key = tuple[str, int]


@lru_cache(maxsize=1024)
def _parsed(file: str, text: str) -> tuple[dict[_Key, list[ast.AST]], dict[_Key, list[CodeType]]]:
    tree = ast.parse(text, file)
    definitions: dict[_Key, list[ast.AST]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            definitions.setdefault((node.name, first), []).append(node)
        elif isinstance(node, ast.Lambda):
            definitions.setdefault(("<lambda>", node.lineno), []).append(node)
    compiled: dict[_Key, list[CodeType]] = {}
    for code in _nested(compile(text, file, "exec", dont_inherit=True)):
        compiled.setdefault((code.co_name, code.co_firstlineno), []).append(code)
    return definitions, compiled


def _nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)


def _same_code(left: CodeType, right: CodeType) -> bool:
    return _shape(left) == _shape(right)


# What the flags say about the code itself, leaving out the `__future__` statements in force.
_SHAPE_FLAGS = 0x3FF


def _shape(code: CodeType) -> tuple[object, ...]:
    constants = tuple(
        (type(each), each) for each in code.co_consts if not isinstance(each, CodeType)
    )
    return (
        code.co_code,
        constants,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_argcount,
        code.co_kwonlyargcount,
        code.co_flags & _SHAPE_FLAGS,
    )
