"""When transfers start, are heard of and are given up; the lifecycle decides what that does.

One `tick` between two steps: signals first, because they free blocks and requests; then leases,
so that a lost signal cannot keep a hold for ever; then loads that nobody waits for any more; then
stores, which take what is left. A connector that raises is treated as one that does not answer:
the leases see to the rest.
"""

from __future__ import annotations

import heapq
import logging
import operator
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ...statemachine.policy import may_load
from ...statemachine.states import (
    BEGIN,
    CANCEL,
    CANCELLING,
    FAIL,
    FENCE,
    GIVE_UP,
    LAND,
    LEASE_OVER,
    LOAD,
)
from ..arguments import ends_the_program
from ..columns import Blocks
from ..outcome import Outcome
from ..protocols import Connector, SignalKind, TouchedConnector, TransferSignal
from ..transfer_events import TransferEvents
from ..transfer_records import TransferRecord

_log = logging.getLogger(__name__)

#: Blocks in one store: its hold ends when the last of them is copied, so not too many.
STORE_BLOCKS = 32
#: At most this part of the pool is held by stores: what they hold cannot be handed out.
STORE_SHARE = 4

_EVENTS = {
    SignalKind.LANDED: LAND,
    SignalKind.FAILED: FAIL,
    SignalKind.FENCED: FENCE,
    SignalKind.UNCONFIRMED: GIVE_UP,
}

#: Leases of transfers that have ended, before they are left out.
_SPARE_LEASES = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RemotePrefix:
    """A part of a request's prefix that is not on the device and need not be computed."""

    transfer: int  # the load under way that brings it, 0: one has to start
    blocks: tuple[int, ...] = ()  # of the load that is joined
    keys: tuple[bytes, ...] = ()  # of the load that is to start

    @property
    def length(self) -> int:
        """Its blocks."""
        return len(self.blocks) + len(self.keys)


