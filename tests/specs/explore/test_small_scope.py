"""Every interleaving of a few calls to an engine: a faulty one is caught by a shortest way."""

import json
from pathlib import Path

import pytest
from kvproof.specs import cli
from kvproof.specs.cli import exits
from kvproof.specs.explore.small_scope import explore_target, scope_of
from kvproof.specs.fuzz.targets.runtime import RuntimeEngine

from ...reference.target import ReferenceTarget
from ..fuzz.seeded import FAULTS

#: Fault -> calls of the shortest way to it.
SHALLOW = {
    "An abort frees blocks that a launched step still writes": 3,
    "A forced reset raises while a transfer is in flight": 4,
    "A block is a hit from the launch of the step that will write it": 2,
}


@pytest.mark.parametrize("name", SHALLOW)
def test_a_fault_of_an_engine_is_found_by_the_shortest_way(name: str) -> None:
    (seeded,) = [fault for fault in FAULTS if fault.name == name]
    target = seeded.target()
    found = explore_target(target, scope_of(target, 5))
    assert found.failure is not None
    assert found.failure.violation.rule in seeded.rules
    assert len(found.failure.operations) == SHALLOW[name]


def test_the_reference_engine_keeps_every_rule() -> None:
    found = explore_target(ReferenceTarget, scope_of(ReferenceTarget, 3))
    assert found.failure is None
    assert sum(found.levels) == found.states > 1


def test_the_engine_keeps_every_rule_in_every_short_interleaving() -> None:
    found = explore_target(RuntimeEngine, scope_of(RuntimeEngine, 3))
    assert found.failure is None
    assert len(found.levels) == 4


@pytest.mark.long
def test_the_engine_keeps_every_rule_eight_calls_deep() -> None:
    found = explore_target(RuntimeEngine, scope_of(RuntimeEngine, 8))
    assert found.failure is None


def test_the_command_says_what_an_engine_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explore", "--target", "runtime", "--depth", "2", "--json"]) == exits.OK
    result = json.loads(capsys.readouterr().out)
    assert result["failure"] is None
    assert result["calls"] > 0


def test_an_unknown_engine_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explore", "--target", "toaster"]) == exits.USAGE
    assert "toaster" in capsys.readouterr().err


def test_a_failure_is_written_as_a_pytest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (fault,) = [each for each in FAULTS if each.name.startswith("A block is a hit from the launch")]
    monkeypatch.setattr("kvproof.specs.cli.small_scope.load", lambda name: fault.target())
    monkeypatch.setattr("kvproof.specs.cli.small_scope.write", lambda finding, command: command)
    asked = ["explore", "--target", "faulty", "--depth", "3", "--out", str(tmp_path)]
    assert cli.main(asked) == exits.REFUTED
    assert "counterexample" in capsys.readouterr().out
    (path,) = tmp_path.iterdir()
    assert path.read_text() == "kvproof explore --target faulty --depth 3"
