"""Fair cycles: ways in which something that was promised never happens.

The states in which it is still owed are a region. A run that stays in the region for ever breaks
the promise, unless it is unfair: a *weakly fair* group of actions is taken again and again unless
it is again and again disabled. Time may pass in any state, so every state may also stay as it is.
The set of states from which a fair run stays in the region is the greatest fixed point of Emerson
and Lei, by backward reachability over arrays; out of it one run is read off as a lasso.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .graph import Graph, Mask

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Lasso:
    """A run that never ends: transitions (numbers into the graph) to a state, then round again.

    An empty `cycle`: the run stays in the last state for ever.
    """

    start: int  # the state where the stem begins: the first that is in the region
    stem: tuple[int, ...]
    cycle: tuple[int, ...]


class FairCycles:
    """The transitions that stay in a region, and the groups that must not be neglected there."""

    def __init__(self, graph: Graph, region: Mask, allowed: Mask, groups: Sequence[Mask]) -> None:
        """`allowed` are the transitions that the run may take, each of `groups` a fair group.

        A group's actions are enabled where one of its transitions begins, even if it leads out of
        the region or is not allowed: taking it ends the wait.
        """
        self.graph = graph
        self._region = region
        inside = allowed & region[graph.source] & region[graph.target]
        self._edges: Numbers = np.flatnonzero(inside)
        self._groups = [
            (_at(graph.states, graph.source[group]), group[self._edges]) for group in groups
        ]
        self._source, self._target = graph.source[self._edges], graph.target[self._edges]

    def fair_states(self) -> Mask:
        """The states from which a fair run stays in the region."""
        alive = self._region.copy()
        while True:
            before = int(alive.sum())
            for enabled, taken in self._groups:
                alive = self._reaching(alive, enabled, taken)
            if int(alive.sum()) == before:
                return alive

    def _goals(self, alive: Mask, enabled: Mask, taken: Mask) -> Mask:
        """Where the group is done justice to: it is disabled, or taken within."""
        stays = taken & alive[self._source] & alive[self._target]
        return alive & (~enabled | _at(len(alive), self._source[stays]))

    def _reaching(self, alive: Mask, enabled: Mask, taken: Mask) -> Mask:
        """The states of `alive` that reach justice for a group without leaving it."""
        found = self._goals(alive, enabled, taken)
        usable = alive[self._source] & alive[self._target]
        source, target = self._source[usable], self._target[usable]
        while True:
            new = _at(len(found), source[found[target] & ~found[source]])
            if not new.any():
                return found
            found |= new

    def lasso(self, alive: Mask) -> Lasso | None:
        """A fair run within the states that `fair_states` returned; None if there are none."""
        states = np.flatnonzero(alive)
        if not len(states):
            return None
        usable = alive[self._source] & alive[self._target]
        walk = _Walk(self._edges[usable], self._source[usable], self._target[usable], len(alive))
        begin = here = int(states[0])  # the first found: the nearest to the initial state
        stem: list[int] = []
        while True:
            round_: list[int] = []
            at = here
            for enabled, taken in self._groups:
                goals = self._goals(alive, enabled, taken)
                way, at = walk.to(at, goals)
                round_ += way
                if enabled[at]:
                    edge, at = walk.through(at, taken[usable])
                    round_.append(edge)
            back = walk.back(at, here)
            if back is not None:
                return Lasso(begin, tuple(stem), tuple(round_ + back))
            # `here` is not on a cycle with what it reached: go on from there. Components are
            # only ever left forward, so this ends.
            stem += round_
            here = at


class _Walk:
    """Shortest ways along some transitions."""

    def __init__(self, edges: Numbers, source: Numbers, target: Numbers, states: int) -> None:
        order = np.argsort(source, kind="stable")
        self._edges, self._target = edges[order], target[order]
        self._order = order
        self._first = np.searchsorted(source[order], np.arange(states + 1))

    def to(self, start: int, goals: Mask) -> tuple[list[int], int]:
        """The shortest way from a state to one of the goals; there is one."""
        if goals[start]:
            return [], start
        way = self._search([(start, -1)], goals, {start})
        assert way is not None
        return way

    def back(self, start: int, goal: int) -> list[int] | None:
        """The shortest way to a state, None if there is none."""
        goals = np.zeros(len(self._first) - 1, bool)
        goals[goal] = True
        if start == goal:
            return []
        found = self._search([(start, -1)], goals, {start})
        return None if found is None else found[0]

    def through(self, start: int, chosen: Mask) -> tuple[int, int]:
        """A transition from a state that is among the chosen ones."""
        for position in range(self._first[start], self._first[start + 1]):
            if chosen[self._order[position]]:
                return int(self._edges[position]), int(self._target[position])
        raise AssertionError("the group is enabled here, and none of it stays")

    def _search(
        self, queue: list[tuple[int, int]], goals: Mask, seen: set[int]
    ) -> tuple[list[int], int] | None:
        came: list[tuple[int, int]] = []  # (place in the queue before, transition)
        came.append((-1, -1))
        states = [queue[0][0]]
        position = 0
        while position < len(states):
            state = states[position]
            for place in range(self._first[state], self._first[state + 1]):
                following = int(self._target[place])
                if following in seen:
                    continue
                seen.add(following)
                states.append(following)
                came.append((position, int(self._edges[place])))
                if goals[following]:
                    return _unrolled(came), following
            position += 1
        return None


def _unrolled(came: list[tuple[int, int]]) -> list[int]:
    way: list[int] = []
    position = len(came) - 1
    while position > 0:
        position, edge = came[position]
        way.append(edge)
    return way[::-1]


def _at(states: int, where: Numbers) -> Mask:
    mask = np.zeros(states, bool)
    mask[where] = True
    return mask
