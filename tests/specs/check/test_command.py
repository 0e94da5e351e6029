"""`kvproof check`: exit codes, report, JSON, JUnit, explanation, and the second run."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from kvproof.specs.check.run import Report
from kvproof.specs.cli import exits, main


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")


def test_it_prints_one_line_an_obligation_then_what_is_assumed_and_what_is_not_proved(
    proved: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--id", "P1", "--id", "P6"]) == exits.OK
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if line.startswith(("P1", "P6"))]
    assert len(lines) == 2
    assert all(line.rstrip().endswith("proved") for line in lines)
    assert printed.index("P6") < printed.index("Assumed of the world") < printed.index("Not proved")


def test_the_second_run_is_remembered(proved: Report, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--id", "P1"]) == exits.OK
    first = capsys.readouterr().out
    assert "remembered" not in first
    assert main(["check", "--id", "P1"]) == exits.OK
    assert "remembered" in capsys.readouterr().out
    assert main(["check", "--id", "P1", "--no-cache"]) == exits.OK
    assert "remembered" not in capsys.readouterr().out


def test_undecided_has_its_own_exit_code_and_is_not_remembered(
    proved: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert main(["check", "--id", "P1", "--budget", "60"]) == exits.UNDECIDED
        printed = capsys.readouterr().out
        assert "unknown" in printed
        assert "remembered" not in printed


def test_json_and_junit_say_the_same(
    proved: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.xml"
    assert main(["check", "--id", "S6", "--json", "--junit", str(file)]) == exits.OK
    report = json.loads(capsys.readouterr().out)
    (obligation,) = report["obligations"]
    assert obligation["id"] == "S6"
    assert obligation["verdict"] == "proved"
    assert obligation["conditions"] == sum(obligation["parts"].values())
    assert report["assumptions"]
    assert report["contracts"]
    assert report["not_proved"]
    suite = ElementTree.parse(file).getroot()
    assert suite.get("failures") == suite.get("errors") == "0"
    names = [case.get("name", "") for case in suite]
    assert names[0].startswith("S6: ")
    assert "nothing is vacuous" in names


def test_explain_prints_readable_formulas(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--explain", "s2"]) == exits.OK
    printed = capsys.readouterr().out
    assert "a block in quarantine is no hit" in printed
    assert "(b.quarantined > 0) → ¬b.cached" in printed
    assert "may_hand_out" in printed


def test_an_unknown_id_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--id", "S99"]) == exits.USAGE
    assert main(["check", "--explain", "X"]) == exits.USAGE
    assert "there is no obligation S99; there are S1, S2" in capsys.readouterr().err
