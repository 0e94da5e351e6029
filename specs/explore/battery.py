"""A few small instances that together take every row of the tables: for faults and mutants.

One request or two, each instance with the features that some faults need to show. Ordered by how
long they take.
"""

from __future__ import annotations

from ..check.declaration import Declaration
from .explore import explore
from .instance import DEFAULT_FEATURES, Feature, Instance
from .script import Script

_F = Feature


def _core(*more: Feature, without: tuple[Feature, ...] = ()) -> frozenset[Feature]:
    return (DEFAULT_FEATURES | set(more)) - set(without)


_PLAIN = (_F.ABORTS, _F.RESETS)

#: By what they are about.
BATTERY: dict[str, Instance] = {
    "one request": Instance(
        requests=1, transfers=0, features=_core(_F.WRONG_ASKS, _F.EVICTION, _F.TRIM, _F.CHUNKED)
    ),
    "one load": Instance(requests=1, features=_core(_F.WRONG_ASKS)),
    "steps ahead": Instance(
        requests=1,
        blocks=3,
        transfers=0,
        model_length=4,
        steps_ahead=2,
        features=_core(_F.WRONG_ASKS, _F.TRIM),
    ),
    "a session": Instance(
        requests=1,
        transfers=0,
        block_size=2,
        prompt=1,
        model_length=4,
        features=_core(_F.SESSIONS, _F.STOPS, _F.WRONG_ASKS),
    ),
    "turns": Instance(
        requests=1,
        transfers=0,
        block_size=2,
        prompt=1,
        model_length=4,
        steps_ahead=2,
        features=_core(_F.SESSIONS, _F.STOPS, without=(_F.RESETS,)),
    ),
    "deadlines": Instance(
        requests=1, features=_core(_F.DEADLINES, _F.PAUSE, _F.GRAMMAR, without=(_F.RESETS,))
    ),
    "a session's deadline": Instance(
        requests=1,
        transfers=0,
        block_size=2,
        prompt=1,
        model_length=4,
        features=_core(_F.SESSIONS, _F.STOPS, _F.DEADLINES, without=_PLAIN),
    ),
    "modes": Instance(
        requests=1,
        transfers=0,
        features=_core(_F.SLEEP, _F.PAUSE, _F.WEIGHTS, _F.SHUTDOWN, _F.WRONG_ASKS),
    ),
    "a waiting reset": Instance(
        requests=1, features=_core(_F.WAITING_RESETS, _F.LOST, _F.LEASES, _F.STORES)
    ),
    "stores and quarantine": Instance(
        requests=1,
        features=_core(_F.STORES, _F.LEASES, _F.QUARANTINE, _F.RECORDS, _F.WRONG_ASKS),
    ),
    "fatal loads": Instance(requests=1, features=_core(_F.FATAL)),
    "two requests": Instance(features=_core(_F.EVICTION)),
    "the policy": Instance(transfers=0, features=_core(_F.POLICY, without=_PLAIN)),
    "a parked session gives way": Instance(
        transfers=0,
        block_size=2,
        prompt=1,
        model_length=4,
        features=_core(_F.POLICY, _F.SESSIONS, _F.STOPS, without=_PLAIN),
    ),
    "a pause by the policy": Instance(features=_core(_F.POLICY, _F.PAUSE, without=_PLAIN)),
}


def first_counterexample(declaration: Declaration) -> tuple[str, Script] | None:
    """The first instance of the battery that shows a fault, and its shortest script."""
    for name, instance in BATTERY.items():
        report = explore(instance, declaration)
        if report.refuted:
            return name, report.scripts[0]
    return None
