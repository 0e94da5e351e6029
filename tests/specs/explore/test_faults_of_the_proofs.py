"""Every fault that the proofs refute is found by exploration as well, with a shortest script."""

import pytest
from kvproof.specs.explore import Instance, explore, replay_on_declaration

from ..check.faults import FAULTS
from .systems import F, changed, core

PLAIN = [F.ABORTS, F.RESETS]
ONE = Instance(requests=1, transfers=0, features=core(F.WRONG_ASKS, F.EVICTION))
LOAD = Instance(requests=1)
TWO = Instance(features=core(F.EVICTION))
STORE = Instance(
    requests=1, features=core(F.STORES, F.LEASES, F.QUARANTINE, F.RECORDS, F.WRONG_ASKS)
)
SESSION = Instance(
    requests=1, transfers=0, block_size=2, prompt=1, model_length=4,
    features=core(F.SESSIONS, F.STOPS, F.WRONG_ASKS),
)  # fmt: skip
TURNS = Instance(
    requests=1, transfers=0, block_size=2, prompt=1, model_length=4, steps_ahead=2,
    features=core(F.SESSIONS, F.STOPS, without=[F.RESETS]),
)  # fmt: skip
AHEAD = Instance(
    requests=1, blocks=3, transfers=0, model_length=4, steps_ahead=2, features=core(F.WRONG_ASKS)
)
MODES = Instance(
    requests=1, transfers=0,
    features=core(F.SLEEP, F.PAUSE, F.WEIGHTS, F.SHUTDOWN, F.WRONG_ASKS),
)  # fmt: skip
RESET = Instance(requests=1, features=core(F.WAITING_RESETS, F.LOST, F.LEASES, F.STORES))
POLICY = Instance(transfers=0, features=core(F.POLICY, without=PLAIN))
PARKED = Instance(
    transfers=0, block_size=2, prompt=1, model_length=4,
    features=core(F.POLICY, F.SESSIONS, F.STOPS, without=PLAIN),
)  # fmt: skip
DEADLINE = Instance(requests=1, features=core(F.DEADLINES, F.PAUSE, without=[F.RESETS]))

#: Where a fault shows; in ONE if it is not named here.
WHERE = {
    "a store is never counted": STORE,
    "a landed load keeps its hold": LOAD,
    "a release does not look whether there is a hold": TWO,
    "a late fence ends a transfer that has landed once more": STORE,
    "a reset does not see a store in flight": STORE,
    "a prefix is dropped whoever holds its block": TWO,
    "a forced reset skips parked sessions": SESSION,
    "a forced reset skips what has landed and waits": LOAD,
    "a refused reset preempts": TWO,
    "a refused reset drops prefixes": TWO,
    "the connector's tier is cleared before the device": LOAD,
    "a failed pause is not rolled back": MODES,
    "a step runs while the cache is asleep": MODES,
    "sleep discards memory that is held": MODES,
    "a chunk for a closed session is taken": SESSION,
    "a load starts under a pending reset": RESET,
    "a block is published before it is written": AHEAD,
    "what is in flight at a turn's end still counts": TURNS,
    "a transfer that is given up ends its hold": STORE,
    "a block in quarantine can still be hit": STORE,
    "an abort leaves the transfer's list of waiters alone": LOAD,
    "two oldest requests are each other's victims": POLICY,
    "weights_changed leaves the epoch": MODES,
    "a parked session gives way to its betters only": PARKED,
    "a lease that is over changes nothing": RESET,
    "a load's waiter has no deadline while the engine is paused": DEADLINE,
    "a reclaimed session forgets its tokens": SESSION,
}


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_exploration_finds_what_the_proofs_refute(fault: object) -> None:
    instance = WHERE.get(fault.name, ONE)  # type: ignore[attr-defined]
    declaration = changed(fault.change)  # type: ignore[attr-defined]
    report = explore(instance, declaration)
    assert report.refuted
    script = report.scripts[0]
    if script.again is None:
        broken = replay_on_declaration(instance, script.labels, declaration).broken
        assert any(each.startswith(script.name) for each in broken)
        assert replay_on_declaration(instance, []).broken == ()


@pytest.mark.long
@pytest.mark.parametrize(
    "instance", [ONE, TWO, STORE, SESSION, TURNS, AHEAD, MODES, RESET, POLICY, PARKED, DEADLINE]
)
def test_without_a_fault_nothing_is_found_there(instance: Instance) -> None:
    report = explore(instance, without=())
    # A lost completion without anything else is the one thing that the environment may not do.
    assert report.found.complete
    assert [script.name for script in report.scripts] == []
