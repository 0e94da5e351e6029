"""What a violation says must hold, as an expression, does not hold where the rule broke."""

import contextlib

import pytest
from kvproof.specs.fuzz.campaign import Budget, search
from kvproof.specs.fuzz.operations import drain, perform
from kvproof.specs.fuzz.run import Session

from .seeded import FAULTS
from .seeding import Seeded

ASSERTED = [fault for fault in FAULTS if fault.rules != {"no-exception"}]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.engine.__name__, marks=[pytest.mark.long] if n % 6 else [])
        for n, fault in enumerate(ASSERTED)
    ],
)
def test_the_assertion_of_a_violation_is_false_in_the_state_that_it_was_found_in(
    fault: Seeded,
) -> None:
    budget = Budget(seconds=None, operations=200_000, findings=1, replays=60)
    report = search(fault.target(), budget, seed=fault.seed, connector=fault.connector)
    failure = report.findings[0].failure
    assertion = failure.violation.assertion
    assert assertion
    session = Session(failure.target, failure.settings)
    *first, last = failure.operations
    for operation in first:
        assert session.apply(operation) is None
    before = session.target.snapshot()
    drained = drain(session.target) if last.name == "drain" else None
    answer = None
    # That this call fails may be right; what it leaves is not.
    half_done = failure.violation.rule == "failed-call-changes-nothing"
    with contextlib.suppress(*[RuntimeError] if half_done else []):
        answer = None if drained else perform(session.target, last).answer
    now = session.target.snapshot()
    names = {"now": now, "before": before, "answer": answer, "drained": drained}
    assert eval(assertion, names) is False, assertion
