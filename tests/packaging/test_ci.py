"""The same commands for a reader of the README and for CI."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from .test_documents import commands

ROOT = Path(__file__).resolve().parents[2]


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert ["make", "test"] in commands(ROOT / "README.md")
    steps = re.findall(r"^ *step (.+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
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


@pytest.mark.parametrize("broken", ["", "test", "ruff", "test-vllm"])
def test_the_ci_script_runs_every_step_and_fails_with_one_that_fails(
    tmp_path: Path, broken: str
) -> None:
    targets = {"test", "ruff", "typecheck", "test-vllm"}
    for name, text in {
        ".ci/run": (ROOT / ".ci" / "run").read_text(),
        "tests/install_programs.sh": "",
        ".venv/bin/kvproof": "#!/bin/bash\necho kvproof${PYTHONDONTWRITEBYTECODE:+ too} does $1\n",
        "Makefile": "".join(
            f"{target}:\n\t@{'false' if target == broken else f'echo {target} is done'}\n"
            for target in (".venv/.created", "vllm-packages", "venv", *targets)
        ),
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    run = subprocess.run(
        ["bash", str(tmp_path / ".ci/run")], cwd="/", capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert run.returncode == (1 if broken else 0)
    failed = re.findall("^failed: (.+)$", run.stdout, re.MULTILINE)
    assert failed == ([f"make {broken}"] if broken else [])
    done = set(re.findall("^(.+) is done$", run.stdout, re.MULTILINE))
    assert done == (targets | {".venv/.created", "vllm-packages", "venv"}) - {broken}
    assert {"check", "explore", "fuzz"} == set(re.findall("kvproof does (.+)", run.stdout))


def test_where_no_bytecode_is_to_be_kept_make_keeps_it_all_the_same() -> None:
    rule = "kept:; @echo kept=$${PYTHONDONTWRITEBYTECODE-yes}"
    run = subprocess.run(
        ["make", "--no-print-directory", "--eval", rule, "kept"],
        cwd=ROOT, capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert run.stdout.strip() == "kept=yes"


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
