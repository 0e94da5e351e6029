"""The engine and the target that docs/fuzzing.md shows, as the text has them."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "fuzzing.md"


def source() -> str:
    """The document's Python, as one file."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.M | re.S))


def load(folder: Path, name: str, *changes: tuple[str, str]) -> ModuleType:
    """The document's Python as a module of its own, with some of its text replaced."""
    text = source()
    for old, new in changes:
        assert old in text, f"docs/fuzzing.md no longer has {old!r}"
        text = text.replace(old, new)
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
