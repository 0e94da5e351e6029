"""`kvproof check`: exit codes, report, JSON, JUnit, explanation, and the second run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import kvproof.specs.cli.check as command
import pytest
from kvproof.specs.check import run
from kvproof.specs.check.conditions import Condition
from kvproof.specs.check.declaration import Change, Declaration, standard
from kvproof.specs.check.obligations import BY_ID, OBLIGATIONS, Obligation
from kvproof.specs.check.proofs import Proofs
from kvproof.specs.check.run import Report
from kvproof.specs.cli import exits, main
from kvproof.specs.symbolic import terms


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")


def declare(monkeypatch: pytest.MonkeyPatch, file: str, old: str, new: str) -> None:
    """Let the command check a changed copy of the declaration."""
    changed: Declaration = standard().changed(Change(file, old, new))
    monkeypatch.setattr(run, "standard", lambda: changed)
    monkeypatch.setattr(command, "standard", lambda: changed)


def table_of(printed: str) -> dict[str, str]:
    """The lines of the table by their obligations' ids."""
    lines = printed.split("\n\n")[0].splitlines()
    assert lines[0].split() == [
        "id",
        "obligation",
        "method",
        "start",
        "event",
        "own",
        "s",
        "verdict",
    ]
    return {line.split()[0]: line for line in lines[1:]}


