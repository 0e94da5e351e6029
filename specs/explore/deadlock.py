"""P5, that nothing is stuck: where work is left, somebody other than a client can act.

It is said of a state together with the actions that are enabled in it, so it is no `Invariant`.
"""

from __future__ import annotations

from ...statemachine.states import (
    ACTIVE,
    DRAINING,
    PREEMPTED,
    RUNNING,
    WAITING,
    WAITING_FOR_REMOTE_KVS,
)
from . import expressions as ex
from .expressions import Value
from .instance import Feature, Instance
from .invariants import among
from .world import World

NOT_STUCK = "P5 where work is left, somebody other than a client can act"


def never_stuck(instance: Instance) -> bool:
    """Whether an instance promises it: a lost completion without a lease keeps its waiters."""
    return instance.has(Feature.LEASES) or not instance.has(Feature.LOST)


def work_left(w: World) -> Value:
    """A request waits or runs, and the engine is in a mode in which it goes on."""
    s = w.state
    working = (WAITING, PREEMPTED, RUNNING, WAITING_FOR_REMOTE_KVS)
    admits = ex.either(s.e.mode == ACTIVE, s.e.mode == DRAINING)
    return ex.both(admits, ex.either(*(among(r.state, working) for r in s.requests)))
