"""No session may hold two copies of a package; the check itself is seen to fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..second_copy import second_copies

TESTS = Path(__file__).resolve().parents[1]


def run_session(root: Path, test: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run one test under our conftest, in a tree that has a top-level folder `statemachine`.

    `python -m pytest` puts the tree on sys.path: the easiest way to make the mistake.
    """
    (root / "statemachine").mkdir()
    (root / "statemachine" / "__init__.py").touch()
    (root / "tests").mkdir()
    for name in ("__init__.py", "conftest.py", "programs.py", "second_copy.py"):
        shutil.copy(TESTS / name, root / "tests" / name)
    (root / "tests" / "test_one.py").write_text(test)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider",
         *options],
        cwd=root,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "2")], ids=["one", "many"])
def test_a_session_that_imports_a_second_copy_fails_although_its_tests_pass(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """In one process and in many."""
    test = "import statemachine\n\ndef test_one():\n    assert True\n"
    session = run_session(tmp_path, test, *options)
    assert "1 passed, 1 error" in session.stdout
    assert session.returncode == 1
    assert "imported from the top-level folders: statemachine" in session.stdout


def test_a_test_that_leaves_the_engines_log_mute_fails(tmp_path: Path) -> None:
    mutes = """import logging

def test_one():
    logging.getLogger("kvproof.runtime").setLevel(logging.CRITICAL)
"""
    session = run_session(tmp_path, mutes)
    assert "1 passed, 1 error" in session.stdout
    assert session.returncode == 1


def test_a_session_without_a_second_copy_passes(tmp_path: Path) -> None:
    session = run_session(tmp_path, "def test_one():\n    assert True\n")
    assert session.returncode == 0, session.stdout + session.stderr


def test_this_session_has_imported_no_second_copy_so_far() -> None:
    assert second_copies(sys.modules) == []


def test_a_module_of_the_namespace_is_no_second_copy() -> None:
    names = ["kvproof.statemachine", "statemachines", "specs.cli", "runtime", "tests.runtime"]
    assert second_copies(names) == ["runtime", "specs.cli"]


def test_every_folder_of_tests_is_a_package() -> None:
    # A test in tests/statemachine/ would be imported as `statemachine.test_…` if only that
    # folder had an __init__.py, and relative imports between tests would break if one lacked it.
    folders = {path.parent for path in TESTS.rglob("*.py")}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []
