"""The declaration is proved, and a verdict is what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvproof.specs.check.cache import Cache
from kvproof.specs.check.conditions import DEFAULT_BUDGET, Verdict
from kvproof.specs.check.counterexample import counterexample, with_script
from kvproof.specs.check.declaration import Change, standard
from kvproof.specs.check.obligations import OBLIGATIONS
from kvproof.specs.check.run import (
    INDUCTIVE,
    Report,
    UnknownObligationError,
    check,
    run_key,
)

#: Who is preempted keeps its blocks: a line of S4 does not hold.
FORGETS = Change(
    "request.py",
    "Row(E.PREEMPT, (RUNNING,), PREEMPTED, before=(let_go,)",
    "Row(E.PREEMPT, (RUNNING,), PREEMPTED, before=()",
)


def test_every_obligation_of_the_declaration_is_proved(proved: Report) -> None:
    assert {finding.obligation.id: finding.verdict for finding in proved.findings} == {
        obligation.id: Verdict.PROVED for obligation in OBLIGATIONS
    }


def test_nothing_that_is_proved_is_vacuous(proved: Report) -> None:
    assert proved.vacuous == ()


def test_a_report_is_shown_without_its_formulas(proved: Report) -> None:
    """With them, pytest took minutes to print the failure of a test that was given the report."""
    assert len(repr(proved)) < 100_000


def test_initiation_consecution_and_the_statement_are_shown_separately(proved: Report) -> None:
    for finding in proved.findings:
        parts = finding.parts
        if finding.obligation.method in ("induction", "differences"):
            assert parts["initiation"] > 0, finding.obligation.id
            assert parts["consecution"] > 0, finding.obligation.id
        assert sum(parts.values()) > parts.get("initiation", 0) + parts.get("consecution", 0)


@pytest.mark.long
def test_no_condition_needs_more_than_a_small_part_of_its_budget(proved: Report) -> None:
    report = check(budget=DEFAULT_BUDGET // 10)
    assert all(finding.verdict is Verdict.PROVED for finding in report.findings)


def test_what_the_solver_cannot_decide_within_its_budget_is_unknown_and_no_pass(
    proved: Report,
) -> None:
    report = check(ids=["P1"], budget=60)
    (finding,) = report.findings
    assert finding.verdict is Verdict.UNKNOWN
    assert finding.failures[0].reason


def test_an_obligation_that_rests_on_a_refuted_invariant_is_not_proved(proved: Report) -> None:
    report = check(standard().changed(FORGETS), ids=["S4", "P1", "S9"])
    verdicts = {finding.obligation.id: finding for finding in report.findings}
    assert verdicts["S4"].verdict is Verdict.REFUTED
    assert verdicts["P1"].verdict is Verdict.RESTS
    assert verdicts["P1"].rests_on == ("S4",)
    assert report.verdict is Verdict.REFUTED


@pytest.mark.parametrize("asked", ["P1", "S3"])
def test_an_obligation_asked_for_alone_is_not_proved_by_lines_of_others_that_do_not_hold(
    asked: str, proved: Report
) -> None:
    report = check(standard().changed(FORGETS), ids=[asked])
    (finding,) = report.findings
    assert finding.verdict is report.verdict is Verdict.RESTS
    assert finding.rests_on == ("S4",)


def test_an_obligation_asked_for_alone_is_proved_with_the_lines_of_all_others(
    proved: Report,
) -> None:
    report = check(ids=["P1"])
    assert report.verdict is Verdict.PROVED
    inductive = [each for each in report.decided if each.condition.part in INDUCTIVE]
    everywhere = [each for each in proved.decided if each.condition.part in INDUCTIVE]
    assert len(inductive) == len(everywhere) > 0


def test_an_obligation_about_the_tables_alone_leans_on_no_line(proved: Report) -> None:
    report = check(ids=["S9"])
    assert report.verdict is Verdict.PROVED
    assert all(each.condition.part not in INDUCTIVE for each in report.decided)


def test_a_function_that_promises_nothing_is_not_proved(proved: Report) -> None:
    more = "def spare(free: Number) -> Number:\n    return free\n\n\ndef enough("
    report = check(standard().changed(Change("policy.py", "def enough(", more)), ids=["S9"])
    (failure,) = report.findings[0].failures
    assert failure.verdict is Verdict.REFUTED
    assert (failure.condition.words, failure.condition.about) == (
        "it promises something",
        "policy.spare",
    )


def test_a_row_that_can_never_go_is_vacuous(proved: Report) -> None:
    change = Change("request_guards.py", "    return x.fresh <= x.free\n", "    return False\n")
    report = check(standard().changed(change), ids=["S1"])
    assert any("admit: it runs" in each.what for each in report.vacuous)


def test_an_action_that_nothing_satisfies_is_found_although_every_statement_of_it_holds(
    proved: Report,
) -> None:
    change = Change(
        "transfer.py", "    return starts_work(e)\n", "    return starts_work(e) and e.mode == 0\n"
    )
    report = check(standard().changed(change), ids=["S1"])
    assert any("start: its blocks are held" in each.what for each in report.vacuous)


def test_a_counterexample_without_a_short_script_says_so(proved: Report) -> None:
    change = Change(
        "blocks.py",
        "    if commands & RELEASE and h.by_request:",
        "    if commands & RELEASE and h.by_request and b.count != 77:",
    )
    report = check(standard().changed(change), ids=["S1"])
    (finding,) = report.findings
    assert report.proofs is not None
    failure = finding.failures[0]
    example = with_script(
        report.proofs, failure, counterexample(report.proofs, failure), states=200
    )
    assert example.script is None
    assert "the invariant may be too weak" in "\n".join(example.lines())


def test_what_was_proved_is_remembered_by_digest(proved: Report, tmp_path: Path) -> None:
    cache = Cache(tmp_path, DEFAULT_BUDGET)
    first = check(ids=["P1"], cache=cache)
    again = Cache(tmp_path, DEFAULT_BUDGET)
    proofs = first.proofs
    assert proofs is not None
    asked = list(first.findings[0].obligation.conditions(proofs))
    assert asked
    assert all(condition.digest() in again for condition in asked)


def test_a_changed_declaration_is_another_run(tmp_path: Path) -> None:
    change = Change(
        "policy.py",
        "    return free < needed\n\n\ndef enough",
        "    return free < 0\n\n\ndef enough",
    )
    same = run_key(standard(), ["S1"], DEFAULT_BUDGET)
    assert same == run_key(standard(), ["S1"], DEFAULT_BUDGET)
    assert same != run_key(standard(), ["S2"], DEFAULT_BUDGET)
    assert same != run_key(standard(), ["S1"], DEFAULT_BUDGET + 1)
    assert same != run_key(standard().changed(change), ["S1"], DEFAULT_BUDGET)


def test_an_unknown_obligation_is_named_with_those_that_there_are() -> None:
    with pytest.raises(UnknownObligationError, match=r"S99.*S1.*P6"):
        check(ids=["S99"])
