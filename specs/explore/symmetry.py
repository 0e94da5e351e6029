"""Exact symmetry: one state for all that differ only by which request or block is which.

Requests and blocks have no identity in the declaration, so a permutation of either maps reachable
states to reachable states, actions to actions, and keeps every invariant. Of each orbit the
search keeps the least state, compared word by word, found exactly: for each permutation of the
blocks the requests' words are sorted, and the least of the results is taken. Exchanging requests
is sorting, because nothing else in a state refers to a request by its number; a transfer is
referred to by requests, so transfers are left alone.

Never used where the question is about paths (fair cycles): a cycle in the quotient need not be
one of states.
"""

from __future__ import annotations

import itertools

from .backend import Array, Backend
from .instance import Instance
from .layout import Layout


class Canonical:
    """The least state of each orbit. Needs an aligned layout."""

    def __init__(self, layout: Layout, instance: Instance, backend: Backend) -> None:
        self._backend = backend
        self._words = layout.words
        self._requests = layout.words_of
        self._shuffles = [
            _shuffled(layout, instance, order)
            for order in itertools.permutations(range(instance.blocks))
        ]

    def apply(self, rows: Array) -> Array:
        """The least state of the orbit of each of some packed states."""
        xp = self._backend
        matrix = xp.bytes_of(rows)
        best: Array = None
        for number, shuffle in enumerate(self._shuffles):
            moved = rows if number == 0 else xp.rows_of(xp.columns(matrix, shuffle))
            words = [moved[:, word] for word in range(self._words)]
            self._sort_requests(words)
            if best is None:
                best = words
                continue
            less = _less(words, best)
            best = [xp.choose(less, new, old) for new, old in zip(words, best, strict=True)]
        return xp.stacked(best)

    def _sort_requests(self, words: list[Array]) -> None:
        """Put the requests' words in ascending order: a sorting network of exchanges."""
        count = len(self._requests)
        for end in range(count - 1, 0, -1):
            for first in range(end):
                self._exchange(words, self._requests[first], self._requests[first + 1])

    def _exchange(self, words: list[Array], left: list[int], right: list[int]) -> None:
        xp = self._backend
        swapped = _less([words[word] for word in right], [words[word] for word in left])
        for one, other in zip(left, right, strict=True):
            low = xp.choose(swapped, words[other], words[one])
            words[other] = xp.choose(swapped, words[one], words[other])
            words[one] = low


def _less(left: list[Array], right: list[Array]) -> Array:
    """Whether each is before the other, compared word by word."""
    result = left[-1] < right[-1]
    for mine, theirs in zip(left[-2::-1], right[-2::-1], strict=True):
        result = (mine < theirs) | ((mine == theirs) & result)
    return result


def _shuffled(layout: Layout, instance: Instance, order: tuple[int, ...]) -> list[int]:
    """From which byte each byte comes if block n becomes what block order[n] was."""
    source = list(range(8 * layout.words))
    owners = [f"r{request}_" for request in range(instance.requests)]
    owners += [f"t{transfer}_" for transfer in range(instance.transfers)]
    for prefix in [*owners, "b"]:
        for block, old in enumerate(order):
            mine = layout.bytes_of.get(f"{prefix}{block}", [])
            theirs = layout.bytes_of.get(f"{prefix}{old}", [])
            for here, there in zip(mine, theirs, strict=True):
                source[here] = there
    return source
