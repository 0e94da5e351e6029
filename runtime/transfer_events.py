"""The lifecycle's side of transfers: their records, holds, waiters and quarantine.

What a transfer does to blocks and requests is decided here, by the declaration's transfer table;
when one is started, polled, leased or cancelled is the transfer manager's business
(`runtime/transfers/`), which calls:

    admit_loading / admit_joining   a request starts a load of its prefix, or joins one
    start_store                     published blocks are copied out
    transfer(number, event, …)      BEGIN, LAND, FAIL, CANCEL, FENCE, GIVE_UP, LEASE_OVER
    take_unwaited()                 loads that nobody waits for any more, to be cancelled
    transfers, open_transfers()     the records, read-only

Ending a transfer and telling its waiters is one action: no request ever waits for a transfer that
has ended. The last records that ended are kept: what becomes of a signal that comes late or twice
is the declaration's decision too, and so it is for a number that nobody knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..statemachine.answers import (
    ANSWER_MASK,
    COMMAND_MASK,
    GO,
    IGNORE,
    QUARANTINE,
    REJECT,
    RELEASE,
    TAKE,
)
from ..statemachine.facts import TransferAsk, TransferFacts
from ..statemachine.policy import cancel_unwaited
from ..statemachine.states import (
    ABSENT,
    ADMIT_REMOTE,
    BEGIN,
    CANCEL,
    FAIL,
    FAILED,
    FENCE,
    FENCED,
    GIVE_UP,
    JOIN,
    LAND,
    LANDED,
    LEASE_OVER,
    LEAVE,
    LOAD,
    QUARANTINED,
    RETIRE,
    START,
    STORE,
    TRANSFER_FAILED,
    TRANSFER_LANDED,
    TransferEvent,
    TransferState,
)
from ..statemachine.transfer import TRANSFER
from .block_replay import BlockReplay
from .columns import COVERED, Blocks
from .events import RequestEvents
from .outcome import Fired, Outcome, make_blank
from .refusals import integers, is_count, refused_request, refused_store, refused_transfer
from .transfer_records import TransferRecord, unknown_transfer

Int32Array = npt.NDArray[np.int32]

_blank_transfer = make_blank(TransferAsk)
_DISPATCH = TRANSFER.dispatch
_WIDTH = TRANSFER.width

#: What a client may cause: requests that come to wait for a transfer, or no longer do.
_BY_CLIENTS = (JOIN, LEAVE, CANCEL)
#: What connectors and leases may tell of a transfer; the rest follows from its requests.
SIGNALS = (BEGIN, LAND, FAIL, CANCEL, FENCE, GIVE_UP, LEASE_OVER)

#: How many records of transfers that have ended are kept.
ENDED_KEPT = 64


class TransferEvents(RequestEvents):
    """The transfer machine, and the request events that belong to it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._transfers: dict[int, TransferRecord] = {}
        self._transfer_numbers = 0
        #: Those that have not ended, and the blocks of the stores among them.
        self._open: dict[int, TransferRecord] = {}
        self._storing = 0
        self._unwaited: list[int] = []
        #: key -> (transfer, its block): prefixes that are being loaded and can be joined.
        self._loading: dict[bytes, tuple[int, int]] = {}
        #: Whether a request whose load failed is failed as well, instead of recomputing.
        self._failure_is_fatal = self._config.load_failure_policy == "fail"
        self._ended: dict[int, TransferRecord] = {}

    # --- reading --------------------------------------------------------------------------------

    @property
    def transfers(self) -> Mapping[int, TransferRecord]:
        """Every transfer whose hold has not ended, by number."""
        return MappingProxyType(self._transfers)

    @property
    def ended_transfers(self) -> Mapping[int, TransferRecord]:
        """The last that have ended, the oldest first."""
        return MappingProxyType(self._ended)

    def open_transfers(self) -> list[TransferRecord]:
        """Those that have not ended, oldest first."""
        return list(self._open.values())

    @property
    def open_count(self) -> int:
        """How many have not ended."""
        return len(self._open)

    @property
    def storing(self) -> int:
        """The blocks of all stores that have not ended, each once for every store."""
        return self._storing

    def joinable_load(self, row: int, hits: int) -> tuple[int, list[int]]:
        """A load under way that brings more of the request's prefix, with the blocks to share.

        `hits` blocks of it are on the device. Returns the transfer's number, 0 for none.
        """
        if not self._loading:
            return 0, []
        most = (self.length(row) - 1) // self._block_size
        keys = self._keys(row, most)
        number, shared = 0, []
        for key in keys[hits:most]:
            found = self._loading.get(key)
            if found is None or (number and found[0] != number):
                break
            number = found[0]
            shared.append(found[1])
        return number, shared

    def take_unwaited(self) -> list[int]:
        """The loads that nobody waits for any more since the last call: cancel them."""
        unwaited, self._unwaited = self._unwaited, []
        return [number for number in unwaited if number in self._transfers]

    def note_published(self) -> None:
        """From now on the blocks that become hits are listed, for a tier that stores them."""
        self._ledger.published = []

    @property
    def published(self) -> int:
        """How many are listed and not taken."""
        return len(self._ledger.published or ())

    def take_published(self) -> list[tuple[bytes, int]]:
        """(key, block) of each block that became a hit since the last call, the oldest first."""
        published = self._ledger.published
        if not published:
            return []
        self._ledger.published = []
        return published

    def owns_open_transfer(self, request_id: str) -> bool:
        """Whether a load that this request started has not ended."""
        return any(
            record.owner == request_id and record.open for record in self._transfers.values()
        )

    # --- starting -------------------------------------------------------------------------------

    def admit_loading(
        self, row: int, hits: Blocks, keys: Sequence[bytes], reserve: int
    ) -> tuple[Outcome, int]:
        """Start a load of the prefix blocks `keys`, which follow on `hits`, for a request.

        Takes a fresh block for each key; `reserve` more are promised to the request, so that it
        can run afterwards. Returns the outcome, and the transfer's number if it went: the caller
        hands `transfers[number]` to the connector. Raises RefusedError for keys that do not follow
        on the hits in its own prefix.
        """
        self._ask_for_blocks(ADMIT_REMOTE, row, hits, len(keys))
        covered = int(self._facts[COVERED, row])
        behind, end = covered + len(hits), covered + len(hits) + len(keys)
        own = end * self._block_size < self.length(row)
        if not (own and list(keys) == self._keys(row, end)[behind:end] and is_count(reserve)):
            why = "its keys do not follow on its hits, or reach its last token"
            raise refused_request(self._ids[row], self.state_of(row), ADMIT_REMOTE, why)
        facts = TransferFacts()
        code = self._try_start(facts, LOAD, unshared=True)
        if code & ANSWER_MASK != GO:
            return Outcome(code), 0
        number = self._transfer_numbers + 1
        outcome = self._ask_remote(row, number, end, reserve, facts)
        if not outcome.went:
            return outcome, 0
        return outcome, number

    def admit_joining(
        self, row: int, hits: Blocks, number: int, shared: Sequence[int], reserve: int
    ) -> Outcome:
        """A request waits for a load that is under way and brings the blocks `shared` of it.

        Raises RefusedError for blocks that are not its next ones in that load, and for a reserve
        that is no number of blocks.
        """
        if not is_count(reserve):
            raise refused_transfer(str(number), JOIN, f"{reserve!r} is no number of blocks")
        # Blocks that are still being written are covered, but they are no hits.
        self._ask_for_blocks(ADMIT_REMOTE, row, hits, 0, shared)
        record = self._transfers.get(number)
        if record is not None and record.joinable:
            first, end = len(hits), len(hits) + len(shared)
            own = end * self._block_size < self.length(row)
            keys = self._keys(row, end)[first:end] if own else []
            if not own or [self._loading.get(key) for key in keys] != [
                (number, block) for block in shared
            ]:
                why = "the blocks are not its next ones in that load"
                raise refused_request(self._ids[row], self.state_of(row), ADMIT_REMOTE, why)
        covered = int(self._facts[COVERED, row]) + len(hits) + len(shared)
        return self._ask_remote(row, number, covered, reserve, None)

    def start_store(self, keys: Sequence[bytes], blocks: Sequence[int]) -> int:
        """Take a STORE hold on published blocks, in QUEUED. Returns 0 when not now.

        Blocks that nobody holds leave the free pool with it, but never those that are promised.
        The caller hands `transfers[number]` to the connector. Raises RefusedError when a block
        is not published under its key, or named twice.
        """
        ids = integers(blocks)
        if ids is None or not len(ids) or len(keys) != len(ids):
            raise refused_store("a store is of blocks, each with its key")
        blocks = ids.tolist()
        if not 0 <= min(blocks) <= max(blocks) < self._ledger.num_blocks:
            raise refused_store("a block does not exist")
        if len(set(blocks)) != len(blocks):
            raise refused_store("a block is named twice")
        facts = TransferFacts()
        counts, index = self._ledger.counts, self._ledger.index
        if sum(not counts[block] for block in blocks) > self.free_for():
            return 0
        published = all(index.key_of(block) == key for key, block in zip(keys, blocks, strict=True))
        code = self._try_start(facts, STORE, published=published)
        if code & ANSWER_MASK != GO:
            return 0
        return self._begin_transfer(facts, tuple(keys), blocks)

    def starts_stores(self) -> bool:
        """Whether the engine would let a store start now. Nothing changes."""
        return self._try_start(TransferFacts(), STORE, published=True) & ANSWER_MASK == GO

    def _ask_remote(
        self, row: int, number: int, covers: int, reserve: int, starting: TransferFacts | None
    ) -> Outcome:
        x = self._ask
        x.transfer = number
        record = self._transfers.get(number)
        x.joinable = starting is not None or (record is not None and record.joinable)
        x.reserve = reserve
        x.remote_tokens = covers * self._block_size
        self._starting = starting
        return self._fire(row, ADMIT_REMOTE)

    _starting: TransferFacts | None = None

    def _try_start(self, facts: TransferFacts, kind: int, **truths: bool) -> int:
        x = self._transfer_ask
        _blank_transfer(x)
        x.kind = kind
        for name, value in truths.items():
            setattr(x, name, value)
        code = _DISPATCH[ABSENT * _WIDTH + START](facts, self._engine, x)
        if code & ANSWER_MASK == REJECT:
            raise TRANSFER.refusal(code, "new", ABSENT, START)
        if code & ANSWER_MASK == GO:
            self._ask_of_start = x.as_dict()
            self._code_of_start = code
        return code

    def _begin_transfer(
        self,
        facts: TransferFacts,
        keys: tuple[bytes, ...],
        blocks: Sequence[int],
        first: int = 0,
        owner: str = "",
    ) -> int:
        """Record a transfer that starts, and carry out its start's hold commands.

        Returns its number.
        """
        self._transfer_numbers += 1
        number = self._transfer_numbers
        record = TransferRecord(number, facts, keys, blocks, self._clock(), first, owner)
        self._transfers[number] = self._open[number] = record
        if record.kind != LOAD:
            self._storing += len(record.blocks)
        self._carry_out_transfer(record, self._code_of_start & COMMAND_MASK, ABSENT)
        self._moves += 1
        if self._witness:
            started = TransferFacts().as_dict()
            fired = Fired(
                "transfer", str(number), START, started, self._engine.as_dict(),
                self._ask_of_start, self._code_of_start, ABSENT, facts.state,
            )  # fmt: skip
            self._witness(fired)
        return number

    # --- waiters --------------------------------------------------------------------------------

    def _join_transfer(self, row: int, transfer: int) -> None:
        """The WAIT of an admission; a load that starts with it takes its own hold first."""
        covered = int(self._facts[COVERED, row])
        if self._starting is not None:
            facts, self._starting = self._starting, None
            first = covered - self._new
            blocks = self._tables[row, first:covered].tolist()
            keys = tuple(self._keys(row, covered)[first:covered])
            begun = self._begin_transfer(facts, keys, blocks, first, self._ids[row])
            assert begun == transfer
            record = self._transfers[transfer]
            for key, block in zip(keys, blocks, strict=True):
                self._loading[key] = (transfer, block)
            hits = first
        else:
            record = self._transfers[transfer]
            hits = self._ask.hits
        record._now.waiters[row] = hits
        _blank_transfer(self._transfer_ask)
        outcome = self._fire_transfer(record, JOIN)
        assert outcome.went

    def _leave_transfer(self, row: int, transfer: int) -> None:
        record = self._transfers.get(transfer)
        if record is None or row not in record._now.waiters:
            return
        del record._now.waiters[row]
        _blank_transfer(self._transfer_ask)
        self._fire_transfer(record, LEAVE)
        facts = record._now.facts
        if record.joinable and cancel_unwaited(facts.kind == LOAD, facts.waiters):
            self._unwaited.append(transfer)

    # --- signals --------------------------------------------------------------------------------

    def transfer(
        self, number: int, event: int, *, valid_blocks: int = 0, expired: bool = False
    ) -> Outcome:
        """An event of a transfer, from its connector or its lease.

        valid_blocks: of a load that fails, how many of its leading blocks hold what they should.
        A load that ends tells its waiters at once. A signal for what has ended, or for a number
        that nobody knows, is counted as ignored. Raises RefusedError for what is no such event, or
        no number of blocks.
        """
        if event not in SIGNALS:
            raise refused_transfer(str(number), "event", f"{event} is no signal and no lease's end")
        if not is_count(valid_blocks):
            raise refused_transfer(str(number), event, f"{valid_blocks!r} is no number of blocks")
        record = self._transfers.get(number)
        _blank_transfer(self._transfer_ask)
        self._transfer_ask.expired = expired
        if record is None:
            return self._fire_transfer(self._ended.get(number) or unknown_transfer(number), event)
        outcome = self._fire_transfer(record, event)
        if not outcome.went:
            return outcome
        if not record.joinable and record.kind == LOAD:
            for key in record.keys:
                self._loading.pop(key, None)
        state = record.state
        if state in (LANDED, FAILED, FENCED, QUARANTINED):
            self._tell_waiters(record, valid_blocks if state == FAILED else 0)
            if state != QUARANTINED:
                self._remember(record)
        return outcome

    def _fire_transfer(self, record: TransferRecord, event: int) -> Outcome:
        facts, x = record._now.facts, self._transfer_ask
        source = facts.state
        before = facts.as_dict() if self._witness else {}
        code = _DISPATCH[source * _WIDTH + event](facts, self._engine, x)
        if self._witness:
            fired = Fired(
                "transfer", str(record.number), event, before, self._engine.as_dict(),
                x.as_dict(), code, source, facts.state,
            )  # fmt: skip
            self._witness(fired)
        answer = code & ANSWER_MASK
        if answer == REJECT:
            raise TRANSFER.refusal(code, str(record.number), source, event)
        if answer == IGNORE:
            self._ignored["transfer." + TransferEvent(event).name.lower()] += 1
        if answer != GO:
            return Outcome(code)
        self._moves += 1
        self._transfer_moves += event not in _BY_CLIENTS
        if not record.open and record.number in self._open:
            del self._open[record.number]
            if record.kind != LOAD:
                self._storing -= len(record.blocks)
        commands = code & COMMAND_MASK
        if commands:
            self._carry_out_transfer(record, commands, source)
        return Outcome(code)

    def _carry_out_transfer(self, record: TransferRecord, commands: int, source: int) -> None:
        """Carry out the hold commands of a transfer's event. `source`: its state before it."""
        ledger, blocks, held = self._ledger, record.blocks, record.held
        replay = BlockReplay(ledger) if self._config.check else None
        if commands & TAKE:
            record._now.held = True
            ledger.acquire(blocks)
            if record.kind == LOAD:
                ledger.begin_writing(blocks.tolist())
        elif commands & RELEASE:
            record._now.held = False
            if record.kind == LOAD:
                ledger.end_writing(blocks.tolist())
            if source == QUARANTINED:
                ledger.end_quarantine(blocks)
            ledger.release(blocks)
        elif commands & QUARANTINE:
            ledger.quarantine(blocks)
        self._engine.quarantined = ledger.quarantined_blocks
        if replay is not None:
            has = replay.transfer(
                commands, blocks, writes=record.kind == LOAD, held=held,
                quarantined=source == QUARANTINED,
            )  # fmt: skip
            replay.compare(f"the hold of transfer {record.number}")
            assert has == record.held, f"transfer {record.number} has its hold: {record.held}"

    def _tell_waiters(self, record: TransferRecord, valid_blocks: int) -> None:
        """Every waiter goes on: with what landed, with what is valid, or by recomputing."""
        for row, hits in list(record._now.waiters.items()):
            covered = int(self._facts[COVERED, row])
            x = self._ask_blank()
            x.transfer = record.number
            if record.state == LANDED:
                x.blocks = covered
                x.tokens = covered * self._block_size
                self._fire(row, TRANSFER_LANDED)
                continue
            x.blocks = max(hits, min(covered, record.first + valid_blocks))
            x.fatal = self._failure_is_fatal
            self._fire(row, TRANSFER_FAILED)

    def _remember(self, record: TransferRecord) -> None:
        """Keep the record of a transfer that has ended, and retire the oldest of more than 64."""
        self._ended[record.number] = self._transfers.pop(record.number)
        if len(self._ended) > ENDED_KEPT:
            oldest = next(iter(self._ended.values()))
            _blank_transfer(self._transfer_ask)
            if self._fire_transfer(oldest, RETIRE).went:
                del self._ended[oldest.number]

    def describe_transfer(self, record: TransferRecord) -> str:
        """The name of its state."""
        return TransferState(record.state).name
