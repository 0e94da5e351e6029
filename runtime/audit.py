"""The lifecycle checked against itself: every count from the holds, every container from the state.

Run after each operation in the tests and with `check` on; it reads only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..statemachine.lanes import capacity, in_flight
from ..statemachine.policy import ahead
from ..statemachine.request import container
from ..statemachine.reset import transfer_refuses
from ..statemachine.states import (
    FINISHED,
    FINISHED_ABORTED,
    FINISHED_ERROR,
    IN_BLOCKED,
    IN_RUNNING,
    IN_WAITING,
    LOAD,
    PREEMPTED,
    QUARANTINED,
    RUNNING,
    UNKNOWN,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
    RequestState,
)
from .columns import FACTS, Int64Array

if TYPE_CHECKING:
    from .lifecycle import Lifecycle


#: The columns in their order.
FACTS_AND_OTHERS = (*FACTS, "target", "limit")
_STATES = frozenset(map(int, RequestState))


class _Named:
    """A request in words, put together only when a message needs it."""

    def __init__(self, lifecycle: Lifecycle, row: int) -> None:
        self._lifecycle = lifecycle
        self._row = row

    def __str__(self) -> str:
        return f"{self._lifecycle.id_of(self._row)!r} {self._lifecycle.view.facts(self._row)}"


def audit(lifecycle: Lifecycle) -> None:
    """Raise AssertionError that names what does not agree."""
    _states(lifecycle)
    _counts(lifecycle)
    _pool_and_index(lifecycle)
    _containers(lifecycle)
    _rows(lifecycle)
    _sequences(lifecycle)
    _facts(lifecycle)
    _transfers(lifecycle)
    _steps(lifecycle)


def _states(lifecycle: Lifecycle) -> None:
    """Every state is one: what follows asks by its name."""
    for row, state in enumerate(lifecycle.view.state.tolist()):
        assert state in _STATES, f"row {row} is in a state that there is not"


def _counts(lifecycle: Lifecycle) -> None:
    """S1: a block's count is the number of holds that cover it; each hold has it once."""
    ledger = lifecycle.ledger
    expected = np.zeros(ledger.num_blocks, dtype=np.int64)
    quarantined = np.zeros(ledger.num_blocks, dtype=np.int64)
    for row in lifecycle.known_rows():
        _add(expected, lifecycle.table(row), f"REQUEST hold of {lifecycle.id_of(row)!r}")
        beyond = lifecycle.view.tables[row, lifecycle.view.covered[row] :]
        assert (beyond == -1).all(), f"{lifecycle.id_of(row)!r} has a table beyond its hold"
    for step, holds in ledger.step_holds.items():
        assert in_flight(step, lifecycle.processed), f"a STEP hold of step {step} was not ended"
        for hold in holds:
            _add(expected, hold.blocks, f"STEP hold of {hold.owner!r}")
    writing = bytearray(ledger.num_blocks)
    for number, record in lifecycle.transfers.items():
        assert record.held, f"transfer {number} has no hold and has not ended"
        _add(expected, record.blocks, f"hold of transfer {number}")
        if record.state == QUARANTINED:
            quarantined[record.blocks] += 1
        if record.kind == LOAD:
            for block in record.blocks.tolist():
                writing[block] = 1
    wrong = np.flatnonzero(expected != ledger.counts)
    assert not wrong.size, (
        f"block {wrong[0]}: count {ledger.counts[wrong[0]]}, {expected[wrong[0]]} holds cover it"
    )
    assert np.array_equal(quarantined, ledger.quarantined), "quarantine miscounted"
    assert writing == ledger.being_written, "being_written differs from the loads"
    assert int(np.count_nonzero(quarantined)) == ledger.quarantined_blocks
    assert lifecycle.engine.quarantined == ledger.quarantined_blocks


def _add(expected: Int64Array, blocks: npt.NDArray[np.int32], owner: str) -> None:
    assert len(set(blocks.tolist())) == len(blocks), f"{owner} covers a block twice"
    expected[blocks] += 1


