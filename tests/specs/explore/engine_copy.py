"""The engine on a changed declaration: `runtime` imported again, over the changed copy.

The sources are those of the engine that runs; only the name of the package above is another, so
that its relative imports find the changed `statemachine`.
"""

from __future__ import annotations

import importlib
import linecache
import sys
from collections.abc import Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from kvproof.specs.check.declaration import Declaration

RUNTIME = Path(__file__).resolve().parents[3] / "runtime"


class EngineCopy:
    """The engine's core, its configuration and the states, all of one declaration."""

    def __init__(self, declaration: Declaration) -> None:
        self.root = f"kvproof_engine_{declaration.digest[:12]}"
        finder = _Finder(self.root, declaration)
        sys.meta_path.insert(0, finder)
        try:
            self.core = self._module("runtime.core")
            self.fake = self._module("runtime.fake")
            self.lifecycle = self._module("runtime.lifecycle")
            self.api = self._module("runtime.api")
            self.states = self._module("statemachine.states")
            self.errors = self._module("statemachine.errors")
        finally:
            sys.meta_path.remove(finder)
            for name in [name for name in sys.modules if name.split(".")[0] == self.root]:
                del sys.modules[name]

    def _module(self, name: str) -> Any:
        return importlib.import_module(f"{self.root}.{name}")


_copies: dict[str, EngineCopy] = {}


def engine_copy(declaration: Declaration) -> EngineCopy:
    """The engine of a declaration, imported once."""
    found = _copies.get(declaration.digest)
    if found is None:
        found = _copies[declaration.digest] = EngineCopy(declaration)
    return found


@cache
def _runtime_sources() -> dict[str, str]:
    """Module name below `runtime` -> source: the engine's modules, and those of `transfers`."""
    paths = [*RUNTIME.glob("*.py"), *RUNTIME.glob("transfers/*.py")]
    names = (".".join(path.relative_to(RUNTIME).with_suffix("").parts) for path in paths)
    return {name: path.read_text() for name, path in zip(names, paths, strict=True)}


class _Finder(MetaPathFinder, Loader):
    def __init__(self, root: str, declaration: Declaration) -> None:
        self._texts = {root: ""}
        for package, sources in (
            ("statemachine", {n.removesuffix(".py"): t for n, t in declaration.sources.items()}),
            ("runtime", _runtime_sources()),
        ):
            for name, text in sources.items():
                self._texts[f"{root}.{package}.{name}".removesuffix(".__init__")] = text
        packages = ("statemachine", "runtime", "runtime.transfers")
        self._packages = {root, *(f"{root}.{package}" for package in packages)}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._texts:
            return None
        spec = ModuleSpec(fullname, self, is_package=fullname in self._packages)
        spec.submodule_search_locations = [] if fullname in self._packages else None
        return spec

    def exec_module(self, module: ModuleType) -> None:
        text, filename = self._texts[module.__name__], f"<{module.__name__}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        exec(compile(text, filename, "exec"), module.__dict__)
