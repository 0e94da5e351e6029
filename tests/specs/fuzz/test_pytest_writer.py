"""A written test stands alone: it fails by itself, for the reason found, without kvproof."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kvproof.specs.fuzz import report as reports
from kvproof.specs.fuzz.bundle import Bundle, CannotBundleError
from kvproof.specs.fuzz.campaign import Budget, search

from . import documented
from .test_documented_target import ABORT_RAISES, FREES_TWICE, LOSES_VICTIM

#: The engine's call goes well, and then it cannot be looked at.
CANNOT_BE_SEEN = (
    "sequence.table, sequence.computed = [], 0\n",
    "sequence.table, sequence.computed = None, 0\n",
)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("written_twice", FREES_TWICE, "AssertionError: assert"),
        pytest.param(
            "written_victim", LOSES_VICTIM, "AssertionError: assert", marks=pytest.mark.long
        ),
        pytest.param("written_abort", ABORT_RAISES, "ValueError", marks=pytest.mark.long),
        pytest.param("written_look", CANNOT_BE_SEEN, "TypeError", marks=pytest.mark.long),
    ],
)
def test_a_written_test_fails_without_kvproof(
    tmp_path: Path, name: str, change: tuple[str, str], says: str
) -> None:
    module = documented.load(tmp_path, name, change)
    report = search(module.MyTarget, Budget(seconds=None, operations=30_000, findings=1))
    folder = tmp_path / "findings"
    paths = reports.write_tests(report, folder, "kvproof fuzz --target my:MyTarget")
    (path,) = paths.values()
    text = path.read_text()
    imported = [
        name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    ]
    assert not [name for name in imported if name and name.startswith("kvproof")]
    assert "Step by step:" in text
    # -I: neither the current directory nor PYTHONPATH; kvproof's plug-in is left out as well.
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:kvproof",
            "--rootdir",
            str(folder),
            str(path),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert says in run.stdout
    assert "1 failed" in run.stdout


def test_two_definitions_of_one_name_cannot_be_bundled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "bundled_one.py").write_text("from bundled_other import g\nT = 1\ndef f(): g(T)\n")
    (tmp_path / "bundled_other.py").write_text("T = 2\ndef g(x): return T\n")
    with pytest.raises(CannotBundleError, match="T is defined in"):
        Bundle(["bundled_one", "bundled_other"]).need("bundled_one", "f")


@pytest.mark.parametrize(
    ("copied", "line"),
    [
        ([], "        from bundled_package.helper import g"),
        (["bundled_package.helper"], "        pass"),
    ],
)
def test_what_a_function_imports_from_beside_it_is_found_without_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: list[str], line: str
) -> None:
    """As `vllm-guarded` imports the guard: its written tests ended with an ImportError."""
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "bundled_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("def g(): return 7\n")
    (package / "engine.py").write_text(
        "class Engine:\n    def f(self):\n        from .helper import (\n            g,\n"
        "        )\n        return g()\n"
    )
    bundle = Bundle(["bundled_package.engine", *copied])
    bundle.need("bundled_package.engine", "Engine")
    imports, parts = bundle.source()
    text = "\n".join([*imports, *parts])
    assert line in text.splitlines()
    made: dict[str, Any] = {}
    exec(text, made)
    assert made["Engine"]().f() == 7
