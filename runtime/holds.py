"""Who holds which block: the counts, the pool that follows from them, and the STEP holds.

A block's count is the number of holds that cover it. REQUEST holds are the requests' block
tables, LOAD and STORE holds the transfers' records; only what was handed over to a launched step
is listed here. One hold covers a block at most once, but several may: releases of more than one
hold count duplicates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..statemachine.lanes import acquired, released
from .columns import Blocks, Int64Array, every
from .pool import BlockPool
from .prefix import PrefixIndex


@dataclass(frozen=True, slots=True)
class StepHold:
    """The blocks of a request that let go while a launched step still touched them."""

    step: int
    owner: str  # the request's id
    blocks: npt.NDArray[np.int32]
    since: float


class BlockLedger:
    """Counts and what they decide: which blocks are free, and which may be hit."""

    def __init__(self, num_blocks: int, compares_tokens: bool) -> None:
        self.num_blocks = num_blocks
        self.counts: Int64Array = np.zeros(num_blocks, dtype=np.int64)
        self.being_written = bytearray(num_blocks)
        self.quarantined: Int64Array = np.zeros(num_blocks, dtype=np.int64)
        self.quarantined_blocks = 0
        self.pool = BlockPool(num_blocks)
        self.index = PrefixIndex(num_blocks, compares_tokens)
        self.step_holds: dict[int, tuple[StepHold, ...]] = {}
        #: (key, block) in the order of publication, for the stores; None: nobody asks.
        self.published: list[tuple[bytes, int]] | None = None

    @property
    def cached_blocks(self) -> int:
        """Blocks that can be hit, held or not."""
        return len(self.index)

    # --- taking ---------------------------------------------------------------------------------

    def take_fresh(self, wanted: int, after: int = -1) -> list[int]:
        """Hand out free blocks for new content: count 1, no longer a hit."""
        blocks, evicted = self.pool.take(wanted, after)
        if evicted:
            self.index.drop(blocks[wanted - evicted :])
        first, last = blocks[0], blocks[-1]
        if not evicted and last - first == wanted - 1:
            self.counts[first : last + 1] = 1  # a run, as most are
        else:
            self.counts[blocks] = 1
        return blocks

    def take_one_each(self, after: Sequence[int]) -> list[int]:
        """One fresh block for each of several growing tables, next to its last block if free."""
        uncached = min(len(after), self.pool.uncached_free)
        blocks = [self.pool.take(1, last)[0][0] for last in after[:uncached]]
        if uncached < len(after):
            evicted, _ = self.pool.take(len(after) - uncached)
            self.index.drop(evicted)
            blocks += evicted
        self.counts[blocks] = 1
        return blocks

    def acquire(self, blocks: Blocks) -> None:
        """One hold more covers each of these blocks, all different."""
        ids = np.asarray(blocks, dtype=np.int64)
        before = self.counts[ids]
        self.counts[ids] = acquired(before, 1)
        free = ids[before == 0]
        if free.size:
            self.pool.remove(free)

    # --- letting go -----------------------------------------------------------------------------

    def release(self, blocks: npt.NDArray[np.int32]) -> None:
        """One hold, which covers these blocks in the order of its table, ends.

        What becomes free goes back with its tail first: a prefix is worth more than its end.
        """
        after = released(self.counts[blocks], 1)
        self.counts[blocks] = after
        self._free(blocks[after == 0][::-1])

    def release_many(self, holds: Sequence[npt.NDArray[np.int32]]) -> None:
        """Several holds end in this order. A block may be covered by more than one of them."""
        if len(holds) == 1:
            self.release(holds[0])
            return
        if not holds:
            return
        # Released one after the other, each with its tail first; a block becomes free with the
        # last hold on it, so of its several places in the list only the last one counts.
        ended = np.concatenate([blocks[::-1] for blocks in holds])
        times = np.bincount(ended, minlength=self.num_blocks)
        self.counts[:] = released(self.counts, times)
        last_first = ended[::-1]
        _, first_seen = np.unique(last_first, return_index=True)
        order = last_first[np.sort(first_seen)][::-1]
        self._free(order[self.counts[order] == 0])

    def _free(self, blocks: npt.NDArray[np.int32]) -> None:
        """Nobody holds these any more; the first of them is to be evicted first."""
        if not blocks.size:
            return
        cached = self.index.cached[blocks]
        if every(cached):
            self.pool.put_cached(blocks)
            return
        self.pool.put_uncached(blocks[~cached])
        self.pool.put_cached(blocks[cached])

    # --- steps ----------------------------------------------------------------------------------

    def hand_over(self, hold: StepHold) -> None:
        """A REQUEST hold becomes a STEP hold: no count changes."""
        self.step_holds[hold.step] = (*self.step_holds.get(hold.step, ()), hold)

    def end_step(self, step: int) -> None:
        """The results of a step are processed: its STEP holds end."""
        holds = self.step_holds.pop(step, None)
        if holds:
            self.release_many([hold.blocks for hold in holds])

    def promised(self) -> int:
        """Blocks that only STEP holds cover: they will be free without anybody letting go."""
        if not self.step_holds:
            return 0
        held = np.concatenate([hold.blocks for holds in self.step_holds.values() for hold in holds])
        times = np.bincount(held, minlength=self.num_blocks)
        return int(np.count_nonzero((times > 0) & (times == self.counts)))

    # --- prefixes -------------------------------------------------------------------------------

    def publish(self, block: int, key: bytes, parent: bytes, tokens: bytes) -> None:
        """The block's content is complete: others can hit it, unless its key has a block."""
        if self.being_written[block] or self.quarantined[block] or self.index.is_cached(block):
            return
        if self.index.publish(block, key, parent, tokens) and self.published is not None:
            self.published.append((key, block))

    def release_and_forget(self, ended: npt.NDArray[np.int32]) -> None:
        """Many holds end, `ended` block by block, and every prefix that no hold keeps is forgotten.

        What a reset does, without putting in order what is forgotten anyway.
        """
        self.counts[:] = released(self.counts, np.bincount(ended, minlength=self.num_blocks))
        free = self.counts == 0
        forgotten = (free & self.index.cached).nonzero()[0]
        if len(forgotten) == len(self.index):
            self.index.clear()
        else:
            self.index.drop(forgotten.tolist())
        self.pool.forget_all(free)

    def drop_cached(self) -> None:
        """Every prefix that no hold keeps is forgotten."""
        dropped = self.pool.drop_cached()
        if len(dropped) == len(self.index):
            self.index.clear()
        else:
            self.index.drop(dropped.tolist())

    # --- transfers ------------------------------------------------------------------------------

    def begin_writing(self, blocks: Iterable[int]) -> None:
        """A load writes these blocks from now on: none of them can be published."""
        for block in blocks:
            self.being_written[block] = 1

    def end_writing(self, blocks: Iterable[int]) -> None:
        """The load has ended."""
        for block in blocks:
            self.being_written[block] = 0

    def quarantine(self, blocks: npt.NDArray[np.int32]) -> None:
        """Nobody can say who touches these blocks: no hit, and never handed out."""
        before = self.quarantined[blocks]
        self.quarantined[blocks] = acquired(before, 1)
        self.quarantined_blocks += int(np.count_nonzero(before == 0))
        self.index.drop(blocks.tolist())

    def end_quarantine(self, blocks: npt.NDArray[np.int32]) -> None:
        """The confirmation came after all; the hold on them ends next."""
        after = released(self.quarantined[blocks], 1)
        self.quarantined[blocks] = after
        self.quarantined_blocks -= int(np.count_nonzero(after == 0))
