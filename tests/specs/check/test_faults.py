"""Each seeded fault is refuted by the obligation that should, with a counterexample."""

from __future__ import annotations

from dataclasses import replace

import pytest
import z3
from kvproof.specs.check.conditions import Condition, Verdict
from kvproof.specs.check.counterexample import (
    OF_THE_CODE,
    Counterexample,
    counterexample,
    with_script,
)
from kvproof.specs.check.declaration import Declaration, standard
from kvproof.specs.check.proofs import Proofs
from kvproof.specs.check.run import Report, check

from .faults import FAULTS, FURTHER, Fault

EVERY = (*FAULTS, *FURTHER)

#: What an action is called in a script, where it is called otherwise.
IN_WORDS = {"launch": "a step with", "start": "store", "evict": "block 0 is evicted"}


def seeded(fault: Fault) -> Declaration:
    """The declaration with the fault."""
    changed = standard().changed(fault.change)
    return changed if fault.also is None else changed.changed(fault.also)


def shown(fault: Fault) -> tuple[Counterexample, Report]:
    """The counterexample of the statement, the action and the state that the fault names."""
    report = check(seeded(fault), ids=[fault.refuted_by])
    (finding,) = report.findings
    assert finding.verdict is Verdict.REFUTED
    assert report.proofs is not None
    for failure in finding.failures:
        condition = failure.condition
        if not condition.words.startswith(fault.broken):
            continue
        example = counterexample(report.proofs, failure)
        events = {event.event for event in example.events}
        if fault.action not in ({example.action, *events} if events else {example.action}):
            continue
        if fault.source and fault.source not in {event.source for event in example.events}:
            continue
        if fault.script is not None:
            example = with_script(report.proofs, failure, example)
        return example, report
    raise AssertionError(sorted({each.condition.words for each in finding.failures}))


def _is_shown(wanted: str, lines: list[str]) -> bool:
    fact, _, how = wanted.rpartition(" ")
    if how in ("changes", "stays"):
        return any(
            line.startswith(f"    {fact}: ") and (" → " in line) == (how == "changes")
            for line in lines
        )
    return any(line.startswith((f"  {wanted}", f"    {wanted}")) for line in lines)


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, id=fault.name.replace(" ", "-")) for fault in EVERY]
)
def test_the_obligation_that_should_refutes_the_fault_and_shows_how(
    fault: Fault, proved: Report
) -> None:
    example, _ = shown(fault)
    lines = example.lines()
    assert lines[0].startswith(f"{fault.refuted_by} ")
    assert fault.broken in lines[0]
    assert fault.shows
    missing = [each for each in fault.shows if not _is_shown(each, lines)]
    assert not missing, "\n".join(lines)
    if fault.action:
        assert any(each.startswith("event: ") for each in fault.shows)
    if fault.script:
        assert example.script is not None
        assert len(example.script) == fault.script
        last = IN_WORDS.get(fault.action, fault.action)
        assert example.script[-1].startswith(last)
        at = lines.index("  shortest script from the start:")
        steps = [f"    {number}. {step}" for number, step in enumerate(example.script, 1)]
        assert lines[at + 1 :] == steps


def test_a_counterexample_says_what_is_broken_by_what_and_how_to_get_there(proved: Report) -> None:
    (fault,) = [each for each in EVERY if each.name == "preempt forgets to let go"]
    report = check(seeded(fault), ids=["S4"])
    assert report.proofs is not None
    failure = report.findings[0].failures[0]
    plain = replace(failure, model=_plainest(report.proofs, failure.condition))
    example = with_script(report.proofs, plain, counterexample(report.proofs, plain))
    assert example.lines() == [
        "S4 consecution: PREEMPTED, FINISHED_*, UNKNOWN and grammar ⇒ not resident",
        "  of r",
        "  broken: r.state ∈ {PREEMPTED, UNKNOWN, WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR, "
        "FINISHED_STOPPED, FINISHED_LENGTH_CAPPED, FINISHED_REPETITION, FINISHED_ABORTED, "
        "FINISHED_IGNORED, FINISHED_ERROR} → (r.covered = 0)",
        "  event: preempt of the request in RUNNING: go, “it makes room and recomputes”",
        "    r.state: RUNNING → PREEMPTED",
        "    r.covered: 1",
        "    place.position: -1",
        "  told: ask.forced=yes",
        "  shortest script from the start:",
        "    1. add r0 one token",
        "    2. admit r0: 0 hits, 1 fresh",
        "    3. preempt r0",
    ]


def _plainest(proofs: Proofs, condition: Condition) -> z3.ModelRef:
    """Of all states that refute a condition the one with as many zeros, then ones, as can be."""
    solver = z3.SimpleSolver()
    solver.add(*condition.hypotheses.formulas, condition.formula)
    for term in proofs.variables.terms.values():
        for value in (False, True) if z3.is_bool(term) else (0, 1, -1, 2):
            if solver.check(term == value) == z3.sat:
                solver.add(term == value)
                break
    assert solver.check() == z3.sat
    return solver.model()


def test_of_a_statement_about_the_code_alone_no_script_is_looked_for(proved: Report) -> None:
    for name in ("a chunk for a closed session is taken", "a preempted request is in no container"):
        (fault,) = [each for each in EVERY if each.name == name]
        report = check(seeded(fault), ids=[fault.refuted_by])
        assert report.proofs is not None
        failure = next(
            each
            for each in report.findings[0].failures
            if each.condition.words.startswith(fault.broken)
        )
        example = with_script(report.proofs, failure, counterexample(report.proofs, failure))
        assert example.script is None
        assert example.lines()[-1] == f"  {OF_THE_CODE}"


def test_a_script_to_a_step_without_memory_ends_with_the_step(proved: Report) -> None:
    (fault,) = [each for each in EVERY if each.name == "a step runs while the cache is asleep"]
    example, _ = shown(fault)
    assert example.script is not None
    assert example.script[2:] == (
        "sleep",
        "wake weights",
        "woke weights",
        "shutdown",
        "launch_step",
    )


def test_there_are_at_least_twenty_faults_and_each_is_another() -> None:
    assert len(EVERY) >= 20
    seeds = {(fault.file, fault.old, fault.new, fault.also, fault.refuted_by) for fault in EVERY}
    assert len(seeds) == len({fault.name for fault in EVERY}) == len(EVERY)


def test_every_obligation_refutes_a_fault() -> None:
    refuting = {fault.refuted_by for fault in EVERY}
    safety = {f"S{number}" for number in range(1, 11)}
    assert refuting >= safety | {f"P{number}" for number in range(1, 7)}
