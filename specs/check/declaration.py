"""The declaration that is checked: the one that the engine runs, or a copy with one change.

A changed copy is a second import under another name, with one piece of text replaced: whatever is
proved of it, and refuted, is about real functions, not about a model of the change. The changed
module is imported again, and every module that imports it; the others are the original's own.
Functions that join events with blocks (`joined`) belong to these, so that they call the copy's.
"""

from __future__ import annotations

import hashlib
import importlib
import linecache
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from ...statemachine import Machine, SpecificationError

ROOT = "kvproof"
JOINED = "specs.check.joined"
JOINED_FILE = "joined.py"


@dataclass(frozen=True)
class Change:
    """One piece of text in one file of the declaration, and what is put in its place."""

    file: str  # relative to statemachine/
    old: str
    new: str

    def __str__(self) -> str:
        removed = "".join(f"\n  - {line}" for line in self.old.splitlines())
        added = "".join(f"\n  + {line}" for line in self.new.splitlines())
        return f"{self.file}:{removed}{added}"


@dataclass(frozen=True)
class Edit:
    """A piece of text between two offsets in one file, and what is put in its place."""

    file: str
    start: int
    end: int
    new: str


@dataclass(frozen=True)
class Declaration:
    """One copy of the declaration with the functions that the proofs run."""

    root: str
    modules: Mapping[str, ModuleType]
    sources: Mapping[str, str]
    change: Change | None = None
    _machines: dict[str, Machine] = field(default_factory=dict, compare=False, repr=False)

    @property
    def digest(self) -> str:
        """Names the text of the declaration."""
        text = "\0".join(f"{name}\0{source}" for name, source in sorted(self.sources.items()))
        return hashlib.sha256(text.encode()).hexdigest()

    def machine(self, name: str) -> Machine:
        """The machine of "request", "transfer" or "engine"."""
        found: Machine = getattr(self.modules[name], name.upper())
        return found

    def function(self, module: str, name: str) -> Any:
        """A function of the declaration, or of `joined`."""
        return getattr(self.modules[module], name)

    def changed(self, change: Change) -> Declaration:
        """A copy with the change made.

        Raises SpecificationError if the text is not there exactly once, or if the changed text is
        no declaration any more.
        """
        source = self.sources.get(change.file)
        if source is None or source.count(change.old) != 1:
            times = 0 if source is None else source.count(change.old)
            raise SpecificationError(
                f"the text to change is {times} times in {change.file}, not once:\n{change.old}"
            )
        sources = {**self.sources, change.file: source.replace(change.old, change.new)}
        return _load(self, sources, change)

    def edited(self, edit: Edit) -> Declaration:
        """A copy with the edit made.

        Raises SpecificationError if the edited text is no declaration any more.
        """
        source = self.sources[edit.file]
        edited = source[: edit.start] + edit.new + source[edit.end :]
        change = Change(edit.file, source[edit.start : edit.end], edit.new)
        return _load(self, {**self.sources, edit.file: edited}, change)


@lru_cache(maxsize=1)
def standard() -> Declaration:
    """The declaration that the engine runs."""
    package = importlib.import_module(f"{ROOT}.statemachine")
    folder = Path(next(iter(package.__path__)))
    sources = {path.name: path.read_text() for path in sorted(folder.glob("*.py"))}
    return Declaration(ROOT, _modules(ROOT, sources), sources)


def _modules(root: str, sources: Mapping[str, str]) -> dict[str, ModuleType]:
    names = [name.removesuffix(".py") for name in sources if name != "__init__.py"]
    modules = {name: importlib.import_module(f"{root}.statemachine.{name}") for name in names}
    modules["joined"] = importlib.import_module(f"{root}.{JOINED}")
    return modules


def _load(original: Declaration, sources: Mapping[str, str], change: Change) -> Declaration:
    """Import a changed copy under a name of its own."""
    text = "\0".join(f"{name}\0{source}" for name, source in sorted(sources.items()))
    root = f"{ROOT}_changed_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    finder = _Finder(root, sources)
    again = _importing(change.file.removesuffix(".py"), {**sources, JOINED_FILE: finder.joined})
    for name, module in original.modules.items():
        if name not in again:
            inside = JOINED if f"{name}.py" == JOINED_FILE else f"statemachine.{name}"
            sys.modules[f"{root}.{inside}"] = module
    sys.meta_path.insert(0, finder)
    try:
        return Declaration(root, _modules(root, sources), dict(sources), change)
    except SpecificationError:
        raise
    except Exception as error:
        if type(error).__name__ == SpecificationError.__name__:  # the copy's own class of it
            raise SpecificationError(str(error)) from error
        raise SpecificationError(f"the changed declaration does not load: {error}") from error
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.split(".")[0] == root]:
            del sys.modules[name]


def _importing(changed: str, sources: Mapping[str, str]) -> set[str]:
    """The modules to import again: the changed one, and those that import one of them."""
    imports = {
        file.removesuffix(".py"): set(_IMPORTED.findall(source)) for file, source in sources.items()
    }
    found = {changed}
    while more := {name for name, others in imports.items() if others & found} - found:
        found |= more
    return found


_IMPORTED = re.compile(r"^ *from \.(?:\.\.statemachine\.)?(\w+) import", re.MULTILINE)


class _Finder(MetaPathFinder, Loader):
    """Finds the modules of a copy among texts instead of files."""

    def __init__(self, root: str, sources: Mapping[str, str]) -> None:
        joined = importlib.import_module(f"{ROOT}.{JOINED}")
        packages = ("", ".specs", ".specs.check")
        self._texts = {root + package: "" for package in packages}
        self._texts[f"{root}.statemachine"] = sources["__init__.py"]
        for name, source in sources.items():
            if name != "__init__.py":
                self._texts[f"{root}.statemachine.{name.removesuffix('.py')}"] = source
        self.joined = Path(str(joined.__file__)).read_text()
        self._texts[f"{root}.{JOINED}"] = self.joined
        self._packages = {root + package for package in (*packages, ".statemachine")}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._texts:
            return None
        spec = ModuleSpec(fullname, self, is_package=fullname in self._packages)
        spec.submodule_search_locations = [] if fullname in self._packages else None
        return spec

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        text = self._texts[name]
        filename = f"<{name}>"
        # The executor reads the sources of what it runs from here.
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        exec(compile(text, filename, "exec"), module.__dict__)
