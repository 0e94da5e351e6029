"""How much room a plan has: the pool's counts, with what the plan would take and let go.

Nothing is changed while a plan is made, so what it takes and gives is kept here as differences.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from ..statemachine.lanes import in_flight
from ..statemachine.policy import enough
from .columns import Int64Array
from .lifecycle import Lifecycle


class Room:
    """Free blocks beyond what is reserved, and blocks that STEP holds will give back."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._counts = lifecycle.view.counts
        self.free = lifecycle.free_for()
        self.promised = 0
        #: By block: holds that the plan, or a launched step's end, takes away from its count.
        #: Made when the first one does: most plans need it not.
        self._less: Int64Array | None = None
        #: Blocks that a launched step still touches: free only when it is processed.
        self._late: npt.NDArray[np.bool_] | None = None
        self._looked_at_steps = False
        self._fresh = 0  # taken for new content by the plan's admissions
        #: Blocks that are let go and still hits: the plan lets go first, so they are free by the
        #: time of its admissions, and evicted after those that are free already.
        self._released: list[int] = []
        self._released_uncached = 0
        self._evicted: set[int] = set()
        self._eviction: Iterator[int] | None = None

    def copy(self) -> Room:
        """The same room, to try something out."""
        twin = object.__new__(Room)
        twin.__dict__.update(self.__dict__)
        twin._less = None if self._less is None else self._less.copy()
        twin._late = None if self._late is None else self._late.copy()
        twin._released = list(self._released)
        return twin

    def become(self, other: Room) -> None:
        """What was tried out on a copy is so."""
        self.__dict__.update(other.__dict__)

    # --- taking ---------------------------------------------------------------------------------

    def surviving(self, hits: list[int]) -> list[int]:
        """The leading hits that the plan's earlier admissions do not evict."""
        if self._evicted:
            for place, block in enumerate(hits):
                if block in self._evicted:
                    return hits[:place]
        return hits

    def fresh(self, hits: Int64Array, new: int) -> int:
        """How many blocks leave the free pool for these hits and that many new ones."""
        if not hits.size:
            return new
        counts = self._counts[hits]
        if self._less is not None:
            counts = counts - self._less[hits]
        free: int = counts.tolist().count(0)
        return new + free

    def take(self, hits: Int64Array, new: int, fresh: int, reserve: int = 0) -> None:
        """An admission takes them; `fresh` of them were free, `reserve` more are promised."""
        self.free -= fresh + reserve
        if hits.size:
            self._differences()[hits] -= 1
        self._fresh += new
        uncached = self._lifecycle.ledger.pool.uncached_free + self._released_uncached
        short = self._fresh - uncached
        if short > len(self._evicted):
            self._evict(short)

    def _evict(self, number: int) -> None:
        """So many cached blocks go for the new content, the next to be evicted first."""
        if self._eviction is None:
            self._eviction = self._lifecycle.ledger.pool.eviction_order()
        less = self._differences()
        for block in itertools.chain(self._eviction, self._released):
            # Unless an earlier admission has hit it.
            if less[block] == self._counts[block] and block not in self._evicted:
                self._evicted.add(block)
                if len(self._evicted) >= number:
                    return

    def _differences(self) -> Int64Array:
        if self._less is None:
            self._less = np.zeros(len(self._counts), dtype=np.int64)
        return self._less

    # --- letting go -----------------------------------------------------------------------------

    def look_at_steps(self) -> None:
        """Count what STEP holds will give back; done once, when room is short."""
        if self._looked_at_steps:
            return
        self._looked_at_steps = True
        for holds in self._lifecycle.ledger.step_holds.values():
            for hold in holds:
                self._release(hold.blocks, late=True)

    def let_go(self, row: int) -> None:
        """The request in `row` would let go of its blocks and of what is reserved for it."""
        self.look_at_steps()
        lifecycle = self._lifecycle
        newest = int(lifecycle.view.newest_step[row])
        self.free += int(lifecycle.view.reserved[row])
        late = bool(in_flight(newest, lifecycle.processed))
        self._release(lifecycle.table(row), late)

    def let_go_of_parked(self, gone: Iterable[int]) -> None:
        """Every parked session would let go, those in the rows `gone` apart, which have.

        To see whether that would be enough, at a price that does not grow with their number: what
        is promised counts as free, and nothing is known of the order of eviction.
        """
        parked = self._lifecycle.parked_blocks
        more = self._lifecycle.parked_holds.copy()
        for row in gone:
            if row in parked:
                more[parked[row]] -= 1
        less = self._differences()
        less += more
        self.free += int(np.count_nonzero((more > 0) & (less == self._counts)))

    def enough(self, needed: int) -> bool:
        """Whether no further victim is needed."""
        return bool(enough(self.free, self.promised, needed))

    def _release(self, blocks: npt.NDArray[np.int32], late: bool) -> None:
        less = self._differences()
        if self._late is None:
            self._late = np.zeros(len(self._counts), dtype=np.bool_)
        less[blocks] += 1
        if late:
            self._late[blocks] = True
        gone = blocks[less[blocks] == self._counts[blocks]]
        late_ones = self._late[gone]
        self.promised += int(np.count_nonzero(late_ones))
        now = gone[~late_ones]
        self.free += now.size
        cached = self._lifecycle.ledger.index.cached[now]
        self._released += now[cached][::-1].tolist()  # tails first
        self._released_uncached += now.size - int(np.count_nonzero(cached))
