"""Every condition can be handed to another solver, which answers for itself."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from kvproof.specs.check import Report
from kvproof.specs.check import second as module
from kvproof.specs.check.conditions import Verdict
from kvproof.specs.check.second import second, write
from kvproof.specs.cli import exits, main


def test_cvc5_agrees_on_the_conditions_of_an_obligation(proved: Report) -> None:
    decided = [each for each in proved.decided if each.condition.obligation in ("P1", "P3")]
    answer = second(decided)
    assert answer.agreed == len(decided) > 20
    assert answer.unknown == answer.disagreed == ()


def test_a_wrong_verdict_is_a_disagreement(proved: Report) -> None:
    right, wrong = [each for each in proved.decided if each.condition.obligation == "P1"][:2]
    answer = second([right, replace(wrong, verdict=Verdict.REFUTED)])
    assert answer.disagreed == (wrong.condition,)
    assert answer.agreed == 1


def test_what_cvc5_cannot_decide_within_its_budget_is_unknown(proved: Report) -> None:
    decided = [each for each in proved.decided if each.condition.obligation == "P5"][:3]
    answer = second(decided, budget=1)
    assert answer.disagreed == ()
    assert set(answer.unknown) <= {each.condition for each in decided}


def test_a_solver_that_is_silent_is_killed_and_what_it_did_not_answer_is_unknown(
    proved: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided = [each for each in proved.decided if each.condition.obligation == "P6"]
    monkeypatch.setattr(module, "_SOLVE", "import sys; sys.stdin.read()")
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    answer = second(decided)
    assert answer.unknown == tuple(each.condition for each in decided)
    assert (answer.agreed, answer.disagreed) == (0, ())


def test_every_condition_is_written_as_smt_lib(proved: Report, tmp_path: Path) -> None:
    asked = [each.condition for each in proved.decided if each.condition.obligation == "P6"]
    files = write(tmp_path, asked)
    text = "".join(file.read_text() for file in files)
    assert len(re.findall(r"^\(check-sat\)$", text, re.MULTILINE)) == len(asked)
    assert text.count("P6 ") == len(asked)
    assert all(file.read_text().startswith("(set-logic ALL)") for file in files)


def test_disagreement_has_its_own_exit_code(
    proved: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("KVPROOF_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_answers", lambda files, budget: [["sat"] * 50 for _ in files])
    few = tuple(each for each in proved.decided if each.condition.obligation == "P6")
    report = replace(proved, decided=few)
    monkeypatch.setattr("kvproof.specs.cli.check.check", lambda **asked: report)
    assert main(["check", "--solver", "both"]) == exits.DISAGREE
    assert "disagreed: P6" in capsys.readouterr().out


@pytest.mark.long
def test_cvc5_agrees_on_every_condition(proved: Report) -> None:
    answer = second(proved.decided)
    assert answer.disagreed == answer.unknown == ()
    assert answer.agreed == len(proved.decided)
