"""Promises hold on their assumptions, and each assumption that is named is needed for one."""

import itertools

import numpy as np
import pytest
from kvproof.specs.explore import Instance, explore
from kvproof.specs.explore.graph import Graph
from kvproof.specs.explore.liveness import (
    DEADLINES,
    LEASES,
    LOOP,
    STEPS,
    TRANSFERS,
    Assumption,
    judge,
    promises_of,
)
from kvproof.specs.explore.search import Search

from .systems import F, core, system_of

PLAIN = [F.ABORTS, F.RESETS]
WAITING_RESET = Instance(
    requests=1, features=core(F.WAITING_RESETS, F.LOST, F.LEASES, F.QUARANTINE, without=PLAIN)
)
DEADLINE = Instance(
    requests=1, block_size=2, prompt=1, model_length=4,
    features=core(F.DEADLINES, F.GRAMMAR, F.SESSIONS, F.STOPS, without=PLAIN),
)  # fmt: skip
POLICY = Instance(features=core(F.POLICY, without=PLAIN))
PARKED = Instance(
    blocks=2, block_size=2, transfers=0, prompt=1, model_length=4,
    features=core(F.POLICY, F.SESSIONS, F.STOPS, without=PLAIN),
)  # fmt: skip
PAUSED = Instance(features=core(F.POLICY, F.PAUSE, without=PLAIN))


def graph_of(instance: Instance) -> Graph:
    search = Search(system_of(instance))
    assert search.run().findings == []
    return Graph(search)


@pytest.mark.parametrize("instance", [WAITING_RESET, DEADLINE, POLICY])
def test_every_promise_is_kept_and_was_owed(instance: Instance) -> None:
    graph = graph_of(instance)
    promises = list(promises_of(instance))
    assert promises
    for promise in promises:
        verdict = judge(graph, promise)
        assert verdict.kept
        assert verdict.states > 0, f"{promise.name}: never owed"


@pytest.mark.long
@pytest.mark.parametrize("instance", [PARKED, PAUSED])
def test_every_promise_is_kept_with_sessions_and_pauses(instance: Instance) -> None:
    graph = graph_of(instance)
    for promise in promises_of(instance):
        verdict = judge(graph, promise)
        assert verdict.kept
        assert verdict.states > 0


@pytest.mark.parametrize(
    ("instance", "assumption"),
    [
        (WAITING_RESET, STEPS),
        (WAITING_RESET, TRANSFERS),
        (WAITING_RESET, LEASES),
        (WAITING_RESET, LOOP),
        (DEADLINE, DEADLINES),
        (POLICY, STEPS),
        (POLICY, TRANSFERS),
        (POLICY, LOOP),
    ],
    ids=lambda each: each.name if isinstance(each, Assumption) else "",
)
def test_without_an_assumption_there_is_a_lasso(instance: Instance, assumption: Assumption) -> None:
    graph = graph_of(instance)
    verdict = judge(graph, next(iter(promises_of(instance))), assumption)
    assert verdict.lasso is not None
    edges = [*verdict.lasso.stem, *verdict.lasso.cycle]
    # It is a path that returns to where its cycle began.
    for edge, following in itertools.pairwise(edges):
        assert graph.target[edge] == graph.source[following]
    if verdict.lasso.cycle:
        first, last = verdict.lasso.cycle[0], verdict.lasso.cycle[-1]
        assert graph.target[last] == graph.source[first]
    # And in it, what was promised is owed all the time.
    (owed,) = graph.values_of([verdict.promise.owed])
    assert all(owed[graph.source[edge]] and owed[graph.target[edge]] for edge in edges)
    assert owed[verdict.lasso.start]


def test_a_lost_completion_breaks_p2_without_leases_and_not_with_them() -> None:
    lost = Instance(requests=1, features=core(F.WAITING_RESETS, F.LOST, without=PLAIN))
    leases = Instance(requests=1, features=core(F.WAITING_RESETS, F.LOST, F.LEASES, without=PLAIN))
    broken = explore(lost)
    assert [script.name for script in broken.scripts] == ["P2 a waiting forced reset is done"]
    assert "lose(t0)" in broken.scripts[0].labels
    assert broken.scripts[0].again is not None
    kept = explore(leases)
    assert not kept.refuted
    assert [verdict.kept for verdict in kept.verdicts] == [True]


def test_a_cycle_that_neglects_a_group_is_not_fair() -> None:
    """By hand: two states that alternate, and an exit that is enabled in both, or in one."""
    from kvproof.specs.explore.fairness import FairCycles

    class Toy:
        states = 3
        source = np.array([0, 1, 0, 1])
        target = np.array([1, 0, 2, 2])

    everywhere = np.array([True, True, False])
    allowed = np.ones(4, bool)
    both, one = np.array([False, False, True, True]), np.array([False, False, True, False])
    for group, fair in ((both, False), (one, True)):
        cycles = FairCycles(Toy, everywhere, allowed, [group])  # type: ignore[arg-type]
        alive = cycles.fair_states()
        assert alive.any() == fair
        assert (cycles.lasso(alive) is not None) == fair
