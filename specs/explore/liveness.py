"""What must happen sooner or later, and on which assumptions: P2, P4, P5, P6 as fair cycles.

Each assumption is named, so that it can be dropped: what then never happens is shown as a lasso.
(P1 and P3 speak of single steps and are checks of `reset_actions` and `request_actions`.)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

import numpy as np

from ...statemachine.states import (
    ABORT_ALL,
    FINISHED,
    PAUSING,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
    RequestState,
)
from . import expressions as ex
from .action import Action, Party
from .deadlock import work_left
from .expressions import Value
from .fairness import FairCycles, Lasso
from .graph import Graph
from .instance import Feature, Instance
from .world import World


@dataclass(frozen=True)
class Assumption:
    """A named assumption of weak fairness: actions with the same key are one group."""

    name: str
    words: str
    owner: str
    group: Callable[[Action], Hashable | None]


def _named(*names: str) -> Callable[[Action], Hashable | None]:
    return lambda action: (action.name, action.subject) if action.name in names else None


def _transfer_ends(action: Action) -> Hashable | None:
    if action.name == "begin":
        return "begin", action.subject
    return ("end", action.subject) if action.name in ("land", "fail", "fence", "give_up") else None


def _scheduler(action: Action) -> Hashable | None:
    # Loads are tried or not; everything else is done sooner or later when it can be done.
    if action.party is not Party.ENGINE or action.name in ("load", "join", "store", "settle"):
        return None
    return "launch" if action.name == "launch_with" else action.name, action.subject


STEPS = Assumption(
    "steps are processed",
    "a launched step is processed, and its rows are settled",
    "the device; the engine's loop",
    _named("process", "settle"),
)
TRANSFERS = Assumption(
    "transfers end",
    "a queued transfer begins; one that a worker has lands, fails, is fenced or given up",
    "the connector",
    _transfer_ends,
)
LEASES = Assumption(
    "leases run out", "a lease that was not ended runs out", "the clock", _named("lease_over")
)
DEADLINES = Assumption(
    "deadlines run out",
    "the time for a wait is over some day",
    "the clock",
    _named("deadline"),
)
LOOP = Assumption(
    "the loop runs",
    "the engine's loop does what it can do: it admits, grows, launches, makes room, tries resets",
    "the engine",
    _scheduler,
)
ASSUMPTIONS = (STEPS, TRANSFERS, LEASES, DEADLINES, LOOP)


@dataclass(frozen=True)
class Promise:
    """What must not be owed for ever.

    While `owed` holds, runs of the actions that `may` says must end; steps by which `measure`
    grows end the wait as well.
    """

    name: str
    owed: Callable[[World], Value]
    assumptions: tuple[Assumption, ...]
    may: Callable[[Action], bool] = lambda action: True
    measure: Callable[[World], Value] | None = None


@dataclass(frozen=True)
class Verdict:
    """Whether a promise is kept, on which assumptions; the lasso if it is not."""

    promise: Promise
    assumptions: tuple[Assumption, ...]
    states: int  # in which it is owed
    lasso: Lasso | None

    @property
    def kept(self) -> bool:
        return self.lasso is None


def promises_of(instance: Instance) -> Iterator[Promise]:
    """The promises that an instance can be asked for."""
    if instance.has(Feature.WAITING_RESETS):
        yield Promise(
            "P2 a waiting forced reset is done",
            lambda w: ex.truth(w.state.e.pending_reset),
            (STEPS, TRANSFERS, LEASES, LOOP),
        )
    if instance.has(Feature.DEADLINES):
        loads = instance.transfers > 0 and instance.has(Feature.LOADS)
        states = [WAITING_FOR_REMOTE_KVS] if loads else []
        if not instance.has(Feature.PAUSE):  # these clocks stand still while paused
            kinds = {
                Feature.SESSIONS: WAITING_FOR_STREAMING_REQ,
                Feature.GRAMMAR: WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
            }
            states += [state for feature, state in kinds.items() if instance.has(feature)]
        for index in range(instance.requests):
            for state in states:
                yield Promise(
                    f"P4 r{index} leaves {RequestState(state).name}",
                    _is_in(index, state),
                    (DEADLINES, STEPS),
                )
    if instance.has(Feature.POLICY, Feature.PAUSE):
        yield Promise(
            "P5 a pause that waits for all, or keeps all, is reached",
            lambda w: ex.both(w.state.e.mode == PAUSING, w.state.e.pausing != ABORT_ALL),
            (STEPS, TRANSFERS, LEASES, LOOP),
            lambda action: action.party is not Party.CLIENT,
        )
    if instance.has(Feature.POLICY):
        yield Promise(
            "P5 while requests wait or run, tokens are delivered or requests end"
            + (" (P6: parked sessions do not keep them)" if instance.has(Feature.SESSIONS) else ""),
            lambda w: ex.both(work_left(w), ex.no(w.state.e.pending_reset)),
            (STEPS, TRANSFERS, LEASES, LOOP),
            lambda action: action.party is not Party.CLIENT and action.name != "forget",
            _progress,
        )


def _is_in(request: int, state: int) -> Callable[[World], Value]:
    return lambda w: ex.equal(w.state.requests[request].state, state)


def _progress(w: World) -> Value:
    """Grows with each delivered token, and when a request ends or parks."""
    s = w.state
    ended = (*FINISHED, WAITING_FOR_STREAMING_REQ)
    at_rest = ex.total(ex.either(*(r.state == state for state in ended)) for r in s.requests)
    return ex.total(r.delivered for r in s.requests) + at_rest


def judge(graph: Graph, promise: Promise, without: Assumption | None = None) -> Verdict:
    """Whether a promise is kept on its assumptions, or on all but one."""
    assumptions = tuple(each for each in promise.assumptions if each is not without)
    asked = [promise.owed, *([promise.measure] if promise.measure else [])]
    region, *measured = graph.values_of(asked)
    region = region.astype(bool)
    allowed = graph.by_commands(promise.may)
    for measure in measured:
        allowed &= measure[graph.target] <= measure[graph.source]
    keys: dict[tuple[str, Hashable], list[int]] = {}
    for number, action in enumerate(graph.actions):
        for assumption in assumptions:
            key = assumption.group(action)
            if key is not None:
                keys.setdefault((assumption.name, key), []).append(number)
    groups = [np.isin(graph.command, np.array(numbers, np.int16)) for numbers in keys.values()]
    present = {name for name, _ in keys}
    assumptions = tuple(each for each in assumptions if each.name in present)
    cycles = FairCycles(graph, region, allowed, groups)
    return Verdict(promise, assumptions, int(region.sum()), cycles.lasso(cycles.fair_states()))
