"""The transitions of a finished search as arrays, for questions about paths.

Paths need every state by itself, so a graph is never made of a search under symmetry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import expressions as ex
from .action import Action
from .kernels import Kernel
from .search import Found, Search
from .world import World

Mask = NDArray[np.bool_]


class Graph:
    """Every transition: from `source` to `target` by the command of that number."""

    def __init__(self, search: Search) -> None:
        """`search` has been run to the end. Raises ValueError if it was run under symmetry."""
        if search.canonical is not None:
            raise ValueError("a search under symmetry has no paths of states")
        self.search = search
        self.states = search.visited.size
        self.actions: list[Action] = [command.action for command in search.commands]
        xp = search.backend
        sources, targets, commands = [], [], []
        ignored = Found(0, 0, [], 0.0, True)
        for low in range(0, self.states, search.chunk):
            rows = search.visited.rows[low : min(low + search.chunk, self.states)]
            for number, index, packed in search.successors(rows, low, ignored):
                sources.append(xp.host(index) + low)
                targets.append(xp.host(search.visited.find(packed)))
                commands.append(np.full(len(index), number, np.int16))
        self.source: NDArray[np.int64] = np.concatenate(sources)
        self.target: NDArray[np.int64] = np.concatenate(targets)
        self.command: NDArray[np.int16] = np.concatenate(commands)
        if len(self.target) and int(self.target.min()) < 0:
            raise ValueError("the search was not run to the end: a successor is unknown")

    def values_of(self, asked: Sequence[Callable[[World], ex.Value]]) -> list[NDArray[Any]]:
        """The value of some conditions or numbers in every state."""
        search = self.search
        xp = search.backend
        wanted = [value(search.system.terms()) for value in asked]
        kernel = Kernel(search.layout, xp, wanted)
        parts: list[list[Any]] = [[] for _ in wanted]
        for low in range(0, self.states, search.chunk):
            rows = search.visited.rows[low : min(low + search.chunk, self.states)]
            results = kernel.run(xp.bytes_of(rows))
            for part, result in zip(parts, results, strict=True):
                known = isinstance(result, int)
                part.append(np.full(len(rows), result) if known else xp.host(result))
        return [np.concatenate(part) for part in parts]

    def by_commands(self, chosen: Callable[[Action], bool]) -> Mask:
        """Which transitions are by an action that was chosen."""
        numbers = [number for number, action in enumerate(self.actions) if chosen(action)]
        return np.isin(self.command, np.array(numbers, np.int16))
