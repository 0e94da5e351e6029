"""Array code against the declaration's block functions: a bulk change, repeated pair by pair.

Used in check mode (`EngineConfig.check`). What the counts, the pool and the index do for many
blocks at once, the functions of `statemachine.blocks` repeat for one pair of hold and block after
the other. They begin with records made of the arrays as they were, and must end with the arrays as
they are now. A hold's command is given to every block, also to those that the hold does not cover;
of the latter, blocks with the same facts are one case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..statemachine.blocks import (
    HeldFacts,
    drop,
    may_hand_out,
    may_hit,
    publish,
    request_command,
    step_processed,
    transfer_command,
)
from ..statemachine.facts import BlockFacts
from .columns import Blocks, Int64Array

if TYPE_CHECKING:
    from .holds import BlockLedger

#: The first bits of a block's facts in one int: being written (bit 0), cached, how many quarantines
#: it is in, its count.
_CACHED, _QUARANTINED, _COUNT = 1, 2, 22
_QUARANTINES = (1 << (_COUNT - _QUARANTINED)) - 1

#: Gives the command to one pair: (block, or -1 for any block outside the hold; both records, which
#: it changes).
Pair = Callable[[int, HeldFacts, BlockFacts], None]


class BlockReplay:
    """The facts of all blocks before a bulk change, and what the declaration makes of them.

    Made before the change. Each method repeats one kind of change; `compare` comes last. All raise
    AssertionError where the array code and the declaration differ.
    """

    def __init__(self, ledger: BlockLedger) -> None:
        self._ledger = ledger
        self._expected = _packed(ledger)

    # --- what is repeated -----------------------------------------------------------------------

    def request(
        self,
        commands: int,
        before: Blocks,
        after: Blocks,
        *,
        hits: Blocks = (),
        fresh: Blocks = (),
        handed_over: Blocks = (),
        step: int = 0,
    ) -> None:
        """A request's hold `commands` (bits) turned the block table `before` into `after`.

        TAKE names every block that the table is to have; a pair that exists is not taken again.
        `hits` and `fresh` say where the new blocks came from: the prefix index, the pool.
        `handed_over` is what the STEP hold of `step` was given.
        """
        was, kept = set(_ids(before)), set(_ids(after))
        shared, new = set(_ids(hits)), set(_ids(fresh))
        held: set[int] = set()
        by_step: set[int] = set()

        def pair(block: int, h: HeldFacts, b: BlockFacts) -> None:
            h.by_request = block in was
            assert block not in new or may_hand_out(b), f"block {block} is handed out: {b}"
            assert block not in shared or may_hit(b), f"block {block} is no hit: {b}"
            request_command(commands, block in kept, block in new, block in kept, step, h, b)
            if h.by_request:
                held.add(block)
            if h.by_step:
                assert h.step == step
                by_step.add(block)

        self._tell(pair, was | kept)
        assert held == kept, f"the table has {sorted(kept)}, the declaration says {sorted(held)}"
        given = set(_ids(handed_over))
        assert by_step == given, f"a STEP hold has {sorted(given)}, not {sorted(by_step)}"

    def transfer(
        self, commands: int, blocks: Blocks, *, writes: bool, held: bool, quarantined: bool
    ) -> bool:
        """A transfer's hold `commands` (bits). Returns whether it has its hold now.

        `writes`: it is a load. `held`, `quarantined`: its hold as it was before the commands.
        """
        carried = set(_ids(blocks))
        has: set[int] = set()

        def pair(block: int, h: HeldFacts, b: BlockFacts) -> None:
            mine = block in carried
            h.by_transfer = mine and held
            h.in_quarantine = mine and quarantined
            transfer_command(commands, mine, writes, h, b)
            if h.by_transfer:
                has.add(block)

        self._tell(pair, carried)
        assert has in (carried, set()), f"a transfer holds only {sorted(has)} of its blocks"
        return bool(has)

    def processed(
        self, step: int, holds: Iterable[tuple[int, Blocks]], left: Iterable[tuple[int, Blocks]]
    ) -> None:
        """A step is processed. STEP holds, each with its step: `holds` before, `left` after it."""
        expected: list[tuple[int, set[int]]] = []
        for of_step, blocks in holds:
            held: set[int] = set()
            covered = set(_ids(blocks))

            def pair(
                block: int,
                h: HeldFacts,
                b: BlockFacts,
                of_step: int = of_step,
                covered: set[int] = covered,
                held: set[int] = held,
            ) -> None:
                h.by_step = block in covered
                h.step = of_step if h.by_step else 0
                step_processed(step, h, b)
                if h.by_step:
                    held.add(block)

            self._tell(pair, covered)
            if held:
                expected.append((of_step, held))
        found = [(of_step, set(_ids(blocks))) for of_step, blocks in left]
        assert found == expected, f"STEP holds are left: {found}, the declaration says {expected}"

    def published(self, block: int, place: int, *, taken: bool) -> None:
        """A block's content is complete, and is published.

        `place`: its index in the block table. `taken`: another block is the hit for its key.
        """
        if not taken:
            self._tell(lambda _, h, b: publish(b, place + 1), (block,), others=False)

    def dropped(self) -> None:
        """Every cached prefix whose block has no hold is dropped."""
        self._tell(lambda _, h, b: drop(b), ())

    def compare(self, what: str) -> None:
        """The arrays must now hold what the functions arrived at. `what` begins the message."""
        found = _packed(self._ledger)
        wrong = np.flatnonzero(found != self._expected)
        if wrong.size:
            block = int(wrong[0])
            raise AssertionError(
                f"{what}: block {block} is {_record(int(found[block]))}, "
                f"the declaration says {_record(int(self._expected[block]))}"
            )

    # --- pair by pair ---------------------------------------------------------------------------

    def _tell(self, pair: Pair, inside: Iterable[int], *, others: bool = True) -> None:
        expected = self._expected
        named = sorted(inside)
        for block in named:
            expected[block] = _after(pair, block, int(expected[block]))
        if not others:
            return
        outside = np.ones(len(expected), dtype=np.bool_)
        outside[named] = False
        before = expected.copy()
        for facts in np.unique(before[outside]).tolist():
            after = _after(pair, -1, facts)
            if after != facts:
                expected[outside & (before == facts)] = after


def step_holds_of(ledger: BlockLedger) -> Iterator[tuple[int, Blocks]]:
    """Every STEP hold, with its step."""
    for step, holds in ledger.step_holds.items():
        for hold in holds:
            yield step, hold.blocks


def _after(pair: Pair, block: int, facts: int) -> int:
    record = _record(facts)
    pair(block, HeldFacts(), record)
    return (
        (int(record.count) << _COUNT)
        | (int(record.quarantined) << _QUARANTINED)
        | (int(record.cached) << _CACHED)
        | int(record.being_written)
    )


def _record(facts: int) -> BlockFacts:
    return BlockFacts(
        count=facts >> _COUNT,
        quarantined=(facts >> _QUARANTINED) & _QUARANTINES,
        cached=bool((facts >> _CACHED) & 1),
        being_written=bool(facts & 1),
    )


def _packed(ledger: BlockLedger) -> Int64Array:
    writing = np.frombuffer(ledger.being_written, dtype=np.uint8).astype(np.int64)
    cached = ledger.index.cached.astype(np.int64)
    packed: Int64Array = (
        (ledger.counts << _COUNT) | (ledger.quarantined << _QUARANTINED) | (cached << _CACHED)
    ) | writing
    return packed


def _ids(blocks: Blocks) -> list[int]:
    return blocks.tolist() if isinstance(blocks, np.ndarray) else list(blocks)
