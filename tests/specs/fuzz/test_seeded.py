"""Each seeded fault of the reference engine is found, by a rule that should; without one, none is.

The budget is 200,000 operations, as a promise to users; most faults need a few hundred.
"""

import pytest
from kvproof.specs.fuzz.campaign import Budget, search

from ...reference.target import ReferenceTarget
from .seeded import FAULTS, Seeded

AT_MOST = Budget(seconds=None, operations=200_000, findings=1, replays=0)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.engine.__name__)
def test_a_seeded_fault_is_found_by_the_rule_that_should(fault: Seeded) -> None:
    report = search(fault.target(), AT_MOST, seed=fault.seed, connector=fault.connector)
    assert report.findings, f"not found: {fault.name}"
    found = report.findings[0].failure
    assert found.violation.rule in fault.rules, found.violation.message


def test_no_rule_is_broken_by_the_reference_engine() -> None:
    report = search(ReferenceTarget, Budget(seconds=None, operations=6_000), seed=1)
    assert [finding.failure.violation for finding in report.findings] == []
    assert report.operations >= 6_000
