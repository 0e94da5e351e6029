"""Deadlines of those who wait for an outside party, on a clock that can stand still.

While the engine is paused, sessions and grammars are not to blame for a delay, so their clock
stands still; a load's deadline runs on, as leases do.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

#: Entries that may be left over, so that a few waits make no work.
_SPARE = 16


class PausableClock:
    """Seconds of a clock, without the time for which it stood still."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lost = 0.0
        self._stopped_at: float | None = None

    def __call__(self) -> float:
        """The time now."""
        now = self._stopped_at if self._stopped_at is not None else self._clock()
        return now - self._lost

    def stand_still(self, still: bool) -> None:
        """Stop, or go on from where it stopped; saying it twice changes nothing."""
        if still and self._stopped_at is None:
            self._stopped_at = self._clock()
        elif not still and self._stopped_at is not None:
            self._lost += self._clock() - self._stopped_at
            self._stopped_at = None

    @property
    def standing(self) -> bool:
        """Whether it stands still."""
        return self._stopped_at is not None


class Deadlines:
    """(row, wait) pairs in the order in which their time is over: one for a row, its latest.

    `wait` numbers what the request waits for: a row's earlier wait has no deadline any more. That
    of a request which has ended meanwhile is passed over by whoever hears of it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of_row: dict[int, tuple[float, int, int]] = {}
        #: The same, and those that were replaced: they are left out once they are the greater part.
        self._heap: list[tuple[float, int, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, seconds: float, row: int, wait: int) -> None:
        """From now on the request may wait that long."""
        entry = self._of_row[row] = (self._clock() + seconds, row, wait)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._of_row) + _SPARE:
            self._heap = sorted(self._of_row.values())  # a sorted list is a heap

    def due(self) -> list[tuple[int, int]]:
        """Those whose time is over, the longest overdue first; each is returned once."""
        if not self._heap:
            return []
        now = self._clock()
        over = []
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            _, row, wait = entry
            if self._of_row.get(row) is entry:
                del self._of_row[row]
                over.append((row, wait))
        return over

    def next_in(self) -> float | None:
        """Seconds until the next one, None when there is none."""
        return max(0.0, self._heap[0][0] - self._clock()) if self._heap else None