def _pool_and_index(lifecycle: Lifecycle) -> None:
    """A block is free exactly when nobody holds it; what can be hit has one key."""
    ledger = lifecycle.ledger
    pool, index = ledger.pool, ledger.index
    free = hits = 0
    for block, (held, cached) in enumerate(
        zip(ledger.counts.tolist(), index.cached.tolist(), strict=True)
    ):
        assert held >= 0, f"block {block} has count {held}"
        assert pool.is_free(block) == (held == 0), f"block {block}: count {held}, pool disagrees"
        free += held == 0
        key = index.key_of(block)
        assert cached == (key is not None), f"block {block} is cached or not"
        if key is not None:
            hits += 1
            assert index.block_of(key) == block, f"block {block} is not found by its key"
            assert not ledger.being_written[block], f"block {block} is a hit and is being written"
            assert not ledger.quarantined[block], f"block {block} is a hit in quarantine"
    assert pool.free == free, f"the pool counts {pool.free} free blocks of {free}"
    for block in pool.eviction_order():
        assert index.is_cached(block), f"block {block} is in eviction order and no hit"
    assert len(index) == hits, f"the index has {len(index)} keys for {hits} blocks"


def _containers(lifecycle: Lifecycle) -> None:
    """S5: every request is in exactly the container that its state says."""
    places: dict[int, list[int]] = {row: [] for row in lifecycle.known_rows()}
    for rows, place in (
        (lifecycle.waiting, IN_WAITING),
        (lifecycle.running, IN_RUNNING),
        (lifecycle.blocked, IN_BLOCKED),
    ):
        for row in rows:
            assert row in places, f"row {row} is of no request, and in a container"
            places[row].append(place)
    for rows, state in (
        (lifecycle.parked, WAITING_FOR_STREAMING_REQ),
        (lifecycle.loading_rows, WAITING_FOR_REMOTE_KVS),
    ):
        expected = {row for row in places if lifecycle.state_of(row) == state}
        assert set(rows) == expected, f"those in {RequestState(state).name} are {expected}"
    _parked(lifecycle)
    finished = set(lifecycle.finished)
    for row, found in places.items():
        state = lifecycle.state_of(row)
        name = f"{lifecycle.id_of(row)!r} in {RequestState(state).name}"
        assert state != UNKNOWN, f"{name} is listed"
        assert found == ([] if state in FINISHED else [container(state)]), f"{name}: {found}"
        assert (row in finished) == (state in FINISHED), name
    listed = list(lifecycle.running) + list(lifecycle.waiting)
    view = lifecycle.view
    ranks = list(zip(view.priority.tolist(), view.arrival.tolist(), strict=True))
    for entries in (lifecycle._running.entries(), lifecycle._waiting.entries()):
        for *rank, row in entries:
            assert tuple(rank) == ranks[row], f"{lifecycle.id_of(row)!r} was entered otherwise"
    for ordered in (lifecycle.running.array, lifecycle.waiting.array):
        priorities, arrivals = view.priority[ordered], view.arrival[ordered]
        before = ahead(priorities[:, None], arrivals[:, None], priorities, arrivals).sum(axis=0)
        assert (before == np.arange(len(ordered))).all(), (
            f"a container keeps {[lifecycle.id_of(row) for row in ordered.tolist()]} in this "
            f"order, but by the policy {before.tolist()} of them are ahead of each"
        )
    assert len(set(listed)) == len(listed)


def _rows(lifecycle: Lifecycle) -> None:
    """Ids and rows belong to each other, and a row of no request knows nothing of an earlier one.

    Otherwise the next request in the row would meet it.
    """
    known = lifecycle.known_rows()
    for request_id, row in lifecycle._row_of.items():
        assert lifecycle.id_of(row) == request_id, f"row {row} is not that of {request_id!r}"
    empty = np.ones(len(lifecycle.view.state), dtype=np.bool_)
    empty[known] = False
    free = np.flatnonzero(empty).tolist()
    assert sorted(lifecycle._free_rows) == free, "the free rows are others"
    left = lifecycle._columns[:, empty]
    assert not left.any(), f"a row of no request has {FACTS_AND_OTHERS[np.nonzero(left)[0][0]]}"
    assert (lifecycle.view.tables[empty] == -1).all(), "a row of no request has a table"
    for kept in (lifecycle._ids, lifecycle._salts, lifecycle._queued, lifecycle._chains):
        for row in free:
            assert not kept[row], f"row {row} is of no request, and has {kept[row]!r}"
    arrivals = [0, *lifecycle.view.arrival[known].tolist(), lifecycle._arrivals + 1]
    assert arrivals == sorted(set(arrivals)), "arrivals are not in the order of their requests"


