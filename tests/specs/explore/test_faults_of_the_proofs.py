"""Every fault that the proofs refute is found by exploration as well, with a shortest script.

The script fails on the engine: on its own lifecycle, ledger and index, imported over the changed
declaration. Where the engine cannot show a fault, the script fails on the declaration's functions
alone, on real records; `NOT_ON_THE_ENGINE` says of each why.
"""

from functools import cache

import pytest
from kvproof.specs.check.declaration import standard
from kvproof.specs.explore import Instance, Script, explore, replay_on_declaration
from kvproof.specs.explore.battery import BATTERY, first_counterexample

from ..check.faults import FAULTS, Fault
from .on_engine import NotOnTheEngineError, replay_on_engine
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
    "a load starts under a pending reset": "a waiting reset",
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


_BULK = "the engine counts holds by array code of its own, which is tested against this function"
NOT_ON_THE_ENGINE = {
    "a release does not look whether there is a hold": _BULK,
    "a growing table takes a block twice": _BULK,
    "a prefix is dropped whoever holds its block": _BULK,
    "a processed step keeps its holds": _BULK,
    "a block in quarantine can still be hit": _BULK,
    "a store is never counted": "a transfer that has started has its hold, whatever start commands",
    "a late fence ends a transfer that has landed once more": "it keeps no record of what landed",
    "a refused reset preempts": "it asks for no event once somebody refuses",
    "the connector's tier is cleared before the device": "the lifecycle has no tier",
    "a block is published before it is written": "its lanes work out what is full by themselves",
    "two oldest requests are each other's victims": "its scheduler asks, which no script drives",
    "a parked session gives way to its betters only": "its scheduler asks, which no script drives",
}
#: Its script is a lasso, in which nothing is wrong but what can never happen: a test of its own.
LATE = "a load's waiter has no deadline while the engine is paused"

EVERYDAY = (
    "letting go frees blocks under a launched step",
    "a transfer that is given up ends its hold",
    "a refused reset drops prefixes",
    "a lease that is over changes nothing",
)


def parameters(*left_out: str) -> list[object]:
    return [
        pytest.param(
            fault,
            id=fault.name.replace(" ", "-"),
            marks=[] if fault.name in EVERYDAY else [pytest.mark.long],
        )
        for fault in FAULTS
        if fault.name not in left_out
    ]


@cache
def found(name: str) -> tuple[Instance, Script]:
    """Where exploration finds a fault, and its shortest script."""
    fault = next(each for each in FAULTS if each.name == name)
    instance = BATTERY[WHERE.get(name, "one request")]
    report = explore(instance, changed(fault.change))
    assert report.refuted
    return instance, report.scripts[0]


@pytest.mark.parametrize("fault", parameters())
def test_exploration_finds_what_the_proofs_refute(fault: Fault) -> None:
    instance, script = found(fault.name)
    if script.again is None:
        broken = replay_on_declaration(instance, script.labels, changed(fault.change)).broken
        assert any(each.startswith(script.name) for each in broken)


@pytest.mark.parametrize("fault", parameters(*NOT_ON_THE_ENGINE, LATE))
def test_its_shortest_script_fails_on_the_engine_with_the_fault_and_not_without(
    fault: Fault,
) -> None:
    instance, script = found(fault.name)
    faulty = replay_on_engine(instance, script.labels, changed(fault.change))
    assert faulty.complaints
    sound = replay_on_engine(instance, script.labels, standard())
    assert sound.complaints == ()
    assert sound.done > 0


@pytest.mark.long
def test_on_the_engine_a_late_load_is_left_only_where_the_deadline_goes() -> None:
    fault = next(each for each in FAULTS if each.name == LATE)
    instance, script = found(LATE)
    assert script.again is not None
    loop = script.labels[: script.again + 1]  # paused, and the clock goes on
    run = [*loop, "deadline(r0)"]
    assert replay_on_engine(instance, run, changed(fault.change)).done == len(loop)
    assert replay_on_engine(instance, run, standard()).done == len(run)


@pytest.mark.long
@pytest.mark.parametrize("name", NOT_ON_THE_ENGINE)
def test_what_is_said_not_to_show_on_the_engine_does_not(name: str) -> None:
    """Should one of them show, its line is to go."""
    fault = next(each for each in FAULTS if each.name == name)
    instance, script = found(name)
    if any(label.startswith("wrong_") for label in script.labels):
        with pytest.raises(NotOnTheEngineError):
            replay_on_engine(instance, script.labels, changed(fault.change))
        return
    assert replay_on_engine(instance, script.labels, changed(fault.change)).complaints == ()


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
