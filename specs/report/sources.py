"""Where things are in the declaration's sources: the lines of a function, of a row of a table.

Lines are read from the text of the declaration that was checked, so that they are right of a
changed copy as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ... import statemachine
from ..check.declaration import Declaration

Function = ast.FunctionDef


@dataclass(frozen=True)
class Place:
    """Some lines of the declaration: `file` is relative to the root of the repository."""

    file: str
    first: int  # lines are counted from 1
    last: int
    name: str
    kind: str = "function"

    def overlaps(self, file: str, first: int, last: int) -> bool:
        """Whether any of those lines is one of these."""
        return self.file == file and self.first <= last and first <= self.last


@dataclass(frozen=True)
class Sources:
    """The functions and rows of one declaration, by where they are written."""

    declaration: Declaration
    _trees: dict[str, ast.Module] = field(default_factory=dict, repr=False)

    def function(self, module: str, name: str) -> Place | None:
        """The lines of a function of the declaration; None if it is not among its sources."""
        found = self._definition(module, name)
        if found is None:
            return None
        first = min([found.lineno, *(each.lineno for each in found.decorator_list)])
        return Place(path_of(f"{module}.py"), first, found.end_lineno or first, f"{module}.{name}")

    def row(self, machine: str, number: int) -> Place:
        """The lines of a row of a machine's table."""
        row = self._rows(machine).elts[number]
        table = self.declaration.machine(machine).table
        name = f"{machine} row {number}: {table.rows[number].trigger.name.lower()}"
        return Place(
            path_of(f"{machine}.py"), row.lineno, row.end_lineno or row.lineno, name, "row"
        )

    def table(self, machine: str) -> Place:
        """The lines of a machine's whole table."""
        rows = self._rows(machine)
        name = f"the {machine}'s table"
        return Place(
            path_of(f"{machine}.py"), rows.lineno, rows.end_lineno or rows.lineno, name, "table"
        )

    def module_of(self, name: str) -> str | None:
        """The module of the declaration that defines a function of this name."""
        for file in self.declaration.sources:
            module = file.removesuffix(".py")
            if self._definition(module, name) is not None:
                return module
        return None

    def writes(self, module: str, name: str) -> frozenset[str]:
        """The fields that a function sets on its records, or has set by what it calls."""
        return frozenset(
            target.attr
            for function in self._reached(module, name)
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Attribute)
        )

    def reads(self, module: str, name: str) -> frozenset[str]:
        """The fields that a function reads, or has read by what it calls."""
        return frozenset(
            node.attr
            for function in self._reached(module, name)
            for node in ast.walk(function)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        )

    def commands(self, module: str, name: str) -> bool:
        """Whether an effect may return a hold command."""
        return any(
            not isinstance(node.value, ast.Constant | ast.Call)
            for function in self._reached(module, name)
            for node in ast.walk(function)
            if isinstance(node, ast.Return) and node.value is not None
        )

    def reached(self, module: str, name: str) -> Iterator[tuple[str, str]]:
        """A function and all that it calls, by module and name, from the outside in."""
        seen: dict[tuple[str, str], None] = {}
        waiting = [(module, name)]
        while waiting:
            where = waiting.pop(0)
            definition = self._definition(*where)
            if where in seen or definition is None:
                continue
            seen[where] = None
            for node in ast.walk(definition):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    called = self._module_seen_from(where[0], node.func.id)
                    if called is not None:
                        waiting.append((called, node.func.id))
        yield from seen

    def _reached(self, module: str, name: str) -> Iterator[Function]:
        for where in self.reached(module, name):
            definition = self._definition(*where)
            assert definition is not None
            yield definition

    def _module_seen_from(self, module: str, name: str) -> str | None:
        """Where a name that a module uses is defined: there, or where it is imported from."""
        if self._definition(module, name) is not None:
            return module
        for node in self._tree(module).body:
            if isinstance(node, ast.ImportFrom) and any(each.name == name for each in node.names):
                return node.module
        return None

    def _definition(self, module: str, name: str) -> Function | None:
        if f"{module}.py" not in self.declaration.sources:
            return None
        for node in self._tree(module).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return node
        return None

    def _rows(self, machine: str) -> ast.Tuple:
        for node in self._tree(machine).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROWS":
                assert isinstance(node.value, ast.Tuple)
                return node.value
        raise AssertionError(f"{machine}.py has no ROWS")

    def _tree(self, module: str) -> ast.Module:
        found = self._trees.get(module)
        if found is None:
            found = self._trees[module] = ast.parse(self.declaration.sources[f"{module}.py"])
        return found


def path_of(file: str) -> str:
    """A file of the declaration, relative to the repository that it is in.

    A code host shows lines of the repository that was checked out: where kvproof is a folder of
    another project, the path begins there. An installed copy is in no repository.
    """
    folder = Path(next(iter(statemachine.__path__))).resolve()
    if "site-packages" not in folder.parts:
        for root in folder.parents:
            if (root / ".git").exists():
                return (folder / file).relative_to(root).as_posix()
    return f"statemachine/{file}"
