"""Everything that the lifecycle knows, in one place: columns, tables, tokens, holds, containers.

Only the classes that build on this one write to it: holds (`hold_commands.py`), events
(`events.py`), transfers (`transfer_events.py`) and lanes (`steps.py`), joined in `lifecycle.py`.
Everybody else reads: what is public here is a copy, or cannot be written to (`read_only.py`).
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..statemachine.facts import Ask, EngineAsk, EngineFacts, RequestFacts, TransferAsk
from ..statemachine.lanes import acquired, capacity, released
from ..statemachine.request import container
from ..statemachine.states import (
    ACTIVE,
    FINISHED,
    IN_BLOCKED,
    IN_RUNNING,
    IN_WAITING,
    UNKNOWN,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
)
from .api import EngineConfig
from .columns import (
    COLUMNS,
    COVERED,
    FACTS,
    LIMIT,
    STATE,
    TARGET,
    BatchView,
    Int64Array,
    make_loader,
    read_only,
)
from .containers import SortedRows
from .holds import BlockLedger
from .prefix import BlockHasher, KeyChain
from .read_only import Ledger, Rows
from .refusals import refused_request, refused_row

#: How many transitions of a request are remembered for /debug/requests.
HISTORY = 64

#: (time, event, source, dest, code): one remembered transition.
HistoryEntry = tuple[float, int, int, int, int]


_load_engine = make_loader(tuple(EngineFacts.KINDS))
_engine_facts = attrgetter(*EngineFacts.KINDS)


class LifecycleState:
    """The facts and what follows from them. A request is known by its row."""

    def __init__(self, config: EngineConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._block_size = config.block_size
        self._table_width = min(-(-config.max_model_len // config.block_size), config.num_blocks)
        self._hasher = BlockHasher(
            config.hash_algorithm, config.model_digest, config.dtype, config.block_size
        )
        self._ledger = BlockLedger(config.num_blocks, self._hasher.compares_tokens)
        self._shown_ledger = Ledger(self._ledger)
        self._view = BatchView()
        self._engine = EngineFacts(
            mode=ACTIVE,
            weights_resident=1,
            cache_resident=1,
            steps_ahead=config.steps_in_flight,
            block_size=config.block_size,
            pool_blocks=config.num_blocks,
            model_length=config.max_model_len,
            loads_limit=config.loads_limit,
        )
        self._record = RequestFacts()
        self._ask = Ask()
        self._transfer_ask = TransferAsk()
        self._engine_ask = EngineAsk()

        self._waiting = SortedRows()
        self._shown_waiting = Rows(self._waiting)
        self._running = SortedRows()
        self._shown_running = Rows(self._running)
        self._blocked: dict[int, None] = {}
        #: Those of the blocked that are parked between turns, the longest parked first.
        self._parked: dict[int, None] = {}
        #: Those of the parked that hold blocks, in the same order, with the blocks.
        self._parked_blocks: dict[int, npt.NDArray[np.int32]] = {}
        #: By block: how many of their holds cover it.
        self._parked_holds: Int64Array = np.zeros(config.num_blocks, dtype=np.int64)
        #: Those that wait for a load.
        self._loading_rows: dict[int, None] = {}
        #: Rows that are finished and not yet forgotten.
        self._finished: dict[int, None] = {}
        self._row_of: dict[str, int] = {}
        self._arrivals = 0
        #: Sum of the column `reserved`: blocks promised to those whose prefix is being loaded.
        self._reserved = 0
        #: Signals and calls that were ignored, by machine and event.
        self._ignored: Counter[str] = Counter()
        #: Counts up whenever a hold changes: what was worked out from tables holds until then.
        self._holds_version = 0
        #: Counts up whenever a request is changed otherwise than by a lane's steady part.
        self._disturbances = 0
        #: Transitions so far, also those that a client's call makes.
        self._moves = 0
        #: Those of transfers that began or ended: no client's call makes them.
        self._transfer_moves = 0

        self._columns: Int64Array = np.zeros((COLUMNS, 0), dtype=np.int64)
        #: The declared facts among the columns, and the two others: views of them.
        self._facts: Int64Array = self._columns[: len(FACTS)]
        self._target: Int64Array = self._columns[TARGET]
        #: Each column by itself: indexing one is four times as fast as indexing one of all.
        self._column: list[Int64Array] = list(self._columns)
        self._limit: Int64Array = self._columns[LIMIT]
        self._tables: npt.NDArray[np.int32] = np.full((0, self._table_width), -1, dtype=np.int32)
        self._tokens: npt.NDArray[np.int32] = np.zeros((0, config.max_model_len), dtype=np.int32)
        self._ids: list[str] = []
        self._salts: list[bytes] = []
        #: Made when a key is first asked for, and again when the weights are others.
        self._chains: list[KeyChain | None] = []
        self._held_since: list[float] = []
        self._history: list[deque[HistoryEntry]] = []
        self._queued: list[deque[npt.NDArray[np.int32]]] = []
        self._free_rows: list[int] = []
        self._make_room(64)

    # --- reading --------------------------------------------------------------------------------

    @property
    def config(self) -> EngineConfig:
        """The engine's sizes and limits."""
        return self._config

    @property
    def clock(self) -> Callable[[], float]:
        """What time it is, in seconds."""
        return self._clock

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self._block_size

    @property
    def table_width(self) -> int:
        """The most blocks that a request's table can have."""
        return self._table_width

    @property
    def hasher(self) -> BlockHasher:
        """What makes the keys of blocks."""
        return self._hasher

    @property
    def ledger(self) -> Ledger:
        """Who holds which block, and which can be hit."""
        return self._shown_ledger

    @property
    def view(self) -> BatchView:
        """The facts of all requests, by column."""
        return self._view

    @property
    def ignored(self) -> Mapping[str, int]:
        """Signals and calls that were ignored, by machine and event."""
        return MappingProxyType(self._ignored)

    @property
    def holds_version(self) -> int:
        """Counts up whenever a hold changes: what was worked out from tables holds until then."""
        return self._holds_version

    @property
    def moves(self) -> int:
        """Transitions so far."""
        return self._moves

    @property
    def engine(self) -> EngineFacts:
        """A copy of the engine's record."""
        copy = EngineFacts.__new__(EngineFacts)
        _load_engine(copy, _engine_facts(self._engine))
        return copy

    @property
    def longest(self) -> int:
        """The length at which a sequence must stop: the model's, or the longest the pool holds.

        Less while blocks are in quarantine.
        """
        e = self._engine
        held = capacity(e.pool_blocks - e.quarantined, e.block_size)
        return int(min(e.model_length, held + 1))

    @property
    def processed(self) -> int:
        """The newest step whose results are processed."""
        return self._engine.processed

    @property
    def launched(self) -> int:
        """The newest step launched."""
        return self._engine.launched

    @property
    def progress(self) -> int:
        """Steps launched and processed, and transfers begun and ended: grows while work moves.

        Clients alone, however busy, do not raise it.
        """
        return self._engine.launched + self._engine.processed + self._transfer_moves

    @property
    def mode(self) -> int:
        """The engine's mode."""
        return self._engine.mode

    @property
    def running(self) -> Rows:
        """The rows in RUNNING, in the policy's order."""
        return self._shown_running

    @property
    def waiting(self) -> Rows:
        """The rows in WAITING and PREEMPTED, in the policy's order."""
        return self._shown_waiting

    @property
    def blocked(self) -> Mapping[int, None]:
        """The rows that wait for an outside party."""
        return MappingProxyType(self._blocked)

    @property
    def parked(self) -> Mapping[int, None]:
        """The sessions that wait for their client, the longest parked first."""
        return MappingProxyType(self._parked)

    @property
    def parked_blocks(self) -> Mapping[int, npt.NDArray[np.int32]]:
        """The parked sessions that hold blocks, the longest parked first, and those blocks."""
        return MappingProxyType(self._parked_blocks)

    @property
    def parked_holds(self) -> Int64Array:
        """By block, how many parked sessions' holds cover it: int64 [num_blocks], read-only."""
        counts: Int64Array = read_only(self._parked_holds)
        return counts

    @property
    def loading_rows(self) -> Mapping[int, None]:
        """The rows that wait for a load."""
        return MappingProxyType(self._loading_rows)

    @property
    def reserved(self) -> int:
        """Blocks promised to those whose prefix is or was loaded, to run afterwards."""
        return self._reserved

    @property
    def finished(self) -> Mapping[int, None]:
        """The rows that are finished and not forgotten."""
        return MappingProxyType(self._finished)

    @property
    def live(self) -> int:
        """How many requests are not finished."""
        return len(self._waiting) + len(self._running) + len(self._blocked)

    def row_of(self, request_id: str) -> int | None:
        """The row of a request that is known, finished or not."""
        return self._row_of.get(request_id)

    def _is_known(self, row: int) -> bool:
        """Whether the row is a request's: every event and every key is of such a row only."""
        return 0 <= row < len(self._ids) and bool(self._ids[row])

    def id_of(self, row: int) -> str:
        """The id of the request in a row."""
        return self._ids[row]

    def state_of(self, row: int) -> int:
        """The state of the request in a row."""
        return int(self._facts[STATE, row])

    def known_rows(self) -> list[int]:
        """The rows of all requests, in the order in which their ids became known."""
        return list(self._row_of.values())

    def history_of(self, row: int) -> list[HistoryEntry]:
        """The last transitions of a request, oldest first. Lanes are not among them."""
        return list(self._history[row])

    def length(self, row: int) -> int:
        """How many tokens of the request's sequence are known."""
        return int(self._view.prompt[row] + self._view.delivered[row])

    def table(self, row: int) -> npt.NDArray[np.int32]:
        """The blocks that the request's hold covers, int32 [covered], read-only."""
        blocks: npt.NDArray[np.int32] = self._view.tables[row, : self._view.covered[row]]
        return blocks

    def sequence(self, row: int) -> npt.NDArray[np.int32]:
        """Every known token of the request, int32 [length], read-only."""
        tokens: npt.NDArray[np.int32] = self._view.tokens[row, : self.length(row)]
        return tokens

    def free_for(self, row: int = -1) -> int:
        """Blocks free beyond what is reserved for requests other than this one."""
        own = int(self._view.reserved[row]) if row >= 0 else 0
        return self._ledger.pool.free - self._reserved + own

    def keys(self, row: int, blocks: int) -> list[bytes]:
        """The keys of the request's first full blocks, at least that many of them.

        Raises RefusedError for more blocks than its known tokens fill.
        """
        if not self._is_known(row):
            raise refused_row(row, "keys")
        if blocks * self._block_size > self.length(row):
            why = f"{blocks} blocks are not full of known tokens"
            raise refused_request(self._ids[row], self.state_of(row), "keys", why)
        return self._keys(row, blocks)[:]

    def _keys(self, row: int, blocks: int) -> list[bytes]:
        chain = self._chain(row)
        keys = chain.keys
        if len(keys) < blocks:
            start = len(keys) * self._block_size
            tokens = self._tokens[row, start : blocks * self._block_size].tobytes()
            self._hasher.extend(chain, tokens)
        return keys

    def _root(self, row: int) -> bytes:
        """What the request's keys start from."""
        return self._chain(row).root

    def _chain(self, row: int) -> KeyChain:
        chain = self._chains[row]
        if chain is None:
            chain = self._chains[row] = self._hasher.chain(self._salts[row], self._engine.epoch)
        return chain

    def hits(self, row: int) -> list[int]:
        """The published blocks that begin with the request's tokens; the last token is never hit.

        A step has to compute at least one token to sample the next.
        """
        most = (self.length(row) - 1) // self._block_size
        if most <= 0:
            return []
        keys = self._keys(row, most)[:most]
        tokens = b""
        if self._hasher.compares_tokens:
            tokens = self._tokens[row, : most * self._block_size].tobytes()
        return self._ledger.index.match(keys, self._root(row), tokens, most)

    # --- rows -----------------------------------------------------------------------------------

    def _take_row(self) -> int:
        if not self._free_rows:
            self._make_room(2 * len(self._ids))
        return self._free_rows.pop()

    def _make_room(self, rows: int) -> None:
        """Columns for that many rows; views handed out before show the old ones."""
        old = len(self._ids)
        columns = np.zeros((COLUMNS, rows), dtype=np.int64)
        columns[:, :old] = self._columns
        tables = np.full((rows, self._table_width), -1, dtype=np.int32)
        tables[:old] = self._tables
        # Zeroed memory that nobody has touched costs nothing, so rows may be long.
        tokens = np.zeros((rows, self._config.max_model_len), dtype=np.int32)
        for row in self._row_of.values():
            length = self.length(row)
            tokens[row, :length] = self._tokens[row, :length]
        self._columns, self._tables, self._tokens = columns, tables, tokens
        self._facts = columns[: len(FACTS)]
        self._target, self._limit = columns[TARGET], columns[LIMIT]
        self._column = list(columns)
        for _ in range(rows - old):
            self._ids.append("")
            self._salts.append(b"")
            self._chains.append(None)
            self._held_since.append(0.0)
            self._history.append(deque(maxlen=HISTORY))
            self._queued.append(deque())
        self._free_rows.extend(range(rows - 1, old - 1, -1))
        self._refresh_view()

    def _refresh_view(self) -> None:
        self._view._set(
            **{name: read_only(self._facts[number]) for number, name in enumerate(FACTS)},
            target=read_only(self._target),
            limit=read_only(self._limit),
            tables=read_only(self._tables),
            tokens=read_only(self._tokens),
            counts=self._shown_ledger.counts,
        )

    # --- containers -----------------------------------------------------------------------------

    def _move(self, row: int, record: Any, source: int) -> None:
        """The state has changed: the request goes into the container that the new one says."""
        self._leave(row, record, source)
        state = record.state
        if state in FINISHED:
            self._finished[row] = None
            return
        where = container(state)
        if where == IN_WAITING:
            self._waiting.add(record.priority, record.arrival, row)
        elif where == IN_RUNNING:
            self._running.add(record.priority, record.arrival, row)
        elif where == IN_BLOCKED:
            self._blocked[row] = None
            if state == WAITING_FOR_STREAMING_REQ:
                self._parked[row] = None
            elif state == WAITING_FOR_REMOTE_KVS:
                self._loading_rows[row] = None

    def _leave(self, row: int, record: Any, source: int) -> None:
        if source == UNKNOWN:
            return
        if source in FINISHED:
            del self._finished[row]
            return
        where = container(source)
        if where == IN_WAITING:
            self._waiting.remove(record.priority, record.arrival, row)
        elif where == IN_RUNNING:
            self._running.remove(record.priority, record.arrival, row)
        elif where == IN_BLOCKED:
            del self._blocked[row]
            self._parked.pop(row, None)
            self._loading_rows.pop(row, None)

    def _count_parked(self, row: int) -> None:
        """The request is parked, or was, or has let go: what parked sessions hold is another.

        Kept, so that a step that lacks blocks need not ask each of them.
        """
        held = self._parked_blocks.pop(row, None)
        if held is not None:
            self._parked_holds[held] = released(self._parked_holds[held], 1)
        covered = int(self._facts[COVERED, row])
        if covered and row in self._parked:
            blocks = read_only(self._tables[row, :covered].copy())
            self._parked_blocks[row] = blocks
            self._parked_holds[blocks] = acquired(self._parked_holds[blocks], 1)