def _sequences(lifecycle: Lifecycle) -> None:
    """The keys of a request are those of its tokens, and its published blocks have them."""
    index, size = lifecycle.ledger.index, lifecycle.block_size
    for row in lifecycle.known_rows():
        chain = lifecycle._chains[row]
        if chain is None:
            continue
        name = repr(lifecycle.id_of(row))
        made = lifecycle.hasher.chain(lifecycle._salts[row], lifecycle.engine.epoch)
        assert chain.root == made.root, f"the keys of {name} begin with another salt or epoch"
        blocks = len(chain.keys)
        assert blocks * size <= lifecycle.length(row), f"{name} has keys of unknown tokens"
        lifecycle.hasher.extend(made, lifecycle.sequence(row)[: blocks * size].tobytes())
        assert chain.keys == made.keys, f"the tokens of {name} are not those of its keys"
        hashed = lifecycle.table(row)[: int(lifecycle.view.hashed[row])].tolist()
        for block, key in zip(hashed, chain.keys, strict=False):
            found = index.key_of(block)
            assert found in (None, key), f"block {block} of {name} is a hit for other tokens"


def _parked(lifecycle: Lifecycle) -> None:
    """What is known of the parked sessions' holds is what their tables say."""
    expected = np.zeros(lifecycle.ledger.num_blocks, dtype=np.int64)
    holding = [row for row in lifecycle.parked if lifecycle.view.covered[row]]
    assert list(lifecycle.parked_blocks) == holding, "the parked that hold blocks are others"
    for row, blocks in lifecycle.parked_blocks.items():
        assert np.array_equal(blocks, lifecycle.table(row)), f"{lifecycle.id_of(row)!r} is parked"
        expected[blocks] += 1
    assert np.array_equal(expected, lifecycle.parked_holds), "the parked holds are miscounted"
    for force in (False, True):
        assert lifecycle.refuses(force) == bool(lifecycle.refusing(force)), "who refuses a reset"


def _facts(lifecycle: Lifecycle) -> None:
    """S4: state and facts agree."""
    view = lifecycle.view
    size = lifecycle.block_size
    for row in lifecycle.known_rows():
        name = _Named(lifecycle, row)
        state, covered = lifecycle.state_of(row), int(view.covered[row])
        computed, written = int(view.computed[row]), int(view.written[row])
        hashed = int(view.hashed[row])
        if state in (RUNNING, WAITING_FOR_REMOTE_KVS):
            assert covered > 0, f"not resident: {name}"
        if state == PREEMPTED or state in FINISHED:
            assert covered == 0, f"resident: {name}"
        if covered == 0:
            assert computed == written == hashed == 0, f"computed without blocks: {name}"
        assert written <= computed <= covered * size, f"out of order: {name}"
        assert hashed == written // size, f"what is full is not published: {name}"
        _steps_and_turns(lifecycle, row, state, name)
        waits = int(view.waits_for[row])
        assert (waits > 0) == (state == WAITING_FOR_REMOTE_KVS), f"waits wrongly: {name}"
        assert waits >= 0, f"waits for what never began: {name}"
        if waits:
            record = lifecycle.transfers.get(waits)
            assert record is not None and record.open, f"waits for what has ended: {name}"  # noqa: PT018
            assert row in record.waiters, f"is no waiter: {name}"
        if state not in FINISHED:
            assert 0 < lifecycle.length(row) <= lifecycle.config.max_model_len, f"length: {name}"
        if computed > lifecycle.length(row):
            ahead = computed - lifecycle.length(row)
            assert ahead <= lifecycle.in_flight, f"too far: {name}"
    assert (view.reserved >= 0).all(), "less than nothing is reserved"
    reserved = int(view.reserved.sum())
    assert reserved == lifecycle.reserved, "what is reserved is miscounted"
    assert lifecycle.free_for() == lifecycle.ledger.pool.free - reserved
    assert lifecycle.free_for() >= 0, "more is reserved than is free"


