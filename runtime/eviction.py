"""The order in which free blocks that can still be hit are evicted: by the many, in array calls.

    order   block ids, the longest free first; -1 where one has been hit since
    place   by block: where in `order` it stands, or -1

An admission takes its hits out of the middle, some sixty at once, and a request that lets go puts
as many at the end; an OrderedDict needs five times as long for that.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .columns import Blocks, Int64Array

#: Entries looked at together.
_WINDOW = 256


class EvictionOrder:
    """A queue of block ids from which any can be removed."""

    def __init__(self, num_blocks: int) -> None:
        # What leaves from the middle takes a place until the order is written afresh.
        self._order: Int64Array = np.full(4 * num_blocks, -1, dtype=np.int64)
        self._place: Int64Array = np.full(num_blocks, -1, dtype=np.int64)
        self._first = self._end = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, block: int) -> bool:
        return bool(self._place[block] >= 0)

    def __iter__(self) -> Iterator[int]:
        """The next to be evicted first. Nothing may change meanwhile."""
        for first in range(self._first, self._end, _WINDOW):
            window = self._order[first : min(first + _WINDOW, self._end)]
            yield from window[window >= 0].tolist()

    def append(self, blocks: Blocks) -> None:
        """These blocks, all different and none of them in the order, come last."""
        number = len(blocks)
        if self._end + number > len(self._order):
            self._write_afresh()
        end = self._end + number
        self._order[self._end : end] = blocks
        self._place[blocks] = np.arange(self._end, end)
        self._end = end
        self._size += number

    def remove(self, blocks: Blocks) -> None:
        """These blocks leave. Raises KeyError, and changes nothing, if one is not in the order."""
        places = self._place[blocks]
        if places.min(initial=0) < 0:
            raise KeyError(f"of {blocks}, not all are free and cached")
        self._order[places] = -1
        self._place[blocks] = -1
        self._size -= len(places)

    def pop(self, wanted: int) -> list[int]:
        """The `wanted` longest free leave. Raises IndexError if there are fewer."""
        if wanted > self._size:
            raise IndexError(f"{wanted} blocks of {self._size}")
        taken: list[int] = []
        while len(taken) < wanted:
            window = self._order[self._first : min(self._first + _WINDOW, self._end)]
            here = (window >= 0).nonzero()[0][: wanted - len(taken)]
            taken += window[here].tolist()
            # Up to the last one taken; of a window with too few, all.
            self._first += int(here[-1]) + 1 if len(taken) == wanted else len(window)
        self._place[taken] = -1
        self._size -= wanted
        return taken

    def clear(self) -> None:
        """All leave."""
        self._place.fill(-1)
        self._first = self._end = self._size = 0

    def _write_afresh(self) -> None:
        left = self._order[self._first : self._end]
        left = left[left >= 0]
        self._order[: len(left)] = left
        self._place[left] = np.arange(len(left))
        self._first, self._end = 0, len(left)
