"""docs/fuzzing.md shows a whole target: it passes as it stands, and finds what is broken in it."""

import re
import subprocess
import sys
import unittest
from pathlib import Path

import pytest
from kvproof.specs.fuzz import stateful_test
from kvproof.specs.fuzz.campaign import Budget, search
from kvproof.specs.fuzz.generation import WEIGHTS
from kvproof.specs.fuzz.operations import FAULTS
from kvproof.specs.fuzz.rules import RULES
from kvproof.specs.fuzz.stateful import machine
from kvproof.statemachine import Container, RequestState, container

from . import documented

#: (text of the engine, what stands there instead)
FORGETS_TO_RELEASE = (
    "sequence.state = state\n        self.release(sequence)\n",
    "sequence.state = state\n",
)
KEEPS_COMPUTED = ("sequence.table, sequence.computed = [], 0\n", "sequence.table = []\n")
FREES_TWICE = ("self.free += sequence.table\n", "self.free += sequence.table * 2\n")
LEAKS_A_BLOCK = ("self.free += sequence.table\n", "self.free += sequence.table[1:]\n")
LOSES_VICTIM = ("                self.waiting.appendleft(victim)\n", "")
ABORT_RAISES = ("if sequence in self.running or sequence in self.waiting:", "if True:")


def test_the_documented_engine_breaks_no_rule(tmp_path: Path) -> None:
    module = documented.load(tmp_path, "documented_sound")
    report = search(module.MyTarget, Budget(seconds=None, operations=4_000))
    assert [finding.failure.violation for finding in report.findings] == []


DOCUMENTED_FAULTS = [
    ("release", FORGETS_TO_RELEASE, {"idle-holds-nothing", "progress"}),
    ("computed", KEEPS_COMPUTED, {"covered", "attended", "no-exception"}),
    ("twice", FREES_TWICE, {"free-or-held", "counts-are-holders"}),
    ("victim", LOSES_VICTIM, {"one-container"}),
    ("abort", ABORT_RAISES, {"no-exception"}),
]


@pytest.mark.parametrize(("name", "change", "rules"), DOCUMENTED_FAULTS)
def test_a_fault_in_the_documented_engine_is_found(
    tmp_path: Path, name: str, change: tuple[str, str], rules: set[str]
) -> None:
    module = documented.load(tmp_path, f"documented_{name}", change)
    budget = Budget(seconds=None, operations=30_000, findings=1)
    report = search(module.MyTarget, budget)
    assert {finding.failure.violation.rule for finding in report.findings} <= rules
    assert report.findings


def test_a_known_finding_does_not_stop_the_search(tmp_path: Path) -> None:
    module = documented.load(tmp_path, "documented_two_faults", FREES_TWICE, ABORT_RAISES)
    report = search(module.MyTarget, Budget(seconds=None, operations=3_000, replays=60))
    found = {finding.failure.violation.rule: finding.count for finding in report.findings}
    assert "no-exception" in found
    assert {"free-or-held", "counts-are-holders"} & set(found)
    assert max(found.values()) > 1, "met again, and counted"


def test_findings_of_one_rule_are_told_apart_by_the_operation(tmp_path: Path) -> None:
    module = documented.load(tmp_path, "documented_leak", LEAKS_A_BLOCK)
    report = search(module.MyTarget, Budget(seconds=None, operations=2_000, replays=60))
    titles = [finding.title for finding in report.findings]
    for operation in ("abort", "finish_step"):
        assert f"Broken by {operation}: {RULES['free-or-held']}" in titles
    assert len(set(titles)) == len(titles)
    assert len({finding.slug for finding in report.findings}) == len(titles)


def test_the_documented_states_and_places_are_those_of_the_declaration() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (\w+) \|", documented.DOCUMENT.read_text(), re.M)
    assert rows == [
        (state.name, Container(container(state)).name.lower()) for state in RequestState
    ]


@pytest.mark.parametrize(
    "ci",
    [pytest.param(False, marks=pytest.mark.long, id="at-a-desk"), pytest.param(True, id="in-ci")],
)
def test_stateful_test_fails_on_a_broken_engine_and_says_what_happened(
    tmp_path: Path, ci: bool
) -> None:
    """In CI Hypothesis chooses its examples by the test's text, whatever seed is asked for."""
    text = documented.source()
    assert "TestMyEngine = stateful_test(MyTarget)" in text
    (tmp_path / "test_broken.py").write_text(text.replace(*FORGETS_TO_RELEASE))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    options = ["-q", "-p", "no:cacheprovider", "--hypothesis-seed=1"]
    options += ["--hypothesis-profile", "ci" if ci else "default"]
    budget = ["--kvproof-examples", "60", "--kvproof-steps", "6"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *budget, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "FAILED test_broken.py::TestMyEngine" in run.stdout, run.stdout + run.stderr
    assert re.search("rule (idle-holds-nothing|progress):", run.stdout)
    assert "1. A request, r1, arrives" in run.stdout


def test_a_state_machine_has_the_operations_in_the_weights_of_the_fuzzer(tmp_path: Path) -> None:
    module = documented.load(tmp_path, "documented_weights")
    attributes = vars(machine(module.MyTarget)).values()
    rules = [getattr(each, "__name__", "") for each in attributes]
    assert set(WEIGHTS) - set(rules) == set(FAULTS)
    for often, seldom in (("step", "add"), ("add", "chunk"), ("chunk", "reset")):
        assert rules.count(often) > rules.count(seldom)


def test_stateful_test_passes_on_a_sound_engine(tmp_path: Path) -> None:
    module = documented.load(tmp_path, "documented_stateful")
    case = stateful_test(module.MyTarget, examples=5, steps=10)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    assert result.testsRun == 1
    assert result.wasSuccessful(), result.failures + result.errors