def _steps_and_turns(lifecycle: Lifecycle, row: int, state: int, name: _Named) -> None:
    """What a request's steps, its turns and its queue say of each other."""
    view, e = lifecycle.view, lifecycle.engine
    newest, stale = int(view.newest_step[row]), int(view.stale_step[row])
    touching = [step.step for step in lifecycle.steps_in_flight if row in step.rows.tolist()]
    if touching:
        assert newest == touching[-1], f"step {touching[-1]} computes it: {name}"
    else:
        assert 0 <= newest <= lifecycle.processed, f"no launched step computes it: {name}"
    # Nothing that is in flight counts for who has let go for good, or begins a residency or turn.
    counts = state in (RUNNING, PREEMPTED, FINISHED_ABORTED, FINISHED_ERROR)
    assert stale <= newest if counts else stale == newest, f"what is in flight counts: {name}"
    assert stale >= 0, f"stale before the first step: {name}"
    counted = state == RUNNING and newest > stale
    assert view.computed[row] > 0 or not counted, f"a step has computed nothing: {name}"

    session, is_open = int(view.resumable[row]), int(view.input_open[row])
    queue = lifecycle._queued[row]
    assert 0 <= is_open <= session <= 1, f"input without a session: {name}"
    assert not (is_open and state in FINISHED), f"open after its end: {name}"
    assert is_open or state != WAITING_FOR_STREAMING_REQ, f"parked for nothing: {name}"
    assert session or not queue, f"chunks without a session: {name}"
    assert int(view.queued_chunks[row]) == len(queue), f"chunks miscounted: {name}"
    assert int(view.queued_tokens[row]) == sum(map(len, queue)), f"chunks miscounted: {name}"

    delivered, begun = int(view.delivered[row]), int(view.turn_start[row])
    assert int(view.prompt[row]) > 0, f"nothing to begin with: {name}"
    assert 0 <= begun <= (delivered if session else 0), f"the turn begins elsewhere: {name}"
    assert 0 <= int(view.loads_failed[row]) <= e.loads_limit, f"loads: {name}"
    most = capacity(e.pool_blocks, e.block_size) + 1
    assert 0 <= int(view.limit[row]) <= most, f"beyond the pool: {name}"


def _transfers(lifecycle: Lifecycle) -> None:
    """A transfer counts its waiters; each of them waits for it."""
    for number, record in lifecycle.transfers.items():
        assert record.facts.waiters == len(record.waiters), f"transfer {number} miscounts"
        for row in record.waiters:
            assert int(lifecycle.view.waits_for[row]) == number, f"transfer {number}: {row}"
    open_ones = [record for record in lifecycle.transfers.values() if record.open]
    assert lifecycle.open_transfers() == open_ones, "open transfers are listed wrongly"
    stored = sum(len(record.blocks) for record in open_ones if record.kind != LOAD)
    assert lifecycle.storing == stored, "the blocks of the stores are miscounted"
    for number, record in lifecycle.ended_transfers.items():
        assert not transfer_refuses(record.state), f"transfer {number} is open, but kept as ended"
        assert not record.held, f"transfer {number} has ended and has a hold"
        assert not record.waiters, f"transfer {number} has ended and is waited for"


def _steps(lifecycle: Lifecycle) -> None:
    """What is launched and not processed is listed, and what it will write and deliver counted."""
    steps = lifecycle.steps_in_flight
    numbers = list(range(lifecycle.processed + 1, lifecycle.launched + 1))
    assert [step.step for step in steps] == numbers, "steps in flight are listed wrongly"
    view = lifecycle.view
    expected = np.zeros_like(view.target)
    writing = np.zeros_like(view.computed)
    for step in steps:
        for number, row in enumerate(step.rows.tolist()):
            if step.step <= int(view.stale_step[row]):
                continue
            writing[row] += step.counts[number]
            if step.samples[number] and lifecycle.state_of(row) in (RUNNING, PREEMPTED):
                expected[row] += 1
    known = np.zeros_like(view.target)
    for row in lifecycle.known_rows():
        known[row] = lifecycle.length(row)
    assert np.array_equal(known + expected, view.target), "target differs from the steps"
    resident = view.covered > 0
    wrong = np.flatnonzero(resident & (view.written + writing != view.computed))
    assert not wrong.size, f"row {wrong}: computed differs from written and being written"
