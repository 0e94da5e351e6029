"""The set of states met so far: exact, in discovery order, filled by array operations.

An open-addressing table of numbers of states; keys are compared in full, so that no two states
are ever taken for one. A batch is inserted at once: everybody looks, everybody who finds an empty
place writes, and who then reads somebody else's number compares again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = list[NDArray[np.int64]]

_MULTIPLIERS = (
    0x9E3779B97F4A7C15,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0xD6E8FEB86659FD93,
    0xA0761D6478BD642F,
    0xE7037ED1A0B428DB,
    0x8EBC6AF09C88C6E3,
    0x589965CC75374CC3,
)


class Visited:
    """States by number, in the order in which they were found.

    `words[k][:size]` is the k-th packed word of each.
    """

    def __init__(self, words: int, capacity: int = 1 << 16) -> None:
        self.size = 0
        self.words: Words = [np.empty(capacity, np.int64) for _ in range(words)]
        self._bits = (2 * capacity - 1).bit_length()
        self._table: NDArray[np.int32] = np.zeros(1 << self._bits, np.int32)

    def add(self, words: Words) -> NDArray[np.int64]:
        """Insert a batch; returns which of it are new, each once, in the batch's order."""
        count = len(words[0])
        self._reserve(self.size + count)
        table = self._table
        mask = np.int64(len(table) - 1)
        place = self._hash(words)
        # Those whose place in the table is not decided: numbers within the batch.
        open_ = np.arange(count, dtype=np.int64)
        new: list[NDArray[np.int64]] = []
        taken: list[NDArray[np.int64]] = []
        while len(open_):
            found = table[place]
            empty = found == 0
            if empty.any():
                claims, here = open_[empty], place[empty]
                # Numbers of this batch are negative until it is known who is new.
                table[here] = (-1 - claims).astype(np.int32)
                won = table[here] == -1 - claims
                new.append(claims[won])
                taken.append(here[won])
                found = table[place]
                found[np.flatnonzero(empty)[won]] = 0
            other = np.flatnonzero(found)
            differs = self._differs(words, open_[other], found[other])
            other = other[differs]
            open_ = open_[other]
            place = (place[other] + 1) & mask
        if not new:
            return np.empty(0, np.int64)
        winners = np.concatenate(new)
        order = np.argsort(winners)
        winners, places = winners[order], np.concatenate(taken)[order]
        table[places] = np.arange(self.size + 1, self.size + 1 + len(winners), dtype=np.int32)
        for mine, theirs in zip(self.words, words, strict=True):
            mine[self.size : self.size + len(winners)] = theirs[winners]
        self.size += len(winners)
        return winners

    def find(self, words: Words) -> NDArray[np.int64]:
        """The numbers of states; -1 for those that were never met."""
        count = len(words[0])
        result = np.full(count, -1, np.int64)
        mask = np.int64(len(self._table) - 1)
        place, open_ = self._hash(words), np.arange(count, dtype=np.int64)
        while len(open_):
            found = self._table[place]
            present = np.flatnonzero(found)
            open_, place, found = open_[present], place[present], found[present]
            differs = self._differs(words, open_, found)
            same = ~differs
            result[open_[same]] = found[same] - 1
            open_, place = open_[differs], (place[differs] + 1) & mask
        return result

    def _differs(self, words: Words, mine: NDArray[Any], found: NDArray[np.int32]) -> NDArray[Any]:
        """Whether each of the batch differs from what it found in the table."""
        old = found > 0
        differs = np.zeros(len(mine), bool)
        all_old = bool(old.all())
        index = found.astype(np.int64) - 1 if all_old else np.where(old, found - 1, -1 - found)
        for stored, given in zip(self.words, words, strict=True):
            if all_old:
                theirs = stored[index]
            else:
                theirs = np.where(
                    old, stored[np.where(old, index, 0)], given[np.where(old, 0, index)]
                )
            differs |= theirs != given[mine]
        return differs

    def _hash(self, words: Words) -> NDArray[np.int64]:
        mixed = words[0].view(np.uint64) * np.uint64(_MULTIPLIERS[0])
        for word, multiplier in zip(words[1:], _MULTIPLIERS[1:], strict=False):
            mixed ^= mixed >> np.uint64(29)
            mixed += word.view(np.uint64) * np.uint64(multiplier)
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(_MULTIPLIERS[1])
        return (mixed >> np.uint64(64 - self._bits)).astype(np.int64)

    def _reserve(self, size: int) -> None:
        """Room for so many states, with the table at most half full."""
        capacity = len(self.words[0])
        if size > capacity:
            capacity = max(size, 2 * capacity)
            self.words = [_grown(word, capacity, self.size) for word in self.words]
        if 2 * size > len(self._table):
            self._bits = (2 * size - 1).bit_length() + 1
            self._table = np.zeros(1 << self._bits, np.int32)
            self._refill()

    def _refill(self) -> None:
        """Put every state into an empty table; all are different."""
        mask = np.int64(len(self._table) - 1)
        step = 1 << 20
        for start in range(0, self.size, step):
            end = min(start + step, self.size)
            place = self._hash([word[start:end] for word in self.words])
            numbers = np.arange(start + 1, end + 1, dtype=np.int32)
            while len(numbers):
                free = self._table[place] == 0
                here, mine = place[free], numbers[free]
                self._table[here] = mine
                lost = np.flatnonzero(free)[self._table[here] != mine]
                again = np.concatenate([np.flatnonzero(~free), lost])
                place, numbers = (place[again] + 1) & mask, numbers[again]


def _grown(word: NDArray[np.int64], capacity: int, size: int) -> NDArray[np.int64]:
    larger = np.empty(capacity, np.int64)
    larger[:size] = word[:size]
    return larger
