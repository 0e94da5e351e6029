"""What the commands of a request's event do: its hold takes, releases, hands over and publishes.

The declaration returns commands and decides on counts; which blocks they are follows from the
tables. With `check` on, `block_replay.py` repeats each with the declaration's block functions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..statemachine.answers import (
    HAND_OVER,
    MAKE_HITS,
    RELEASE,
    STOP_WAITING,
    TAKE,
    TRIM,
    WAIT,
)
from .block_replay import BlockReplay
from .columns import WRITTEN, Blocks, Int64Array, read_only
from .holds import StepHold
from .state import LifecycleState

Int32Array = npt.NDArray[np.int32]


class HoldCommands(LifecycleState):
    """The commands carried out on tables, ledger and index."""

    #: The blocks that the event asks for: hits or others' first, then so many new ones.
    _hits: Int64Array = np.zeros(0, dtype=np.int64)
    _new: int = 0

    def _carry_out(
        self, row: int, commands: int, covered: int, hashed: int, waited_for: int
    ) -> None:
        """Do the hold commands of an event; `covered` and `hashed` are those before it."""
        r = self._record
        replay = None
        if self._config.check:
            replay, before = BlockReplay(self._ledger), self._tables[row, :covered].tolist()
        if commands & (RELEASE | HAND_OVER):
            blocks = self._tables[row, :covered].copy()
            self._tables[row, :covered] = -1
            if commands & RELEASE:
                self._ledger.release(blocks)
            else:
                self._ledger.hand_over(
                    StepHold(r.newest_step, self._ids[row], read_only(blocks), self._clock())
                )
        elif commands & TRIM:
            cut = self._tables[row, r.covered : covered].copy()
            self._tables[row, r.covered : covered] = -1
            self._ledger.release(cut)
        elif commands & TAKE:
            self._take(row, covered)
        if replay is not None:
            self._compare_blocks(row, replay, commands, before)
        if commands & MAKE_HITS and r.hashed > hashed:
            self._publish(row, hashed, r.hashed)
        if commands & WAIT:
            self._join_transfer(row, r.waits_for)
        if commands & STOP_WAITING:
            self._leave_transfer(row, waited_for)

    def _take(self, row: int, covered: int) -> None:
        """The hold covers the hits and new blocks that the event was asked for."""
        if covered == 0:
            self._held_since[row] = self._clock()
        hits, new = self._hits, self._new
        at = covered
        if self._config.check:
            self._check_hits(row, hits[: self._ask.hits])
        if len(hits):
            self._ledger.acquire(hits)
            self._tables[row, at : at + len(hits)] = hits
            at += len(hits)
        if new:
            last = int(self._tables[row, at - 1]) if at else -1
            self._tables[row, at : at + new] = self._ledger.take_fresh(new, last)

    def _compare_blocks(
        self, row: int, replay: BlockReplay, commands: int, before: list[int]
    ) -> None:
        """Compare what an event's hold commands did with the declaration's block functions.

        `before`: the blocks of the row's table before the event. Raises AssertionError.
        """
        r = self._record
        after = [block for block in self._tables[row, : r.covered].tolist() if block >= 0]
        hits: Blocks = ()
        fresh: list[int] = []
        handed_over: Blocks = ()
        if commands & TAKE:
            hits = self._hits[: self._ask.hits]
            fresh = after[len(after) - self._new :]
        if commands & HAND_OVER:
            given = self._ledger.step_holds.get(r.newest_step)
            handed_over = given[-1].blocks if given else ()
        replay.request(
            commands, before, after, hits=hits, fresh=fresh, handed_over=handed_over,
            step=r.newest_step,
        )  # fmt: skip
        replay.compare(f"the hold of {self._ids[row]!r}")

    def _check_hits(self, row: int, hits: Int64Array) -> None:
        """What an admission calls hits are the published blocks of its own prefix."""
        keys = self._keys(row, len(hits))
        for block, key in zip(hits.tolist(), keys, strict=False):
            assert self._ledger.index.key_of(block) == key, f"block {block} is no hit for {row}"

    def _publish(self, row: int, first: int, end: int) -> None:
        """Blocks `first` to `end` of the request's table become hits."""
        keys = self._keys(row, end)
        width = self._block_size
        tokens = b""
        if self._hasher.compares_tokens:
            tokens = self._tokens[row, first * width : end * width].tobytes()
        table = self._tables[row, first:end].tolist()
        parent = keys[first - 1] if first else self._root(row)
        replay = self._replay_publish(row, table, keys, first) if self._config.check else None
        for number, block in enumerate(table):
            key = keys[first + number]
            start = 4 * number * width
            self._ledger.publish(block, key, parent, tokens[start : start + 4 * width])
            parent = key
        if replay is not None:
            replay.compare(f"what {self._ids[row]!r} publishes")

    def _replay_publish(
        self, row: int, table: list[int], keys: list[bytes], first: int
    ) -> BlockReplay:
        """Publish these blocks by the declaration's function, to be compared afterwards.

        `table`: the blocks from place `first` on. All of them must be written.
        """
        written, end = int(self._facts[WRITTEN, row]), first + len(table)
        assert end * self._block_size <= written, f"{self._ids[row]!r} publishes what is unwritten"
        replay = BlockReplay(self._ledger)
        for place, block in enumerate(table, first):
            other = self._ledger.index.block_of(keys[place])
            replay.published(block, place, taken=other is not None and other != block)
        return replay

    def _append(self, row: int, tokens: Int32Array) -> None:
        """A chunk joins the sequence; the record already counts it."""
        end = self.length(row)
        self._tokens[row, end - len(tokens) : end] = tokens

    def forget_prefixes(self) -> None:
        """Drop every cached prefix whose block has no hold."""
        replay = BlockReplay(self._ledger) if self._config.check else None
        self._ledger.drop_cached()
        if replay is not None:
            replay.dropped()
            replay.compare("what is forgotten")

    def _new_epoch(self) -> None:
        """The weights are others: every key, in every tier, starts from another root."""
        self.forget_prefixes()
        for row in self._row_of.values():
            self._chains[row] = None

    def _join_transfer(self, row: int, transfer: int) -> None:
        raise NotImplementedError

    def _leave_transfer(self, row: int, transfer: int) -> None:
        raise NotImplementedError
