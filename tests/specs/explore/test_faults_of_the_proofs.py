"""Every fault that the proofs refute is found by exploration as well, with a shortest script.

The script fails on the engine as well: on its own core, imported over the changed declaration.
"""

from functools import cache

import pytest
from kvproof.specs.check.declaration import standard
from kvproof.specs.explore import Instance, Script, explore, replay_on_declaration
from kvproof.specs.explore.battery import BATTERY, first_counterexample

from ..check.faults import FAULTS, Fault
from .on_engine import replay_on_engine
from .systems import changed

#: Where a fault shows; with one request alone if it is not named here.
WHERE = {
    "a store is never counted": "stores and quarantine",
    "a landed load keeps its hold": "one load",
    "a release does not look whether there is a hold": "two requests",
    "a late fence ends a transfer that has landed once more": "stores and quarantine",
    "a reset does not see a store in flight": "stores and quarantine",
    "a prefix is dropped whoever holds its block": "two requests",
    "a forced reset skips parked sessions": "a session",
    "a forced reset skips what has landed and waits": "one load",
    "a refused reset preempts": "two requests",
    "a refused reset drops prefixes": "two requests",
    "the connector's tier is cleared before the device": "one load",
    "a failed pause is not rolled back": "modes",
    "a step runs while the cache is asleep": "modes",
    "sleep discards memory that is held": "modes",
    "a chunk for a closed session is taken": "a session",
    "a store starts under a pending reset": "a waiting reset",
    "a block is published before it is written": "steps ahead",
    "what is in flight at a turn's end still counts": "turns",
    "a transfer that is given up ends its hold": "stores and quarantine",
    "a block in quarantine can still be hit": "stores and quarantine",
    "an abort leaves the transfer's list of waiters alone": "one load",
    "two oldest requests are each other's victims": "the policy",
    "weights_changed leaves the epoch": "modes",
    "a parked session gives way to its betters only": "a parked session gives way",
    "a lease that is over changes nothing": "a waiting reset",
    "a load's waiter has no deadline while the engine is paused": "deadlines",
    "a reclaimed session forgets its tokens": "a session",
}

EVERYDAY = (
    "letting go frees blocks under a launched step",
    "a transfer that is given up ends its hold",
    "a lease that is over changes nothing",
    "two oldest requests are each other's victims",
)


PARAMETERS = [
    pytest.param(
        fault,
        id=fault.name.replace(" ", "-"),
        marks=[] if fault.name in EVERYDAY else [pytest.mark.long],
    )
    for fault in FAULTS
]


@cache
def found(name: str) -> tuple[Instance, Script]:
    """Where exploration finds a fault, and its shortest script."""
    fault = next(each for each in FAULTS if each.name == name)
    instance = BATTERY[WHERE.get(name, "one request")]
    report = explore(instance, changed(fault.change))
    assert report.refuted
    return instance, report.scripts[0]


@pytest.mark.parametrize("fault", PARAMETERS)
def test_exploration_finds_what_the_proofs_refute(fault: Fault) -> None:
    instance, script = found(fault.name)
    if script.again is None:
        broken = replay_on_declaration(instance, script.labels, changed(fault.change)).broken
        assert any(each.startswith(script.name) for each in broken)


@pytest.mark.parametrize("fault", PARAMETERS)
def test_its_shortest_script_fails_on_the_engine_with_the_fault_and_not_without(
    fault: Fault,
) -> None:
    instance, script = found(fault.name)
    faulty = replay_on_engine(instance, script.labels, changed(fault.change), again=script.again)
    assert faulty.complaints
    sound = replay_on_engine(instance, script.labels, standard(), again=script.again)
    assert sound.complaints == ()
    assert sound.done > 0


@pytest.mark.long
@pytest.mark.parametrize("name", BATTERY)
def test_without_a_fault_nothing_is_found(name: str) -> None:
    report = explore(BATTERY[name])
    assert report.found.complete
    assert [script.name for script in report.scripts] == []
    assert all(verdict.states > 0 for verdict in report.verdicts)


@pytest.mark.long
def test_the_battery_finds_a_fault_without_being_told_where() -> None:
    fault = next(each for each in FAULTS if each.name == "a landed load keeps its hold")
    found = first_counterexample(changed(fault.change))
    assert found is not None
    assert found[0] == "one load"
