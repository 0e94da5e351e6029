"""Copies what a generated test needs out of the modules it comes from, into one file.

A generated test imports the engine under test and nothing of kvproof. So the target's code, and
the fuzzer's few classes below it, are written into the file: the definitions that are reached
from the names in use, in an order in which they can be executed, and the imports they need.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass, field

#: Modules whose definitions are copied; all others are imported by the generated test.
INTERNAL = "kvproof.specs.fuzz"

#: What a report asks of a target, and no test: left out of the classes that are copied.
FOR_REPORTS = frozenset({"version", "caveat"})


class CannotBundleError(Exception):
    """A target whose source cannot be copied into one file; the text says why."""


@dataclass(slots=True)
class _Module:
    name: str
    definitions: dict[str, tuple[int, str, ast.AST]] = field(default_factory=dict)
    internal: dict[str, tuple[str, str]] = field(default_factory=dict)  # name -> module, original
    external: dict[str, str] = field(default_factory=dict)  # name -> import statement


class Bundle:
    """Collects definitions, by module and name, with all that they need."""

    def __init__(self, own: Iterable[str]) -> None:
        self._own = frozenset(own)  # further modules to copy from
        self._modules: dict[str, _Module] = {}
        self._order: list[str] = []  # modules, those imported by others first
        self._needed: dict[str, str] = {}  # name -> module
        self._imports: dict[str, None] = {}

    def need(self, module: str, name: str) -> None:
        """Take in a definition and everything that it refers to."""
        read = self._read(module)
        if name in read.internal:
            return self.need(*read.internal[name])
        if name not in read.definitions:
            return None
        if self._needed.setdefault(name, module) != module:
            raise CannotBundleError(f"{name} is defined in {module} and {self._needed[name]}")
        pending = [name]
        seen = set()
        while pending:
            current = pending.pop()
            if current in seen:
                continue
            seen.add(current)
            if self._needed.setdefault(current, module) != module:
                raise CannotBundleError(
                    f"{current} is defined in two modules: {module} and {self._needed[current]}"
                )
            for used in _names(read.definitions[current][2]):
                if used in read.definitions:
                    pending.append(used)
                elif used in read.internal:
                    if used not in self._needed:
                        self.need(*read.internal[used])
                elif used in read.external:
                    self._imports[read.external[used]] = None
        return None

    def source(self) -> tuple[list[str], list[str]]:
        """The import statements, and the definitions in order."""
        parts = []
        for module in self._order:
            read = self._modules[module]
            mine = [
                read.definitions[name][:2]
                for name, where in self._needed.items()
                if where == module
            ]
            parts += [text for _, text in sorted(set(mine))]
        return sorted(self._imports), parts

    def _read(self, name: str) -> _Module:
        if name in self._modules:
            return self._modules[name]
        module = importlib.import_module(name)
        try:
            text = inspect.getsource(module)
        except (OSError, TypeError) as error:
            raise CannotBundleError(f"the source of {name} cannot be read") from error
        read = self._modules[name] = _Module(name)
        lines = text.splitlines()
        package = name if hasattr(module, "__path__") else name.rpartition(".")[0]
        for node in ast.parse(text).body:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    bound = (alias.asname or alias.name).partition(".")[0]
                    as_name = f" as {alias.asname}" if alias.asname else ""
                    read.external[bound] = f"import {alias.name}{as_name}"
            elif isinstance(node, ast.ImportFrom):
                self._import_from(read, node, package)
            else:
                for defined in _defines(node):
                    first = min([node.lineno, *(d.lineno for d in _decorators(node))])
                    self._imports_within(read, node, lines, package)
                    segment = "\n".join(lines[first - 1 : node.end_lineno])
                    read.definitions[defined] = (first, segment, node)
        for other, _ in read.internal.values():
            self._read(other)
        self._order.append(name)
        return read

    def _imports_within(
        self, read: _Module, node: ast.stmt, lines: list[str], package: str
    ) -> None:
        """A function's own relative imports, in `lines`: absolute, or gone where it is copied."""
        if isinstance(node, ast.ClassDef):
            for method in list(node.body):
                if isinstance(method, ast.FunctionDef) and method.name in FOR_REPORTS:
                    first = min([method.lineno, *(d.lineno for d in method.decorator_list)])
                    last = method.end_lineno or method.lineno
                    lines[first - 1 : last] = [""] * (last - first + 1)
                    node.body.remove(method)
        for inner in ast.walk(node):
            if not isinstance(inner, ast.ImportFrom) or not inner.level:
                continue
            base = _base(inner, package)
            names = ", ".join(ast.unparse(alias) for alias in inner.names)
            if self._is_copied(base):
                self._import_from(read, inner, package)
                statement = "pass"
            else:
                statement = f"from {base} import {names}"
            first, last = inner.lineno - 1, inner.end_lineno or inner.lineno
            lines[first] = lines[first][: inner.col_offset] + statement
            lines[first + 1 : last] = [""] * (last - first - 1)

    def _is_copied(self, module: str) -> bool:
        return module == INTERNAL or module.startswith(INTERNAL + ".") or module in self._own

    def _import_from(self, read: _Module, node: ast.ImportFrom, package: str) -> None:
        base = _base(node, package)
        copied = self._is_copied(base)
        for alias in node.names:
            bound = alias.asname or alias.name
            if copied:
                if bound != alias.name:
                    raise CannotBundleError(f"{read.name} imports {alias.name} under another name")
                read.internal[bound] = (base, alias.name)
            elif base != "__future__":
                as_name = f" as {alias.asname}" if alias.asname else ""
                read.external[bound] = f"from {base} import {alias.name}{as_name}"


def _base(node: ast.ImportFrom, package: str) -> str:
    """The absolute name of the module that is imported from."""
    base = node.module or ""
    if not node.level:
        return base
    parts = package.split(".")
    parents = parts[: len(parts) - node.level + 1]
    return ".".join([*parents, *([base] if base else [])])


def _defines(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]


def _decorators(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.decorator_list
    return []


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
