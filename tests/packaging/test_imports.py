"""What an import brings along, and which way imports point."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kvproof
import pytest

ROOT = Path(__file__).resolve().parents[2]


def modules_after(statement: str) -> set[str]:
    """Run one import in a fresh interpreter and list the top-level modules that it loaded."""
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        f"{statement}\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def imported_from(package: str) -> Iterator[tuple[str, str]]:
    """Yield (file, absolute module) for every import statement of a top-level folder."""
    for path in sorted((ROOT / package).rglob("*.py")):
        here = ("kvproof", *path.relative_to(ROOT).parent.parts)
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield name, alias.name
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                yield name, node.module or ""
            elif isinstance(node, ast.ImportFrom):
                base = ".".join(here[: len(here) - node.level + 1])
                yield name, f"{base}.{node.module}" if node.module else base
                if node.module is None:
                    for alias in node.names:
                        yield name, f"{base}.{alias.name}"


def test_the_declaration_imports_the_standard_library_only() -> None:
    loaded = modules_after("import kvproof.statemachine")
    assert loaded - set(sys.stdlib_module_names) <= {"kvproof"}


def test_the_runtime_package_itself_imports_nothing() -> None:
    # So that the vLLM guard loads where the engine's dependencies are missing.
    assert modules_after("import kvproof.runtime") <= {"kvproof"}


def test_the_command_line_starts_without_any_extra() -> None:
    heavy = {"torch", "z3", "cvc5", "numpy", "hypothesis", "fastapi", "vllm", "transformers"}
    assert modules_after("import kvproof.specs.cli") & heavy == set()


def test_the_source_of_the_declaration_names_the_standard_library_and_transitions_only() -> None:
    allowed = {*sys.stdlib_module_names, "transitions"}
    foreign = [
        (file, module)
        for file, module in imported_from("statemachine")
        if module.partition(".")[0] not in allowed and not module.startswith("kvproof.statemachine")
    ]
    assert foreign == []


def test_the_engine_imports_nothing_of_the_proofs() -> None:
    upward = [line for line in imported_from("runtime") if line[1].startswith("kvproof.specs")]
    assert upward == []


#: Folders of the proofs that may import the engine: commands, what they run, and targets.
MAY_RUN_THE_ENGINE = (
    "specs/cli/",
    "specs/bench/",
    "specs/modelbench/",
    "specs/demo/",
    "specs/fuzz/targets/",
)


def test_of_the_proofs_only_commands_and_targets_import_the_engine() -> None:
    importing = {
        file for file, module in imported_from("specs") if module.startswith("kvproof.runtime")
    }
    assert {file for file in importing if not file.startswith(MAY_RUN_THE_ENGINE)} == set()
    # None of these folders is named for nothing.
    assert all(any(file.startswith(each) for file in importing) for each in MAY_RUN_THE_ENGINE)


def absolute_imports(source: str) -> list[int]:
    """The lines that import something of the project by an absolute name."""
    own = ("kvproof", "statemachine", "runtime", "specs")
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if (
            isinstance(node, ast.ImportFrom)
            and node.level == 0
            and (node.module or "").partition(".")[0] in own
        )
        or (
            isinstance(node, ast.Import)
            and any(alias.name.partition(".")[0] in own for alias in node.names)
        )
    ]


@pytest.mark.parametrize("package", ["statemachine", "runtime", "specs"])
def test_imports_inside_the_project_are_relative(package: str) -> None:
    # A top-level `statemachine` would be a second copy.
    absolute = [
        (path.relative_to(ROOT).as_posix(), line)
        for path in sorted((ROOT / package).rglob("*.py"))
        for line in absolute_imports(path.read_text())
    ]
    assert absolute == []


def test_an_absolute_import_of_either_kind_is_noticed() -> None:
    source = """
from ..statemachine import facts
import statemachine.facts
from runtime import core
import os, kvproof.specs as specs
from .specs import cli
from specification import runtime
"""
    assert absolute_imports(source) == [3, 4, 5]


def test_the_editable_install_reads_the_top_level_folders() -> None:
    assert kvproof.__file__ is None
    run = subprocess.run(
        [sys.executable, "-c", "import kvproof.statemachine as it; print(it.__file__)"],
        cwd=ROOT.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(run.stdout.strip()) == ROOT / "statemachine" / "__init__.py"
