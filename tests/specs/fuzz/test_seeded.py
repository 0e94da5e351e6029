"""Each seeded fault of the reference engine is found, by a rule that should; without one, none is.

The budget is 200,000 operations, as a promise to users; most faults need a few hundred.
"""

import pytest
from kvproof.specs.fuzz.campaign import Budget, search
from kvproof.specs.fuzz.operations import Operation
from kvproof.specs.fuzz.rules import RULES
from kvproof.specs.fuzz.run import Session
from kvproof.specs.fuzz.target import NewRequest, Settings

from ...reference.target import ReferenceTarget
from .seeded import FAULTS
from .seeded_memory import LateSignalReleasesAgain, NoLease, UnknownSignalRaises
from .seeding import Seeded
from .test_documented_target import DOCUMENTED_FAULTS, LOSES_VICTIM

NEED_INJECTED_FAULTS = (UnknownSignalRaises, LateSignalReleasesAgain, NoLease)
AT_MOST = Budget(seconds=None, operations=200_000, findings=1, replays=0)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.engine.__name__)
def test_a_seeded_fault_is_found_by_the_rule_that_should(fault: Seeded) -> None:
    report = search(fault.target(), AT_MOST, seed=fault.seed, connector=fault.connector)
    assert report.findings, f"not found: {fault.name}"
    found = report.findings[0].failure
    assert found.violation.rule in fault.rules, found.violation.message
    if fault.engine in NEED_INJECTED_FAULTS:
        assert not report.findings[0].legal


def test_every_rule_that_is_listed_is_broken_by_some_engine_of_these_tests() -> None:
    found_by = set().union(*(fault.rules for fault in FAULTS))
    # Of the reference engine's requests the container is derived, so it cannot be a wrong one.
    assert set(RULES) - found_by == {"one-container"}
    assert ("victim", LOSES_VICTIM, {"one-container"}) in DOCUMENTED_FAULTS


def test_a_transfer_that_was_started_by_the_steps_before_a_reset_may_refuse_it() -> None:
    """It was taken for a reset that is refused with no transfer open."""
    operations = [
        Operation("add", (NewRequest("r1", (1, 2), max_tokens=1, send=True),)),
        Operation("step"),
        Operation("reset", (True, False)),
    ]
    settings = Settings(blocks=2, block_size=2, max_length=4, connector="tier")
    session = Session(ReferenceTarget, settings)
    assert [session.apply(operation) for operation in operations] == [None] * 3
    assert [transfer.id for transfer in session.now.transfers if transfer.open] == ["store/r1/1"]


def test_no_rule_is_broken_by_the_reference_engine() -> None:
    report = search(ReferenceTarget, Budget(seconds=None, operations=3_000), seed=1)
    assert [finding.failure.violation for finding in report.findings] == []
    assert report.operations >= 3_000
