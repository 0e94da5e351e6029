"""What a function may say and call if symbols are to stand in for its ints.

Symbolic values intercept operators and truth values. They cannot intercept `is`, `in`, a look-up
by key, `isinstance`, or an exception handler, and a loop over symbols need not end: Python would
take a branch there that no path condition records. So the syntax tree of each function, and of
every function that it calls, is checked before it runs; what is not on the list is an error with
its line. This module looks names up: what is called, raised or used as a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from types import CodeType, FunctionType, ModuleType
from typing import Any, NoReturn

from .errors import ForbiddenSyntaxError, Where
from .syntax import Dotted, mentions

#: Builtins that keep their exact meaning on symbols: `abs` builds a term, `bool` forks.
ALLOWED_BUILTINS: tuple[object, ...] = (abs, bool)

#: The package whose functions may be called.
PACKAGE = "kvproof.statemachine"


@dataclass(frozen=True)
class Checked:
    """What a function may run: itself and all that it calls, and what they may raise."""

    codes: frozenset[CodeType]
    raises: tuple[type[Exception], ...]


def check(function: Callable[..., object]) -> Checked:
    """Check a function and every function that it can reach against the whitelist.

    A function may call those of kvproof.statemachine and those of its own module; generated
    source, which has no module of its own, may call what was bound into it.
    Raises ForbiddenSyntaxError at the first construct that is not allowed.
    """
    if not isinstance(function, FunctionType):
        name = getattr(function, "__qualname__", repr(function))
        raise ForbiddenSyntaxError(Where("?", 0, name), "not a plain Python function")
    seen = {function}
    pending = [function]
    raises: dict[type[Exception], None] = {}
    while pending:
        names = _Names(pending.pop())
        for callee in names.callees():
            if callee not in seen:
                seen.add(callee)
                pending.append(callee)
        names.check_constants()
        raises.update(dict.fromkeys(names.exceptions()))
    return Checked(frozenset(each.__code__ for each in seen), tuple(raises))


class _Names:
    """Looks up what a checked function's names stand for: again in each run, since globals and
    captured variables may be bound anew."""

    def __init__(self, function: FunctionType) -> None:
        self._function = function
        self._code = function.__code__
        self._mentions = mentions(self._code)
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

    def _may_call(self, callee: FunctionType) -> bool:
        module = callee.__module__ or ""
        generated = self._code.co_filename.startswith("<")
        own = generated or module == self._function.__module__
        return own or module == PACKAGE or module.startswith(PACKAGE + ".")

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
