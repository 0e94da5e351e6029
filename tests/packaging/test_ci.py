"""The same commands for a reader of the README and for CI."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def commands(markdown: str) -> list[str]:
    """List the command lines of the console blocks."""
    blocks = re.findall(r"^```console\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)
    return [
        line.removeprefix("$ ").partition("  #")[0].strip()
        for block in blocks
        for line in block.splitlines()
        if line.startswith("$ ")
    ]


def test_ci_runs_the_test_command_of_the_readme() -> None:
    readme = commands((ROOT / "README.md").read_text())
    assert "make test" in readme
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
        "test:\n\t@false\nlint:\n\t@echo linted\ntest-vllm:\n\t@echo fuzzed\n"
    )
    run = subprocess.run(
        ["bash", str(script)], cwd="/", capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert "failed: make test" in run.stdout
    assert "linted" in run.stdout
    assert "fuzzed" in run.stdout