def cases_of(file: Path) -> dict[str, ElementTree.Element]:
    """The cases of a JUnit file by the first word of their names, with the whole as ''."""
    suite = ElementTree.parse(file).getroot()
    return {"": suite} | {case.get("name", "").split()[0]: case for case in suite}


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_it_prints_one_line_an_obligation_then_what_is_assumed_and_what_is_not_proved(
    proved: Report,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    columns: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(run, "_never_reached", lambda proofs: [])  # its search takes seconds
    assert main(["check", "--no-cache"]) == exits.OK
    printed = capsys.readouterr().out
    table = table_of(printed)
    assert list(table) == [each.id for each in OBLIGATIONS]
    for obligation in OBLIGATIONS:
        line = table[obligation.id]
        assert obligation.short in line or obligation.statement in line
        assert line.rstrip().endswith("proved")
        assert len(line.rstrip()) <= columns
    last = OBLIGATIONS[-1].short
    assert printed.index(last) < printed.index("Assumed of the world") < printed.index("Not proved")


def test_a_line_shows_statement_method_conditions_by_part_and_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["check", "--id", "S7", "--id", "P1"]
    assert main(asked) == exits.OK
    table = table_of(capsys.readouterr().out)
    assert main([*asked, "--json"]) == exits.OK  # remembered: the very same figures
    for each in json.loads(capsys.readouterr().out)["obligations"]:
        line = table[each["id"]]
        start, event = (each["parts"].get(part, 0) for part in ("initiation", "consecution"))
        own = each["conditions"] - start - event
        assert (start > 0, event > 0, own > 0) == (each["id"] == "S7", each["id"] == "S7", True)
        assert each["statement"] in line
        shown = [each["method"], str(start), str(event), str(own), f"{each['seconds']:.1f}"]
        assert line.split()[-6:] == [*shown, "proved"]


def test_an_id_that_is_given_twice_is_proved_once(
    proved: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--id", "P1", "--id", "p1", "--json"]) == exits.OK
    assert [each["id"] for each in json.loads(capsys.readouterr().out)["obligations"]] == ["P1"]


def test_a_refuted_obligation_is_shown_and_written_and_what_rests_on_it_is_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    declare(
        monkeypatch,
        "request.py",
        "Row(E.PREEMPT, (RUNNING,), PREEMPTED, before=(let_go,)",
        "Row(E.PREEMPT, (RUNNING,), PREEMPTED, before=()",
    )
    file = tmp_path / "report.xml"
    asked = ["check", "--id", "S4", "--id", "P1", "--junit", str(file)]
    assert main(asked) == exits.REFUTED
    printed = capsys.readouterr().out
    table = table_of(printed)
    assert table["S4"].rstrip().endswith("refuted")
    assert table["P1"].rstrip().endswith("rests")
    assert "\nP1 rests on what is not proved: S4\n" in printed
    broken = "S4 consecution: PREEMPTED, FINISHED_*, UNKNOWN and grammar ⇒ not resident"
    assert broken in printed
    assert "shortest script" in printed
    cases = cases_of(file)
    assert {name: cases[""].get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "3", "failures": "1", "errors": "1",
    }  # fmt: skip
    (failure,) = cases["S4:"]
    assert (failure.tag, failure.get("message")) == ("failure", "refuted")
    assert broken in str(failure.text)
    (error,) = cases["P1:"]
    assert (error.tag, error.text) == ("error", "S4")
    assert len(cases["nothing"]) == 0


def of_nothing(proofs: Proofs) -> Iterator[Condition]:
    yield proofs.premise("X1", "premise", "it is said of nothing", terms.TRUE, terms.FALSE)


def test_what_is_vacuous_is_shown_and_written_and_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    declare(
        monkeypatch, "request_guards.py", "    return x.fresh <= x.free\n", "    return False\n"
    )
    vacuous = Obligation("X1", "of nothing", "of nothing", "cases", of_nothing)
    monkeypatch.setattr(run, "OBLIGATIONS", (BY_ID["S6"], vacuous))
    # The search for scripts takes seconds where a row has none.
    monkeypatch.setattr(run, "rows_taken", lambda declaration: {("request", 0)})
    file = tmp_path / "report.xml"
    assert main(["check", "--junit", str(file)]) == exits.USAGE
    printed = capsys.readouterr().out
    assert set(table_of(printed)) == {"S6", "X1"}
    said = [line for line in printed.splitlines() if line.startswith("vacuous: ")]
    shown = "\n".join(said)
    assert "the hypotheses of X1 hold nowhere: it is said of nothing" in shown
    assert "(admit: it runs) answers GO and can never be taken" in shown
    assert "no script of at most 8 events takes the engine's row" in shown
    assert "the fairness assumptions have no run in common" in shown
    cases = cases_of(file)
    assert (cases[""].get("failures"), cases[""].get("errors")) == ("0", "1")
    (error,) = cases["nothing"]
    assert (error.tag, error.get("message")) == ("error", "vacuous")
    assert "the hypotheses of X1 hold nowhere" in str(error.text)


def test_a_declaration_that_cannot_be_executed_is_a_bad_specification(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    declare(
        monkeypatch,
        "request_guards.py",
        "    return x.fresh <= x.free\n",
        "    return x.fresh is x.free\n",
    )
    assert main(["check", "--id", "S6"]) == exits.USAGE
    printed = capsys.readouterr()
    assert "the declaration cannot be executed symbolically" in printed.err
    assert "`is`" in printed.err
    assert printed.out == ""


def test_the_second_run_is_remembered(proved: Report, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--id", "P1"]) == exits.OK
    first = capsys.readouterr().out
    assert "remembered" not in first
    assert main(["check", "--id", "P1"]) == exits.OK
    assert "remembered" in capsys.readouterr().out
    assert main(["check", "--id", "P1", "--no-cache"]) == exits.OK
    assert "remembered" not in capsys.readouterr().out


def test_undecided_has_its_own_exit_code_and_is_not_remembered(
    proved: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.xml"
    for _ in range(2):
        asked = ["check", "--id", "P1", "--budget", "60", "--junit", str(file)]
        assert main(asked) == exits.UNDECIDED
        printed = capsys.readouterr().out
        assert "unknown" in printed
        assert "remembered" not in printed
    cases = cases_of(file)
    assert (cases[""].get("failures"), cases[""].get("errors")) == ("0", "1")
    (error,) = cases["P1:"]
    assert (error.tag, error.get("message")) == ("error", "unknown")
    assert error.text


def test_json_and_junit_say_the_same(
    proved: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.xml"
    asked = ["check", "--id", "S6", "--id", "S7", "--json", "--junit", str(file)]
    assert main(asked) == exits.OK
    report = json.loads(capsys.readouterr().out)
    by_cases, obligation = report["obligations"]
    assert (by_cases["id"], obligation["id"]) == ("S6", "S7")
    assert by_cases["consecution_by_action"] == {}
    by_action = obligation["consecution_by_action"]
    assert {"preempt", "abort", "reset"} <= by_action.keys()
    assert all(by_action.values())
    assert sum(by_action.values()) == obligation["parts"]["consecution"]
    assert obligation["statement"] == BY_ID["S7"].statement
    assert obligation["verdict"] == "proved"
    assert obligation["conditions"] == sum(obligation["parts"].values())
    assert report["assumptions"]
    assert report["contracts"]
    assert report["not_proved"]
    suite = ElementTree.parse(file).getroot()
    assert suite.get("failures") == suite.get("errors") == "0"
    names = [case.get("name", "") for case in suite]
    assert names[:2] == [f"{name}: {BY_ID[name].statement}" for name in ("S6", "S7")]
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
