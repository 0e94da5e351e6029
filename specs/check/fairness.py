"""What progress rests on: that what can happen does happen. Each assumption is a named object.

An assumption has an owner, a place where its breach is noticed while the engine runs, and a proof
that it is needed: without the events that it promises the goal is never reached, however long one
waits. That all of them can hold together is shown by a run in which each promise is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...statemachine.states import (
    CANCEL,
    FAIL,
    FENCE,
    GIVE_UP,
    IN_FLIGHT,
    LAND,
    LEASE_OVER,
    LIVE,
    STEP_PROCESSED,
)
from .conditions import Condition
from .declaration import Declaration
from .logic import among, implies
from .phrases import OPEN
from .proofs import Proofs
from .system import Transition
from .world import Shape, Size, World
from .world_moves import Moves


@dataclass(frozen=True)
class Fairness:
    """One assumption about what happens in the end."""

    name: str
    words: str
    owner: str
    checked: str
    #: The obligations that rest on it.
    for_whom: tuple[str, ...]
    #: Without the promised events a state that blocks the goal is never left.
    needed: Callable[[Proofs], Iterator[Condition]]
    #: The obligation under which that is shown.
    shown_by: str
    #: The actions that keep the promise.
    kept_by: tuple[str, ...]


def _steps_needed(p: Proofs) -> Iterator[Condition]:
    yield from p.each(
        "P2", "without it a launched step is in flight for ever, and no reset is decided",
        lambda before, after: implies(before.e.launched > before.e.processed,
                                      after.e.launched > after.e.processed),
        part="fairness is needed",
        of=lambda transition: not transition.goes("engine", STEP_PROCESSED),
    )  # fmt: skip


def _ends_needed(p: Proofs) -> Iterator[Condition]:
    moving = (LAND, FAIL, LEASE_OVER, CANCEL)
    yield from p.each(
        "P2", "without a completion, a cancellation or a lease what is in flight stays in flight",
        lambda before, after: implies(before.t.state == IN_FLIGHT, after.t.state == IN_FLIGHT),
        part="fairness is needed", of=lambda transition: not _any(transition, moving),
    )  # fmt: skip


def _giving_up_needed(p: Proofs) -> Iterator[Condition]:
    ends = (LAND, FAIL, FENCE, GIVE_UP)
    yield from p.each(
        "P2", "without them what is cancelled is never ended",
        lambda before, after: implies(
            among(before.t.state, OPEN[2:]), among(after.t.state, OPEN[2:])),
        part="fairness is needed", of=lambda transition: not _any(transition, ends),
    )  # fmt: skip


def _clock_needed(p: Proofs) -> Iterator[Condition]:
    goes = ("deadline", "land", "fail", "fence", "give_up", "cancel", "lease_over", "abort",
            "error")  # fmt: skip
    yield from p.each(
        "P4", "without it who waits for a load waits as long as the load does",
        lambda before, after: implies(before.r.waits_for > 0,
                                      after.r.waits_for == before.r.waits_for),
        part="fairness is needed", of=lambda transition: transition.action not in goes,
    )  # fmt: skip


def _loop_needed(p: Proofs) -> Iterator[Condition]:
    yield from p.each(
        "P3", "without it no hold of a request ends, whatever clients and connectors do",
        lambda before, after: implies(
            before.held.by_request, after.held.by_request),
        part="fairness is needed",
        of=lambda transition: transition.action in ("worker_done", "evict"),
    )  # fmt: skip


def _any(transition: Transition, events: tuple[int, ...]) -> bool:
    return any(transition.goes("transfer", event) for event in events)


FAIRNESS = (
    Fairness(
        "a launched step is processed",
        "the device finishes every step that was launched, and its results are taken",
        "the device",
        "the engine's watchdog: /health says since when a step is in flight",
        ("P1", "P2", "P3"),
        _steps_needed,
        "P2",
        ("step_processed",),
    ),
    Fairness(
        "a transfer ends",
        "a transfer in flight lands, fails or is cancelled; with leases the clock sees to it",
        "the connector; the engine's clock by its leases",
        "leases: a transfer that outlives its lease is cancelled, counted and shown",
        ("P2", "P4"),
        _ends_needed,
        "P2",
        ("land", "fail", "cancel", "lease_over"),
    ),
    Fairness(
        "a cancelled transfer is fenced or given up",
        "its worker is fenced, or the engine gives up on it after a grace and quarantines it",
        "the engine",
        "quarantined blocks are counted, alarmed and shown",
        ("P2",),
        _giving_up_needed,
        "P2",
        ("land", "fail", "fence", "give_up"),
    ),
    Fairness(
        "the clock runs",
        "deadlines and leases that are over are told, but for the time that the engine is paused",
        "the engine",
        "the loop looks at the nearest deadline in every round",
        ("P4",),
        _clock_needed,
        "P4",
        ("deadline", "lease_over"),
    ),
    Fairness(
        "the engine's loop runs while a hold is left",
        "what the policy asks for is done: reclaims, preemptions, admissions, signals",
        "the engine",
        "/health says since when the loop has not come round",
        ("P2", "P3", "P5", "P6"),
        _loop_needed,
        "P3",
        ("reclaim", "preempt", "admit"),
    ),
)


def need(proofs: Proofs, obligation: str) -> Iterator[Condition]:
    """For each assumption whose need is shown under this obligation: that it is needed."""
    for assumption in FAIRNESS:
        if assumption.shown_by == obligation:
            yield from assumption.needed(proofs)


#: A run in which every promise is asked for and kept: actions, and how their words begin.
WITNESS = (
    ("add", "add r0 with a grammar"),
    ("deadline", "deadline r0"),
    ("forget", "forget r0"),
    ("add", "add r0 a session"),
    ("admit_remote", "admit_remote r0"),
    ("begin", "begin t0"),
    ("land", "land t0"),
    ("retire", "retire t0"),
    ("admit", "admit r0: 0 hits, 1 fresh"),
    ("launch", "a step with 1 token"),
    ("step_processed", "step_processed"),
    ("publish", "publish r0 1 tokens, 2 blocks"),
    ("output", "output r0"),
    ("stop", "stop r0 stop"),
    ("start", "store t0"),
    ("begin", "begin t0"),
    ("lease_over", "lease_over t0"),
    ("give_up", "give_up t0"),
    ("fence", "fence t0"),
    ("retire", "retire t0"),
    ("reclaim", "reclaim r0"),
    ("close_input", "close_input r0"),
)


class NoWitnessError(AssertionError):
    """The run that shows that all assumptions can hold together is no run of this declaration."""


def joint_witness(declaration: Declaration) -> tuple[str, ...]:
    """The run in words: each promise is asked for in it and kept, and none is left open at its end.

    Raises NoWitnessError where an event of it does not go, or a promise is left open.
    """
    shape = Shape(declaration, Size(blocks=2))
    moves, state = Moves(shape), shape.start().state()
    words: list[str] = []
    actions: set[str] = set()
    for action, begins in WITNESS:
        ways = moves.of(state, frozenset({action}))
        done = next((each for each in ways if each.words.startswith(begins)), None)
        if done is None:
            raise NoWitnessError(f"{begins} does not go after {', '.join(words)}")
        state = done.state
        words.append(done.words)
        actions.add(action)
    world = World(shape, state)
    e, r, t = world["e"], world["r0"], world["t0"]
    if e.launched > e.processed or t.state in OPEN or r.covered or r.state in LIVE:
        raise NoWitnessError("the run ends with a promise that is open")
    unkept = [each.name for each in FAIRNESS if not actions & set(each.kept_by)]
    if unkept:
        raise NoWitnessError(f"the run keeps no promise of: {', '.join(unkept)}")
    return tuple(words)
