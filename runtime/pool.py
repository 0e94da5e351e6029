"""The free blocks, in the order in which they are handed out.

Never-cached blocks go first, in adjacent runs where there are any; then cached ones, the longest
free first, so that what was let go last can still be hit.

    uncached   bytearray, one byte a block: 1 = free, and nothing in it can be hit
    cached     the order of eviction: free, but still a hit
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .columns import Blocks, Int64Array
from .eviction import EvictionOrder


class BlockPool:
    """Which blocks are free. Whoever calls `put` or `remove` answers for the counts."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._uncached = bytearray(b"\1") * num_blocks
        # Never resized, so a numpy view of it is safe.
        self._map = np.frombuffer(self._uncached, dtype=np.uint8)
        self._uncached_free = num_blocks
        self._cached = EvictionOrder(num_blocks)

    @property
    def free(self) -> int:
        """Blocks that nobody holds, cached or not."""
        return self._uncached_free + len(self._cached)

    @property
    def uncached_free(self) -> int:
        """Free blocks that hold nothing that can be hit."""
        return self._uncached_free

    def is_free(self, block: int) -> bool:
        """Whether nobody holds the block."""
        return self._uncached[block] == 1 or block in self._cached

    def eviction_order(self) -> Iterator[int]:
        """The cached free blocks, the next to be evicted first."""
        return iter(self._cached)

    def take(self, wanted: int, after: int = -1) -> tuple[list[int], int]:
        """Hand out free blocks, and say how many of them, at the end, were still cached.

        `after`: the block that the new ones should follow, -1 for none. The caller has checked
        that there are enough.
        """
        if wanted == 1 and after >= 0 and after + 1 < self.num_blocks and self._uncached[after + 1]:
            self._uncached[after + 1] = 0
            self._uncached_free -= 1
            return [after + 1], 0
        uncached = min(wanted, self._uncached_free)
        blocks = self._take_uncached(uncached, after) if uncached else []
        evicted = wanted - uncached
        if evicted:
            blocks += self._cached.pop(evicted)
        return blocks, evicted

    def _take_uncached(self, wanted: int, after: int) -> list[int]:
        run = b"\1" * wanted
        if after >= 0 and self._uncached[after + 1 : after + 1 + wanted] == run:
            first = after + 1
        else:
            first = self._uncached.find(run)
        self._uncached_free -= wanted
        if first >= 0:
            self._uncached[first : first + wanted] = bytes(wanted)
            return list(range(first, first + wanted))
        # Fragmented: a search for shorter and shorter runs costs milliseconds on a large pool.
        found = np.flatnonzero(self._map)[:wanted]
        self._map[found] = 0
        blocks: list[int] = found.tolist()
        return blocks

    def remove(self, blocks: Blocks) -> None:
        """Take these blocks, cached and free, out of the pool: they are hits."""
        self._cached.remove(blocks)

    def put_uncached(self, blocks: Blocks) -> None:
        """These blocks are free and hold nothing that can be hit."""
        self._map[blocks] = 1
        self._uncached_free += len(blocks)

    def put_cached(self, blocks: Blocks) -> None:
        """These blocks are free and can still be hit; the first of them is evicted first."""
        self._cached.append(blocks)

    def forget_all(self, free: npt.NDArray[np.bool_]) -> None:
        """`free`, bool [blocks], says which blocks nobody holds; none of them can be hit."""
        self._cached.clear()
        self._map[:] = free
        self._uncached_free = int(np.count_nonzero(free))

    def drop_cached(self) -> Int64Array:
        """No free block can be hit any more. Returns those that could."""
        dropped = np.fromiter(self._cached, dtype=np.int64, count=len(self._cached))
        self._cached.clear()
        self.put_uncached(dropped)
        return dropped