class TransferManager:
    """The engine's dealings with one connector. Used by the engine's loop thread only."""

    def __init__(
        self,
        lifecycle: TransferEvents,
        connector: Connector,
        bytes_per_block: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.connector = connector
        self.loaded_bytes = 0
        self.stored_bytes = 0
        #: Transfers that came into quarantine, since the start: an alarm, not a rate.
        self.quarantines = 0
        #: Calls of the connector that raised, by name.
        self.errors: Counter[str] = Counter()
        self._lifecycle = lifecycle
        self._config = lifecycle.config
        self._bytes_per_block = bytes_per_block
        self._clock = clock
        #: (time, transfer): when its lease, or the one of its cancel, is over.
        self._leases: list[tuple[float, int]] = []
        self._touch = connector.touch if isinstance(connector, TouchedConnector) else None
        #: Published blocks that the tier may lack: block -> key, the oldest first.
        self._to_store: OrderedDict[int, bytes] = OrderedDict()
        lifecycle.note_published()

    # --- for the scheduler ----------------------------------------------------------------------

    def remote_prefix(self, row: int, hits: int) -> RemotePrefix | None:
        """What a tier, or a load under way, has of a request's prefix behind `hits` blocks.

        Reads only. None for a request that holds blocks: its table may end within a block.
        """
        lifecycle = self._lifecycle
        view = lifecycle.view
        if view.covered[row] or not may_load(int(view.loads_failed[row]), self._config.loads_limit):
            return None
        # The last token is never loaded: a step has to compute one to sample the next.
        most = (lifecycle.length(row) - 1) // lifecycle.block_size
        if most <= hits:
            return None
        number, shared = lifecycle.joinable_load(row, hits)
        if number:
            return RemotePrefix(number, blocks=tuple(shared))
        keys = lifecycle.keys(row, most)[hits:most]
        found = self._lookup(keys)
        return RemotePrefix(0, keys=tuple(keys[:found])) if found > 0 else None

    def admit(self, row: int, hits: Blocks, remote: RemotePrefix, reserve: int) -> Outcome:
        """Let a request wait for its remote prefix. `reserve`: blocks to run afterwards.

        Should the connector refuse, the load has failed by the time this returns.
        """
        number, shared = remote.transfer, list(remote.blocks)
        if not number:
            # An earlier request of the same plan may have started this very load.
            number, joined = self._lifecycle.joinable_load(row, len(hits))
            shared = joined[: remote.length]
        if number:
            reserve += remote.length - len(shared)
            return self._lifecycle.admit_joining(row, hits, number, shared, reserve)
        outcome, number = self._lifecycle.admit_loading(row, hits, remote.keys, reserve)
        if outcome.went:
            self._begin(self._lifecycle.transfers[number])
        return outcome

    def keep_stored(self, row: int, hits: Sequence[int]) -> None:
        """A request hits these device blocks: what the tier has forgotten of them is stored again.

        Otherwise a prefix that is hot on the device would be lost in the tier, and with its
        eviction altogether.
        """
        keys = self._lifecycle.keys(row, len(hits))[: len(hits)]
        stored = self._wanted(keys)
        self._to_store.update(zip(hits[stored:], keys[stored:], strict=True))

    # --- for the engine's loop ------------------------------------------------------------------

    def tick(self) -> None:
        """Everything that is due. Never blocks."""
        self.hear()
        self.end_leases()
        self.cancel_unwaited()
        self.store()

    def hear(self) -> None:
        """What the connector says goes to the lifecycle, in its order."""
        said: list[Any] = []
        # Read into a list: what is said before it raises is heard.
        self._ask("poll", lambda: said.extend(self.connector.poll()), None)
        for signal in said:
            try:
                heard = _checked(signal)
            except BaseException as error:
                self._failed("signal", error)
            else:
                self._hear(heard)

    def end_leases(self) -> None:
        """Cancel what has taken too long; give up what was cancelled and is not answered."""
        now = self._clock()
        while self._leases and self._leases[0][0] <= now:
            _, number = heapq.heappop(self._leases)
            record = self._lifecycle.transfers.get(number)
            if record is None or not record.open:
                continue
            if record.state == CANCELLING:
                self._give_up(record)
            else:
                self._lifecycle.transfer(number, LEASE_OVER, expired=True)
                self._cancelled(record)

    def cancel_unwaited(self) -> None:
        """A load that nobody waits for any more only delays resets."""
        for number in self._lifecycle.take_unwaited():
            self.cancel(number)

    def cancel(self, number: int) -> None:
        """Ask for a transfer's early end; its hold stays until the end is known."""
        record = self._lifecycle.transfers.get(number)
        if record is not None and record.joinable:
            self._lifecycle.transfer(number, CANCEL)
            self._cancelled(record)

    def store(self) -> None:
        """Start stores of what was published, as far as the tier lacks it and the pool allows."""
        self._note_published()
        if not self._to_store:
            return
        lifecycle = self._lifecycle
        room = max(1, lifecycle.config.num_blocks // STORE_SHARE) - lifecycle.storing
        if room <= 0 or not lifecycle.starts_stores():
            return  # paused, asleep, or a reset is pending: later, and without a look at the tier
        while room > 0 and self._to_store:
            batch = self._next_batch(min(room, STORE_BLOCKS))
            if not batch:
                return
            keys = [key for _, key in batch]
            number = lifecycle.start_store(keys, [block for block, _ in batch])
            if not number:  # too few blocks are free
                self._put_back(batch)
                return
            self._begin(lifecycle.transfers[number])
            room -= len(batch)

    def reset_tier(self) -> bool:
        """Clear the connector's tier. False, and the tier unchanged, when it cannot."""
        return self._ask("reset", lambda: bool(self.connector.reset()), False)

    @property
    def waiting_to_store(self) -> int:
        """Published blocks for which no store has started yet, though the tier may lack them."""
        return len(self._to_store) + self._lifecycle.published

    def next_lease(self) -> float | None:
        """When the next lease is over, for a loop that has nothing else to wait for."""
        return self._leases[0][0] if self._leases else None

    def close(self) -> None:
        """Stop the connector's workers."""
        self.connector.close()

    # --- in between -----------------------------------------------------------------------------

    def _begin(self, record: TransferRecord) -> None:
        """Hand a queued transfer to the connector; what cannot be handed over never began."""
        connector = self.connector
        start = connector.start_load if record.kind == LOAD else connector.start_store
        try:
            start(record.number, record.keys, record.blocks)
        except BaseException as error:
            self._failed("start", error)
            self._lifecycle.transfer(record.number, CANCEL)
            return
        self._lifecycle.transfer(record.number, BEGIN)
        self._lease(record.number, self._config.transfer_lease)

    def _lease(self, number: int, seconds: float) -> None:
        heapq.heappush(self._leases, (self._clock() + seconds, number))
        if len(self._leases) > 2 * self._lifecycle.open_count + _SPARE_LEASES:
            # Most are of transfers that have ended: a lease may be as long as it likes.
            known = {record.number for record in self._lifecycle.open_transfers()}
            self._leases = [lease for lease in self._leases if lease[1] in known]
            heapq.heapify(self._leases)

    def _cancelled(self, record: TransferRecord) -> None:
        """The declaration says that its worker is asked to stop: ask it."""
        if record.state != CANCELLING:
            return
        self._lease(record.number, self._config.cancel_lease)
        self._ask("cancel", lambda: self.connector.cancel(record.number), None)

    def _hear(self, signal: TransferSignal) -> None:
        record = self._lifecycle.transfers.get(signal.transfer)
        if record is not None and signal.kind is SignalKind.UNCONFIRMED:
            self._give_up(record)
            return
        most = 0 if record is None else len(record.blocks)
        valid_blocks = min(max(signal.valid_blocks, 0), most)
        outcome = self._lifecycle.transfer(
            signal.transfer, _EVENTS[signal.kind], valid_blocks=valid_blocks
        )
        if record is None or not outcome.went:
            return
        copied, is_load = 0, record.kind == LOAD
        if signal.kind is SignalKind.LANDED:
            copied = len(record.blocks)
        elif signal.kind is SignalKind.FAILED and is_load:
            copied = valid_blocks
        if is_load:
            self.loaded_bytes += copied * self._bytes_per_block
        else:
            self.stored_bytes += copied * self._bytes_per_block

    def _give_up(self, record: TransferRecord) -> None:
        outcome = self._lifecycle.transfer(record.number, GIVE_UP)
        if outcome.went:
            self.quarantines += 1
            _log.warning(
                "transfer %d is in quarantine with %d blocks: nobody can say whether they are "
                "still touched",
                record.number,
                len(record.blocks),
            )

    def _note_published(self) -> None:
        for key, block in self._lifecycle.take_published():
            self._to_store[block] = key

    def _next_batch(self, most: int) -> list[tuple[int, bytes]]:
        """The oldest published blocks that the tier lacks, at most that many, off the list."""
        index = self._lifecycle.ledger.index
        batch: list[tuple[int, bytes]] = []
        while self._to_store and len(batch) < most:
            block, key = self._to_store.popitem(last=False)
            if index.key_of(block) == key and not self._in_tier(key):
                batch.append((block, key))
        return batch

    def _put_back(self, batch: Sequence[tuple[int, bytes]]) -> None:
        """They could not be stored yet: they are the oldest again."""
        for block, key in reversed(batch):
            self._to_store[block] = key
            self._to_store.move_to_end(block, last=False)

    def _in_tier(self, key: bytes) -> bool:
        return self._wanted((key,)) > 0

    def _wanted(self, keys: Sequence[bytes]) -> int:
        """How many leading keys the tier has: what is in use on the device, it keeps longer."""
        found = self._lookup(keys)
        if found > 0 and self._touch is not None:
            touch = self._touch
            self._ask("touch", lambda: touch(keys[:found]), None)
        return found

    def _lookup(self, keys: Sequence[bytes]) -> int:
        """How many leading keys the tier has: none when its answer is no such number."""
        found = self._ask("lookup", lambda: operator.index(self.connector.lookup(keys)), 0)
        return min(max(found, 0), len(keys))

    def _ask(self, name: str, call: Callable[[], T], otherwise: T) -> T:
        try:
            return call()
        except BaseException as error:
            self._failed(name, error)
            return otherwise

    def _failed(self, call: str, error: BaseException) -> None:
        """A connector that is down is reported the 1st, 2nd, 4th, 8th, … time.

        Its asyncio.CancelledError, say, is no Exception and its own fault as well.
        """
        if ends_the_program(error):
            raise error
        self.errors[call] += 1
        count = self.errors[call]
        if count & (count - 1) == 0:
            _log.exception("the connector's %s has failed %d times", call, count)


def _checked(signal: Any) -> TransferSignal:
    """A connector's word, if it is one. Raises TypeError: the transfer's lease sees to the rest."""
    if not isinstance(signal, TransferSignal) or not isinstance(signal.kind, SignalKind):
        raise TypeError(f"{signal!r} is no TransferSignal with a SignalKind")
    number, valid = operator.index(signal.transfer), operator.index(signal.valid_blocks)
    if isinstance(signal.transfer, bool) or number >> 63:
        raise TypeError(f"{signal!r} has no number that a transfer can have")
    return TransferSignal(number, signal.kind, valid)
