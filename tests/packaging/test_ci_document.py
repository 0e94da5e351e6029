"""docs/ci.md shows a workflow to copy: its commands exist, and what it promises happens."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kvproof.specs import cli

from ..specs.fuzz import documented
from .test_documents import ROOT, blocks, options

DOCUMENT = ROOT / "docs" / "ci.md"


def workflow() -> dict[str, Any]:
    (text,) = blocks(DOCUMENT, "yaml")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def steps() -> list[dict[str, Any]]:
    return [step for job in workflow()["jobs"].values() for step in job["steps"]]


def commands(program: str) -> list[list[str]]:
    lines = [line for step in steps() for line in step.get("run", "").splitlines()]
    return [line.split() for line in lines if line.split()[0] == program]


def test_the_workflow_has_the_shape_of_one() -> None:
    found = workflow()
    assert set(found) == {"name", True, "permissions", "env", "jobs"}  # YAML reads `on` as true
    assert set(found["jobs"]) == {"check", "fuzz", "conform"}
    for job in found["jobs"].values():
        assert set(job) == {"runs-on", "steps"}
    for step in steps():
        assert ("uses" in step) != ("run" in step)
        assert set(step) <= {"uses", "run", "with", "if"}
        assert re.fullmatch(r"[\w-]+/[\w./-]+@v\d+", step.get("uses", "a/b@v1"))


def test_each_kvproof_command_of_the_workflow_exists_with_its_options() -> None:
    group = cli.application()
    found = commands("kvproof")
    assert {words[1] for words in found} == {"check", "conform"}
    for words in found:
        shown = {word for word in words if word.startswith("--")}
        assert shown <= options(group.commands[words[1]].load()), words


def test_what_is_uploaded_is_what_a_command_before_it_writes() -> None:
    for job in workflow()["jobs"].values():
        written: set[str] = set()
        for step in job["steps"]:
            written.update(step.get("run", "").split())
            told = step.get("with", {})
            paths = told.get("sarif_file", "").split()
            paths += told.get("path", "").split() if "upload" in step.get("uses", "") else []
            assert set(paths) <= written, step


def test_results_are_uploaded_also_when_the_command_before_them_fails() -> None:
    kept = [step for step in steps() if re.search(r"upload|save", step.get("uses", ""))]
    assert len(kept) == 5
    assert all(step["if"] is True or str(step["if"]).startswith("always()") for step in kept)


@pytest.mark.long
def test_the_fuzz_job_remembers_what_failed_in_ci(tmp_path: Path) -> None:
    """Its own command, on a faulty copy of the engine of docs/fuzzing.md, as CI runs it."""
    (command,) = commands("pytest")
    assert command[2] == "--kvproof-examples"
    command[3:4] = ["20", "--kvproof-steps", "6"]  # enough for this fault, and soon shrunk
    tests = tmp_path / "tests"
    tests.mkdir()
    (snippet,) = blocks(DOCUMENT, "python")
    (tests / "conftest.py").write_text(snippet)
    released = "sequence.state = state\n        self.release(sequence)\n"
    faulty = documented.source().replace(released, "sequence.state = state\n")
    assert faulty != documented.source()
    (tests / "test_my_engine.py").write_text(faulty)

    def fuzz(examples: str) -> str:
        words = [examples if word == "20" else word for word in command]
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=tmp_path, env={**os.environ, "CI": "true"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == int("BrokenRuleError" in done.stdout), done.stdout
        return done.stdout

    assert "BrokenRuleError" in fuzz("20")
    (restored,) = [step for step in steps() if "restore" in step.get("uses", "")]
    kept = tmp_path / restored["with"]["path"]
    assert any(kept.rglob("*"))
    assert (tmp_path / "fuzz.xml").exists()
    assert "BrokenRuleError" in fuzz("1"), "what failed in one run is tried first in the next"
    shutil.rmtree(kept)
    assert "BrokenRuleError" not in fuzz("1"), "one example alone does not find it"
