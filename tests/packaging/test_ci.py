"""The same commands for a reader of the README and for CI."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from .test_documents import commands

ROOT = Path(__file__).resolve().parents[2]


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert ["make", "test"] in commands(ROOT / "README.md")
    steps = re.findall(r"^step (.+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert "make test" in steps


def test_every_make_target_that_a_document_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    documents = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", ".ci/run")]
    named = {
        target
        for document in documents
        for target in re.findall(r"(?:`|\$ |step )make ([a-z-]+)", document.read_text())
    }
    assert named <= targets


def test_the_ci_script_fails_when_a_step_fails_and_still_runs_the_others(tmp_path: Path) -> None:
    script = tmp_path / ".ci" / "run"
    script.parent.mkdir()
    script.write_text((ROOT / ".ci" / "run").read_text())
    (tmp_path / "Makefile").write_text(
        "test:\n\t@false\nruff:\n\t@echo linted\ntypecheck:\n\ntest-vllm:\n\t@echo fuzzed\n"
    )
    run = subprocess.run(
        ["bash", str(script)], cwd="/", capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert "failed: make test" in run.stdout
    assert "linted" in run.stdout
    assert "fuzzed" in run.stdout


@pytest.mark.parametrize("old_python", [False, True])
def test_make_says_what_is_missing_where_there_is_no_new_python(
    tmp_path: Path, old_python: bool
) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name in ("bash", "make"):
        found = shutil.which(name)
        assert found is not None
        (binaries / name).symlink_to(found)
    if old_python:
        (binaries / "python3").write_text("#!/bin/bash\nexit 1\n")
        (binaries / "python3").chmod(0o755)
    run = subprocess.run(
        ["make", "test"],
        cwd=tmp_path,
        env={"PATH": str(binaries)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0
    assert "needs Python 3.11 or newer" in run.stderr
    assert not (tmp_path / ".venv").exists()


def test_make_says_so_when_the_named_python_is_not_there(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    run = subprocess.run(
        ["make", "PYTHON=no-such-python", "test"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0
    assert "there is no program no-such-python" in run.stderr
