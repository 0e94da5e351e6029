"""The guard is light: vLLM, the declaration and the standard library are all that it imports."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvproof.runtime.integrations import vllm_drift

pytestmark = pytest.mark.vllm

GUARD = Path(vllm_drift.__file__).parent
TRACES = ("outcome", "trace_writer")
ALLOWED = sys.stdlib_module_names | {"vllm", "prometheus_client"}


def imports(path: Path) -> Iterator[str]:
    """What a file imports, wherever in it: a module's first name, or dots and all if relative."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield "." * node.level + module if node.level else module.partition(".")[0]


@pytest.mark.parametrize("path", sorted(GUARD.glob("*.py")), ids=lambda path: path.stem)
def test_no_part_of_the_guard_needs_the_engine_or_a_solver(path: Path) -> None:
    outside = {name for name in imports(path) if not name.startswith(".")}
    assert outside <= ALLOWED
    up = {name.strip(".").partition(".")[0] for name in imports(path) if name.startswith("..")}
    assert up <= {"statemachine", *TRACES}


@pytest.mark.parametrize("module", TRACES)
def test_what_writes_its_traces_needs_no_more(module: str) -> None:
    found = set(imports(GUARD.parent / f"{module}.py"))
    own = {f".{name}" for name in TRACES}
    assert {name for name in found if not name.startswith("..statemachine")} <= ALLOWED | own
