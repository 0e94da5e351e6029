"""What the lifecycle shows of itself: the same objects that it works on, without their writers.

Nothing here has state of its own, and nothing costs more than a look-up: a view is made once and
shows what is so at the time of asking. Arrays and maps are read-only to numpy and to Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .columns import Int64Array, ReadOnly, read_only

if TYPE_CHECKING:
    from .containers import SortedRows
    from .holds import BlockLedger, StepHold
    from .pool import BlockPool
    from .prefix import PrefixIndex


class Rows(ReadOnly):
    """The rows of a container, in the policy's order."""

    __slots__ = ("_rows",)
    _rows: SortedRows

    def __init__(self, rows: SortedRows) -> None:
        self._set(_rows=rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __getitem__(self, place: int) -> int:
        return self._rows[place]

    @property
    def array(self) -> Int64Array:
        """The rows in order, int64, read-only; the same array until one comes or leaves."""
        return self._rows.array


class Pool(ReadOnly):
    """Which blocks are free: `BlockPool` as others may see it."""

    __slots__ = ("_pool",)
    _pool: BlockPool

    def __init__(self, pool: BlockPool) -> None:
        self._set(_pool=pool)

    @property
    def free(self) -> int:
        """Blocks that nobody holds, cached or not."""
        return self._pool.free

    @property
    def uncached_free(self) -> int:
        """Free blocks that hold nothing that can be hit."""
        return self._pool.uncached_free

    def is_free(self, block: int) -> bool:
        """Whether nobody holds the block."""
        return self._pool.is_free(block)

    def eviction_order(self) -> Iterator[int]:
        """The cached free blocks, the next to be evicted first."""
        return self._pool.eviction_order()


class Index(ReadOnly):
    """Which block can be hit under which key: `PrefixIndex` as others may see it."""

    __slots__ = ("_index", "cached")
    _index: PrefixIndex
    cached: npt.NDArray[np.bool_]  # by block, whether it can be hit; read-only

    def __init__(self, index: PrefixIndex) -> None:
        self._set(_index=index, cached=read_only(index.cached))

    def __len__(self) -> int:
        return len(self._index)

    def key_of(self, block: int) -> bytes | None:
        """The key under which the block can be hit, or None."""
        return self._index.key_of(block)

    def block_of(self, key: bytes) -> int | None:
        """The block that can be hit under the key, or None."""
        return self._index.block_of(key)

    def is_cached(self, block: int) -> bool:
        """Whether the block can be hit."""
        return self._index.is_cached(block)

    def match(self, keys: Sequence[bytes], root: bytes, tokens: bytes, most: int) -> list[int]:
        """See `PrefixIndex.match`."""
        return self._index.match(keys, root, tokens, most)


class Ledger(ReadOnly):
    """Who holds which block: `BlockLedger` as others may see it."""

    __slots__ = ("_ledger", "being_written", "counts", "index", "num_blocks", "pool", "quarantined")
    _ledger: BlockLedger
    num_blocks: int
    counts: Int64Array  # [blocks] holds on each
    quarantined: Int64Array  # [blocks] holds in quarantine on each
    being_written: memoryview  # one byte a block: 1 while a load writes it
    pool: Pool
    index: Index

    def __init__(self, ledger: BlockLedger) -> None:
        self._set(
            _ledger=ledger,
            num_blocks=ledger.num_blocks,
            counts=read_only(ledger.counts),
            quarantined=read_only(ledger.quarantined),
            being_written=memoryview(ledger.being_written).toreadonly(),
            pool=Pool(ledger.pool),
            index=Index(ledger.index),
        )

    @property
    def cached_blocks(self) -> int:
        """Blocks that can be hit, held or not."""
        return self._ledger.cached_blocks

    @property
    def quarantined_blocks(self) -> int:
        """Blocks in quarantine."""
        return self._ledger.quarantined_blocks

    @property
    def step_holds(self) -> Mapping[int, tuple[StepHold, ...]]:
        """The STEP holds by step."""
        return MappingProxyType(self._ledger.step_holds)

    def promised(self) -> int:
        """Blocks that only STEP holds cover: they will be free without anybody letting go."""
        return self._ledger.promised()
