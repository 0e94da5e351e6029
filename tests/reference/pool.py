"""Blocks and who holds them: every count is changed by the declaration's block functions alone.

Free blocks, hits and quarantine are read from the blocks' facts each time; there is no free list
and no index that could say otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from kvproof.specs.fuzz.fake_kv import FakeKV
from kvproof.statemachine import BlockFacts, blocks
from kvproof.statemachine.answers import TAKE
from kvproof.statemachine.blocks import HeldFacts

#: Who holds: a request's id or a transfer's number.
Owner = str | int
#: What the slots of one block stand for: prefix numbers of the fake KV, position by position.
Slots = tuple[int, ...]


class Pool:
    """The device's blocks. `order` is the order in which they were let go, that of eviction."""

    def __init__(self, kv: FakeKV, size: int) -> None:
        self.kv = kv
        self.facts = [BlockFacts() for _ in range(size)]
        self.held: dict[tuple[Owner, int], HeldFacts] = {}
        self.slots: dict[int, Slots] = {}  # prefix of a whole block -> its slots
        self.order = list(range(size))

    # --- looking ---------------------------------------------------------------------------------

    def free(self) -> list[int]:
        """The blocks that can be handed out, the next to evict first."""
        return [b for b in self.order if blocks.may_hand_out(self.facts[b])]

    def hits(self, wanted: Sequence[Slots]) -> list[int]:
        """The blocks of the longest leading part of `wanted` that is on the device."""
        found = []
        for slots in wanted:
            here = [b for b in range(len(self.facts)) if self.stands_for(b) == slots]
            if not here:
                break
            found.append(here[0])
        return found

    def stands_for(self, block: int) -> Slots | None:
        """What another request may hit the block for; None if it may not."""
        facts = self.facts[block]
        return self.slots[facts.hashed_as] if blocks.may_hit(facts) else None

    def promised(self) -> int:
        """How many blocks launched steps alone keep from the pool: they come back by themselves."""
        held_by_steps = [
            sum(h.by_step for (_, block), h in self.held.items() if block == b)
            for b in range(len(self.facts))
        ]
        return sum(
            0 < facts.count == by_steps
            for facts, by_steps in zip(self.facts, held_by_steps, strict=True)
        )

    def quarantined(self) -> int:
        """How many blocks are out of the pool because nobody can say who touches them."""
        return sum(facts.quarantined > 0 for facts in self.facts)

    def holds(self) -> Iterator[tuple[str, Owner, list[int]]]:
        """Every hold: its kind, its owner, its blocks. A STEP hold is its request's."""
        for kind, covers in (
            ("REQUEST", lambda h: h.by_request),
            ("STEP", lambda h: h.by_step),
            ("TRANSFER", lambda h: h.by_transfer),
        ):
            owners = dict.fromkeys(owner for (owner, _), h in self.held.items() if covers(h))
            for owner in owners:
                yield (
                    kind,
                    owner,
                    [b for (o, b), h in self.held.items() if o == owner and covers(h)],
                )

    def idle(self, owner: Owner) -> bool:
        """Whether no hold of this owner is left."""
        return not any(owner == holder for _, holder, _ in self.holds())

    # --- hold commands ---------------------------------------------------------------------------

    def request_holds(
        self,
        commands: int,
        owner: Owner,
        table: Sequence[int],
        taken: Sequence[int],
        fresh: Collection[int],
        kept: int,
        newest_step: int,
    ) -> list[int]:
        """Carry out a request's hold commands; returns its table afterwards."""
        if commands & TAKE:
            table = [*table, *taken]
        # Tails first: what follows on a shared prefix is evicted before it.
        for position, block in reversed(list(enumerate(table))):
            held = self._held(owner, block)
            was_free = blocks.may_hand_out(self.facts[block])
            blocks.request_command(
                commands,
                block in taken,
                block in fresh,
                position < kept,
                newest_step,
                held,
                self.facts[block],
            )
            self._let_go(block, was_free)
        return [block for block in table if self._held(owner, block).by_request]

    def transfer_holds(
        self, commands: int, owner: Owner, covered: Sequence[int], writes: bool
    ) -> None:
        """Carry out a transfer's hold commands on its blocks."""
        for block in reversed(covered):
            was_free = blocks.may_hand_out(self.facts[block])
            held = self._held(owner, block)
            blocks.transfer_command(commands, True, writes, held, self.facts[block])
            self._let_go(block, was_free)

    def step_processed(self, step: int) -> None:
        """The STEP holds of this step end."""
        for (_, block), held in list(self.held.items()):
            was_free = blocks.may_hand_out(self.facts[block])
            blocks.step_processed(step, held, self.facts[block])
            self._let_go(block, was_free)

    # --- contents --------------------------------------------------------------------------------

    def publish(self, block: int, slots: Slots) -> None:
        """The block becomes a hit for `slots`."""
        content = self.kv.content(block)
        blocks.fill(self.facts[block], 0 if 0 in content else content[-1])
        blocks.publish(self.facts[block], slots[-1])
        self.slots[slots[-1]] = slots

    def drop_prefixes(self) -> None:
        """No block is a hit any more, but for those with a hold."""
        for facts in self.facts:
            blocks.drop(facts)

    # --- own -------------------------------------------------------------------------------------

    def _held(self, owner: Owner, block: int) -> HeldFacts:
        return self.held.setdefault((owner, block), HeldFacts())

    def _let_go(self, block: int, was_free: bool) -> None:
        """A block that has just become free is the last to be evicted."""
        if not was_free and blocks.may_hand_out(self.facts[block]):
            self.order.remove(block)
            self.order.append(block)

    def check(self) -> None:
        """Recompute every count from the holds, every hash from the content. AssertionError."""
        for block, facts in enumerate(self.facts):
            holds = [h for (_, b), h in self.held.items() if b == block]
            covering = sum(h.by_request + h.by_step + h.by_transfer for h in holds)
            assert facts.count == covering, f"block {block} counts {facts.count}, holds {covering}"
            in_quarantine = sum(h.in_quarantine for h in holds)
            assert facts.quarantined == in_quarantine, f"block {block} in quarantine"
            stands_for = self.stands_for(block)
            if stands_for is not None:
                assert not facts.being_written, f"block {block} is a hit and being written"
                assert facts.hashed_as == facts.content_of, f"block {block} has another's hash"
                assert stands_for == self.kv.content(block), f"block {block} holds something else"
