"""A line that the specification needs is dropped: it, or one that does the same, is found again."""

from __future__ import annotations

import numpy as np
import pytest
from kvproof.specs.check import logic, proofs
from kvproof.specs.check.conditions import Verdict
from kvproof.specs.check.declaration import standard
from kvproof.specs.check.invariants import Invariant
from kvproof.specs.check.run import check
from kvproof.specs.cli import exits, main
from kvproof.specs.suggest import choose, suggest
from kvproof.specs.suggest.templates import Candidate, candidates, holds
from kvproof.statemachine import states
from kvproof.statemachine.states import LIVE, RUNNING, WAITING

from ..check.faults import FAULTS

FINISHED_QUEUE = "what is finished has nothing queued"
LOADING_STEP = "what loads has no step in flight"


def without(monkeypatch: pytest.MonkeyPatch, *dropped: str) -> tuple[Invariant, ...]:
    left = tuple(each for each in proofs.SPECIFICATION if each.words not in dropped)
    assert len(left) == len(proofs.SPECIFICATION) - len(dropped)
    monkeypatch.setattr(proofs, "SPECIFICATION", left)
    return left


# --- templates ----------------------------------------------------------------------------------

COLUMNS = {
    "r.state": np.array([WAITING, RUNNING, RUNNING]),
    "r.covered": np.array([0, 1, 2]),
    "r.input_open": np.array([False, False, True]),
}


def texts() -> list[str]:
    kinds = {"r.state": "int", "r.covered": "int", "r.input_open": "bool"}
    return [each.text for each in candidates(kinds, {**COLUMNS, **elsewhere()})]


def elsewhere() -> dict[str, np.ndarray]:
    names = ("r.newest_step r.stale_step place.touching held.step e.launched e.processed "
             "r.computed r.written place.written r.hashed r.turn_start r.delivered "
             "place.position place.epoch e.epoch e.block_size t.waiters copy.others_waiting "
             "b.quarantined b.count others.quarantined others.load others.store more.epoch "
             "more.tier_epoch e.mode t.state")  # fmt: skip
    return {name: np.zeros(3, dtype=np.int64) for name in names.split()}


def test_candidates_are_implications_orders_and_facts_that_some_states_break() -> None:
    found = texts()
    assert "implies(s.r.input_open, s.r.covered > 0)" in found
    assert "s.r.stale_step <= s.r.newest_step" in found
    assert "s.r.hashed * s.e.block_size <= s.r.written" in found
    assert "implies(no(s.r.state == RUNNING), s.r.covered == 0)" in found


def test_a_candidate_is_true_or_false_of_columns_of_states() -> None:
    assert holds("implies(s.r.input_open, s.r.covered > 1)", COLUMNS).tolist() == [True] * 3
    assert holds("no(s.r.input_open)", COLUMNS).tolist() == [True, True, False]
    assert holds("among(s.r.state, LIVE)", COLUMNS).all()
    assert holds("s.r.state == RUNNING", COLUMNS).tolist() == [False, True, True]
    assert RUNNING in LIVE


def test_a_candidate_is_printed_as_a_line_of_the_specification() -> None:
    line = Candidate("r", "covered > 0", "s.r.covered > 0", 1).as_python()
    ((about, words, formula),) = eval(f"[{line}]")
    assert (about, words) == ("r", "covered > 0")
    assert callable(formula)


# --- a line that is missing -----------------------------------------------------------------------


@pytest.mark.long
def test_a_line_that_is_dropped_is_found_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = without(monkeypatch, FINISHED_QUEUE)
    assert main(["check", "--id", "S5", "--suggest", "--no-cache"]) == exits.REFUTED
    printed = capsys.readouterr().out
    assert "the invariant is too weak" in printed
    text = printed[printed.index("(specs/check/invariants.py):") :].partition("\n")[2]
    names = {**vars(logic), **vars(states)}
    ((about, words, formula),) = eval(f"[{text}]", names)
    # With that line in its place everything is proved again.
    monkeypatch.setattr(proofs, "SPECIFICATION", (*left, Invariant("S5", words, about, formula)))
    report = check(ids=["S5", "S4"])
    assert [finding.verdict for finding in report.findings] == [Verdict.PROVED] * 2


@pytest.mark.long
def test_where_one_line_does_not_do_the_smallest_set_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = without(monkeypatch, FINISHED_QUEUE, LOADING_STEP)
    report = check(ids=["S5", "S2"])
    assert report.verdict is Verdict.REFUTED
    found = suggest(report)
    assert found is not None
    assert len(found.lines) == 2
    added = tuple(
        Invariant("S5", each.words, each.about, each.invariant.formula) for each in found.lines
    )
    monkeypatch.setattr(proofs, "SPECIFICATION", (*left, *added))
    report = check(ids=["S5", "S2"])
    assert [finding.verdict for finding in report.findings] == [Verdict.PROVED] * 2


@pytest.mark.long
def test_the_largest_set_that_keeps_itself_is_thinned_out_to_what_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without(monkeypatch, FINISHED_QUEUE)
    monkeypatch.setattr(choose, "_one", lambda proofs, lines, refuted: None)
    found = suggest(check(ids=["S5"]))
    assert found is not None
    assert len(found.lines) == 1


@pytest.mark.long
def test_nothing_is_suggested_for_a_fault_of_the_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = next(each for each in FAULTS if each.name == "preempt forgets to let go")
    faulty = standard().changed(fault.change)
    monkeypatch.setattr("kvproof.specs.check.run.standard", lambda: faulty)
    monkeypatch.setattr("kvproof.specs.cli.check.standard", lambda: faulty)
    assert main(["check", "--id", "S4", "--suggest", "--no-cache"]) == exits.REFUTED
    assert "a script reaches what is refuted" in capsys.readouterr().out
