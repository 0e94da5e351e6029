"""Rows of requests in the policy's order: lower priority value first, then older.

Which container a request is in follows from its state; the lifecycle moves it when the state
changes, and nobody else does.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

import numpy as np

from .columns import Int64Array, read_only


class SortedRows:
    """A set of rows that iterates in the order of (priority, arrival)."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, int]] = []
        self._array: Int64Array | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[int]:
        return (entry[2] for entry in self._entries)

    def __getitem__(self, place: int) -> int:
        return self._entries[place][2]

    def entries(self) -> list[tuple[int, int, int]]:
        """(priority, arrival, row) of each, as it was entered, in order."""
        return list(self._entries)

    def add(self, priority: int, arrival: int, row: int) -> None:
        """The row enters at its place."""
        insort(self._entries, (priority, arrival, row))
        self._array = None

    def remove(self, priority: int, arrival: int, row: int) -> None:
        """The row leaves; it was entered with this priority and arrival."""
        place = bisect_left(self._entries, (priority, arrival, row))
        assert self._entries[place][2] == row
        del self._entries[place]
        self._array = None

    def absorb(self, other: SortedRows) -> None:
        """Every row of the other set enters here at its place, and leaves there."""
        self._entries = sorted(self._entries + other._entries)
        other._entries = []
        self._array = other._array = None

    @property
    def array(self) -> Int64Array:
        """The rows in order, int64; not to be written to."""
        if self._array is None:
            self._array = read_only(np.array([entry[2] for entry in self._entries], dtype=np.int64))
        return self._array
