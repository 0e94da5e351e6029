"""The set of states met so far: exact, in discovery order, filled by array operations.

An open-addressing table of numbers of states; keys are compared in full, so that no two states
are ever taken for one. A batch is inserted at once: everybody looks, everybody who finds an empty
place writes, and who then reads somebody else's number compares again.
"""

from __future__ import annotations

from .backend import Array, Backend

#: Odd multipliers below 2^63 (backends without unsigned words multiply signed ones).
_MULTIPLIERS = (
    0x1E3779B97F4A7C15,
    0x42B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x56E8FEB86659FD93,
    0x20761D6478BD642F,
    0x67037ED1A0B428DB,
    0x0EBC6AF09C88C6E3,
    0x589965CC75374CC3,
)


class Visited:
    """States by number, in the order in which they were found: `rows[:size]`."""

    def __init__(self, backend: Backend, words: int, capacity: int = 1 << 16) -> None:
        self.backend = backend
        self.words = words
        self.size = 0
        self.rows = backend.rows(capacity, words)
        self._bits = (2 * capacity - 1).bit_length()
        self._table = backend.zeros(1 << self._bits)

    def add(self, rows: Array) -> Array:
        """Insert a batch; returns which of it are new, each once, in the batch's order."""
        xp = self.backend
        count = len(rows)
        self._reserve(self.size + count)
        table, mask = self._table, len(self._table) - 1
        place = self._hash(rows)
        # Those whose place in the table is not decided: numbers within the batch.
        open_ = xp.arange(0, count)
        new: list[Array] = []
        taken: list[Array] = []
        while len(open_):
            found = xp.take(table, place)
            empty = xp.flatnonzero(found == 0)
            if len(empty):
                claims, here = xp.take(open_, empty), xp.take(place, empty)
                # Numbers of this batch are negative until it is known who is new.
                mine = xp.int32(-1 - claims)
                table[here] = mine
                seen = xp.take(table, here)
                won = xp.flatnonzero(seen == mine)
                new.append(xp.take(claims, won))
                taken.append(xp.take(here, won))
                seen[won] = 0
                found[empty] = seen
                other = xp.flatnonzero(found)
                open_, place = xp.take(open_, other), xp.take(place, other)
                found = xp.take(found, other)
            differs = xp.flatnonzero(self._differs(rows, open_, found))
            open_ = xp.take(open_, differs)
            place = (xp.take(place, differs) + 1) & mask
        if not new:
            return xp.arange(0, 0)
        winners, places = xp.concatenate(new), xp.concatenate(taken)
        order = xp.argsort(winners)
        winners, places = xp.take(winners, order), xp.take(places, order)
        first, end = self.size, self.size + len(winners)
        table[places] = xp.int32(xp.arange(first + 1, end + 1))
        self.rows[first:end] = xp.take(rows, winners)
        self.size = end
        return winners

    def find(self, rows: Array) -> Array:
        """The numbers of states; -1 for those that were never met."""
        xp = self.backend
        mask = len(self._table) - 1
        result = xp.arange(0, len(rows)) * 0 - 1
        place, open_ = self._hash(rows), xp.arange(0, len(rows))
        while len(open_):
            found = self._table[place]
            present = xp.flatnonzero(found)
            open_, place, found = open_[present], place[present], found[present]
            differs = self._differs(rows, open_, found)
            same = xp.flatnonzero(~differs)
            result[open_[same]] = xp.int64(found[same]) - 1
            again = xp.flatnonzero(differs)
            open_, place = open_[again], (place[again] + 1) & mask
        return result

    def _differs(self, rows: Array, mine: Array, found: Array) -> Array:
        """Whether each of the batch differs from what it found in the table."""
        xp = self.backend
        number = xp.int64(found)
        ours = rows if len(mine) == len(rows) else xp.take(rows, mine)
        fresh = xp.flatnonzero(number < 0)
        if len(fresh):
            theirs = xp.take(self.rows, xp.choose(number < 0, 0, number - 1))
            theirs[fresh] = xp.take(rows, -1 - xp.take(number, fresh))
        else:
            theirs = xp.take(self.rows, number - 1)
        theirs ^= ours
        different = theirs[:, 0]
        for word in range(1, self.words):
            different = different | theirs[:, word]
        return different != 0

    def _hash(self, rows: Array) -> Array:
        mixed = rows[:, 0] * _MULTIPLIERS[0]
        for word in range(1, self.words):
            mixed = (mixed ^ (mixed >> 29)) + rows[:, word] * _MULTIPLIERS[word]
        mixed = (mixed ^ (mixed >> 32)) * _MULTIPLIERS[1]
        return (mixed >> (64 - self._bits)) & (len(self._table) - 1)

    def _reserve(self, size: int) -> None:
        """Room for so many states, with the table at most half full."""
        if size > len(self.rows):
            larger = self.backend.rows(max(size, 2 * len(self.rows)), self.words)
            larger[: self.size] = self.rows[: self.size]
            self.rows = larger
        if 2 * size > len(self._table):
            self._bits = (2 * size - 1).bit_length() + 1
            self._table = self.backend.zeros(1 << self._bits)
            self._refill()

    def _refill(self) -> None:
        """Put every state into an empty table; all are different."""
        xp = self.backend
        mask, step = len(self._table) - 1, 1 << 20
        for start in range(0, self.size, step):
            end = min(start + step, self.size)
            place = self._hash(self.rows[start:end])
            numbers = xp.int32(xp.arange(start + 1, end + 1))
            while len(numbers):
                free = xp.flatnonzero(self._table[place] == 0)
                self._table[place[free]] = numbers[free]
                again = xp.flatnonzero(self._table[place] != numbers)
                place, numbers = (place[again] + 1) & mask, numbers[again]
