"""Each seeded fault is refuted by the obligation that should, with a counterexample."""

from __future__ import annotations

import pytest
from kvproof.specs.check.conditions import Decided, Verdict
from kvproof.specs.check.counterexample import counterexample, with_script
from kvproof.specs.check.declaration import standard
from kvproof.specs.check.run import Report, check

from .faults import FAULTS, Fault


def _action(failure: Decided) -> str:
    transition = failure.condition.transition
    return transition.action if transition is not None else ""


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            fault,
            id=fault.name.replace(" ", "-"),
            marks=[pytest.mark.long] if fault.long else [],
        )
        for fault in FAULTS
    ],
)
def test_the_obligation_that_should_refutes_the_fault_and_shows_how(
    fault: Fault, proved: Report
) -> None:
    report = check(standard().changed(fault.change), ids=[fault.refuted_by])
    (finding,) = report.findings
    assert finding.verdict is Verdict.REFUTED
    shown = [
        failure
        for failure in finding.failures
        if failure.condition.words.startswith(fault.broken) and _action(failure) == fault.action
    ]
    assert shown, sorted({(each.condition.words, _action(each)) for each in finding.failures})
    assert report.proofs is not None
    example = counterexample(report.proofs, shown[0])
    assert example.obligation == fault.refuted_by
    assert example.broken in "\n".join(example.lines())
    if fault.action:
        assert example.action == fault.action
        assert example.events
        assert example.before
    if fault.script is not None:
        example = with_script(report.proofs, shown[0], example)
        assert example.script is not None
        assert len(example.script) == fault.script
        assert example.script[-1] in "\n".join(example.lines())


def test_there_are_at_least_twenty_faults_and_each_is_another() -> None:
    assert sum(not fault.long for fault in FAULTS) >= 20
    assert len({(fault.file, fault.old, fault.new) for fault in FAULTS}) == len(FAULTS)


def test_every_obligation_but_those_that_rest_on_others_refutes_a_fault() -> None:
    refuting = {fault.refuted_by for fault in FAULTS}
    safety = {f"S{number}" for number in range(1, 11)}
    assert refuting >= safety | {f"P{number}" for number in range(1, 7)}
