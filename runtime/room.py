"""How much room a plan has: the pool's counts, with what the plan would take and let go.

Nothing is changed while a plan is made, so what it takes and gives is kept here as differences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..statemachine.lanes import in_flight
from ..statemachine.policy import enough
from .lifecycle import Lifecycle


class Room:
    """Free blocks beyond what is reserved, and blocks that STEP holds will give back."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self.free = lifecycle.free_for()
        self.promised = 0
        #: block -> holds that the plan, or a launched step's end, takes away from its count
        self._less: dict[int, int] = {}
        #: Blocks that a launched step still touches: free only when it is processed.
        self._late: set[int] = set()
        self._looked_at_steps = False
        self._fresh = 0  # taken for new content by the plan's admissions
        self._evicted: set[int] = set()

    def copy(self) -> Room:
        """The same room, to try something out."""
        twin = object.__new__(Room)
        twin.__dict__.update(self.__dict__)
        twin._less = dict(self._less)
        twin._late = set(self._late)
        twin._evicted = set(self._evicted)
        return twin

    # --- taking ---------------------------------------------------------------------------------

    def surviving(self, hits: Sequence[int]) -> Sequence[int]:
        """The leading hits that the plan's earlier admissions do not evict."""
        if self._evicted:
            for place, block in enumerate(hits):
                if block in self._evicted:
                    return hits[:place]
        return hits

    def fresh(self, hits: Iterable[int], new: int) -> int:
        """How many blocks leave the free pool for these hits and that many new ones."""
        counts = self._lifecycle.ledger.counts
        less = self._less
        if less:
            return new + sum(bool(counts[block] == less.get(block, 0)) for block in hits)
        return new + sum(not counts[block] for block in hits)

    def take(self, hits: Sequence[int], new: int, reserve: int = 0) -> None:
        """An admission takes them; `fresh` of them were free, `reserve` more are promised."""
        self.free -= self.fresh(hits, new) + reserve
        for block in hits:
            self._less[block] = self._less.get(block, 0) - 1
        self._fresh += new
        short = self._fresh - self._lifecycle.ledger.pool.uncached_free
        if short > len(self._evicted):
            for block in self._lifecycle.ledger.pool.eviction_order():
                if len(self._evicted) >= short:
                    break
                if not self._less.get(block):
                    self._evicted.add(block)

    # --- letting go -----------------------------------------------------------------------------

    def look_at_steps(self) -> None:
        """Count what STEP holds will give back; done once, when room is short."""
        if self._looked_at_steps:
            return
        self._looked_at_steps = True
        for holds in self._lifecycle.ledger.step_holds.values():
            for hold in holds:
                self._release(hold.blocks.tolist(), late=True)

    def let_go(self, row: int) -> None:
        """The request in `row` would let go of its blocks and of what is reserved for it."""
        self.look_at_steps()
        lifecycle = self._lifecycle
        newest = int(lifecycle.view.newest_step[row])
        self.free += int(lifecycle.view.reserved[row])
        late = bool(in_flight(newest, lifecycle.processed))
        self._release(lifecycle.table(row).tolist(), late)

    def enough(self, needed: int) -> bool:
        """Whether no further victim is needed."""
        return bool(enough(self.free, self.promised, needed))

    def _release(self, blocks: list[int], late: bool) -> None:
        counts, less = self._lifecycle.ledger.counts, self._less
        for block in blocks:
            gone = less.get(block, 0) + 1
            less[block] = gone
            if late:
                self._late.add(block)
            if gone == counts[block]:
                if block in self._late:
                    self.promised += 1
                else:
                    self.free += 1
