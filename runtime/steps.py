"""Lanes: launching and settling a device step for all of its requests in a few array calls.

Steady decoding changes nothing but counters, so no event is fired for it: `launch` is GROW and
LAUNCH, `settle` is PUBLISH and OUTPUT, for many rows at once, by the declaration's own lanes.
With `check` on, or while a trace is written, each call is replayed through the events on copied
records and compared (`replay.py`).

The order within `settle(N)` is part of the contract: the step counts as processed; what it wrote
is published; what it sampled is delivered; turns that end by it stop; then the STEP holds of N
end. Whoever is admitted afterwards meets nothing of it any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..statemachine.answers import GO, RELEASE, ROW_SHIFT, TAKE
from ..statemachine.errors import RefusedError
from ..statemachine.lanes import advance, capacity, fresh_output, length
from ..statemachine.request import REQUEST
from ..statemachine.states import (
    ERROR,
    LAUNCH,
    LAUNCH_STEP,
    OUTPUT,
    PREEMPT,
    PREEMPTED,
    PUBLISH,
    RECLAIM,
    RUNNING,
    STEP_PROCESSED,
    STOP,
    WAITING,
    WAITING_FOR_STREAMING_REQ,
)
from .block_replay import BlockReplay, step_holds_of
from .columns import (
    COMPUTED,
    COVERED,
    DELIVERED,
    HASHED,
    INT64,
    LIMIT,
    NEWEST_STEP,
    PROMPT,
    RESERVED,
    STALE_STEP,
    STATE,
    TARGET,
    WRITTEN,
    Int64Array,
    every,
    some,
)
from .refusals import (
    STOP_REASONS,
    as_token_ids,
    integers,
    refused_engine,
    refused_request,
)
from .replay import LaneReplay
from .step_records import Judge, LaunchedStep, Settled, Stop
from .transfer_events import TransferEvents

Int32Array = npt.NDArray[np.int32]


def _nobody_stops(
    rows: Int64Array, tokens: Int32Array, lengths: Int64Array, limits: Int64Array
) -> Iterable[Stop]:
    return ()


class StepLanes(TransferEvents):
    """Launch and settle on whole columns."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._steps: dict[int, LaunchedStep] = {}
        #: The rows of the newest launched step, processed or not.
        self._newest_rows: Int64Array | None = None
        #: Rows that all ran, each named once, when the count of disturbances was this.
        self._proven_rows: Int64Array | None = None
        self._proven_at = -1
        #: Tokens of which none is 0. No array of these is written to by anybody.
        self._proven_tokens: Int64Array | None = None
        #: Blocks that their holds cover, and the tokens that fit, while no hold has changed.
        self._covered: Int64Array = np.zeros(0, dtype=np.int64)
        self._room: Int64Array = self._covered
        self._proven_holds = -1

    @property
    def steps_in_flight(self) -> list[LaunchedStep]:
        """The steps that are launched and not processed, oldest first."""
        return list(self._steps.values())

    @property
    def in_flight(self) -> int:
        """How many steps are launched and not processed."""
        return len(self._steps)

    @property
    def newest_rows(self) -> Int64Array | None:
        """The rows of the newest launched step, processed or not; None before the first."""
        return self._newest_rows

    @property
    def replays(self) -> bool:
        """Whether each lane call is repeated event by event."""
        return self._config.check or self._witness is not None

    def launch(
        self, rows: Int64Array, tokens: Int64Array, new_blocks: Int64Array
    ) -> LaunchedStep | None:
        """Launch the next step: `tokens` tokens of each row, whose tables grow by `new_blocks`.

        The rows are RUNNING, all different; the blocks are free; each grown hold covers the
        tokens, and they are known or will be sampled by launched steps. Raises RefusedError for
        anything else, with nothing changed. None when the engine starts no step now.
        """
        if rows is not self._proven_rows or not self._same_again(tokens, new_blocks):
            rows, tokens, new_blocks = self._told_to_launch(rows, tokens, new_blocks)
        # Proven of these rows by an earlier step, and nothing but lanes has touched them since.
        steady = rows is self._proven_rows and self._disturbances == self._proven_at
        if not steady:
            self._must_run(rows)
        column = self._column
        growing = new_blocks.nonzero()[0]
        if steady and not growing.size and self._proven_holds == self._holds_version:
            covered, room = self._covered, self._room
        else:
            covered = advance(column[COVERED][rows], new_blocks)
            room = capacity(covered, self._block_size)
        starts, target = column[COMPUTED][rows], column[TARGET][rows]
        ends = advance(starts, tokens)
        samples = ends == target
        all_sample = every(samples)
        if growing.size:
            self._must_be_free(new_blocks[growing].tolist(), covered[growing].tolist())
        if some(ends > room):
            raise self._no_launch("a hold does not cover the tokens")
        if tokens is not self._proven_tokens:
            if not every(tokens > 0):
                raise self._no_launch("a row has no tokens")
            if some(ends < starts):
                raise self._no_launch("a row has more tokens than 64 bits can add up")
        if not all_sample and some(ends > target):
            raise self._no_launch("a row has more tokens than will be known")
        if not self._engine_event(LAUNCH_STEP).went:
            return None
        step = self._engine.launched
        replay = LaneReplay(self, rows) if self.replays else None
        if growing.size:
            self._grow(rows, new_blocks, growing)
        self._proven_rows, self._proven_at, self._proven_tokens = rows, self._disturbances, tokens
        self._covered, self._room, self._proven_holds = covered, room, self._holds_version
        known = None
        if self._steps:  # else no token is still to be sampled
            known = length(column[PROMPT][rows], column[DELIVERED][rows])
        column[COMPUTED][rows] = ends
        column[NEWEST_STEP][rows] = step
        column[TARGET][rows] = target + samples
        for array in (starts, ends, samples, covered):
            array.setflags(write=False)
        launched = LaunchedStep(
            step,
            rows,
            starts,
            tokens,
            ends,
            samples,
            all_sample,
            known,
            covered,
            self._disturbances,
        )
        self._steps[step] = launched
        self._newest_rows = rows
        self._moves += 1
        if replay is not None:
            replay.launched(step, tokens, new_blocks)
        return launched

    def _same_again(self, tokens: Int64Array, new_blocks: Int64Array) -> bool:
        """Whether all but the new blocks is what the last step was launched with."""
        return (
            tokens is self._proven_tokens
            and type(new_blocks) is np.ndarray
            and new_blocks.dtype == INT64
            and new_blocks.shape == tokens.shape
        )

    def _told_to_launch(
        self, rows: Int64Array, tokens: Int64Array, new_blocks: Int64Array
    ) -> tuple[Int64Array, Int64Array, Int64Array]:
        """What `launch` is told, as arrays that nobody else writes to. Raises RefusedError."""
        ids, counts, more = integers(rows), integers(tokens), integers(new_blocks)
        if ids is None or counts is None or more is None:
            raise self._no_launch("rows, tokens and new blocks are lists of integers")
        if not len(ids) == len(counts) == len(more):
            raise self._no_launch("each row has its tokens and its new blocks")
        if ids.flags.writeable:
            ids = ids.copy()
            ids.setflags(write=False)
        if counts.flags.writeable:
            counts = counts.copy()
            counts.setflags(write=False)
        return ids, counts, more

    def _must_run(self, rows: Int64Array) -> None:
        """Every row is a request that runs, and none is named twice."""
        if not every((rows >= 0) & (rows < len(self._ids))):
            raise self._no_launch("a row is no request's")
        running = self._column[STATE][rows] == RUNNING
        if not every(running):
            row = int(rows[~running][0])
            raise refused_request(self._ids[row], self.state_of(row), LAUNCH, "it does not run")
        if rows.size and not every(np.bincount(rows) < 2):
            raise self._no_launch("a row is named twice")

    def _must_be_free(self, new_blocks: list[int], covered: list[int]) -> None:
        """The new blocks are free, and the tables have room for the blocks then covered."""
        if min(new_blocks) < 0 or max(covered) > self._table_width:
            raise self._no_launch(f"a table has room for {self._table_width} blocks")
        total, free = sum(new_blocks), self.free_for()
        if total > free:
            raise self._no_launch(f"{total} new blocks, but {free} are free")

    def _no_launch(self, why: str) -> RefusedError:
        return refused_engine(self.mode, LAUNCH_STEP, why)

    def _grow(self, rows: Int64Array, new_blocks: Int64Array, growing: Int64Array) -> None:
        tables, ledger, column = self._tables, self._ledger, self._column[COVERED]
        grown = rows[growing]
        more = new_blocks[growing]
        covered = column[grown]
        last = tables[grown, covered - 1].tolist()
        replay = BlockReplay(ledger) if self._config.check else None
        if every(more == 1):
            tables[grown, covered] = ledger.take_one_each(last)
        else:
            for row, at, after, count in zip(
                grown.tolist(), covered.tolist(), last, more.tolist(), strict=True
            ):
                tables[row, at : at + count] = ledger.take_fresh(count, after)
        column[grown] = advance(covered, more)
        self._holds_version += 1
        if replay is not None:
            for row, at, count in zip(grown.tolist(), covered.tolist(), more.tolist(), strict=True):
                table = tables[row, : at + count].tolist()
                replay.request(TAKE, table[:at], table, fresh=table[at:])
            replay.compare("the tables that grow")

    def settle(
        self,
        step: int,
        sampled: Int32Array,
        failed: Iterable[int] = (),
        judge: Judge = _nobody_stops,
    ) -> Settled:
        """Process the oldest launched step: `sampled` has a token for each of its rows, or -1.

        `failed` rows get no token and end in FINISHED_ERROR. `judge` is shown what is delivered
        and says whose turn ends.

        Raises RefusedError, with nothing changed, for a step that is not the oldest in flight, for
        results that are not one for each row, and for a failed row that the step has not. What is
        delivered cannot be taken back, so a judge that raises, or stops what it cannot, is told
        when the step is settled without its stops.
        """
        sampled, failed = self._settleable(step, sampled, failed)
        launched = self._steps[step]
        outcome = self._engine_event(STEP_PROCESSED, step=step)
        assert outcome.went, f"step {step} is not the oldest one in flight"
        del self._steps[step]
        rows = launched.rows
        replay = LaneReplay(self, rows) if self.replays else None

        column = self._column
        undisturbed = launched.disturbances == self._disturbances
        if undisturbed and launched.all_sample and not failed and every(sampled >= 0):
            # Only lanes have touched these requests since the launch: all of them run, what is
            # written now is what was computed then, and each sequence ends where its token goes.
            out_rows, out_tokens = rows, sampled
            self._written(rows, launched.ends)
            lengths = self._deliver(rows, sampled, launched.ends)
            if replay is not None:
                replay.settled(step, launched, launched.samples, launched.samples)
        else:
            self._disturbances += 1
            state = column[STATE][rows]
            counts = fresh_output(step, column[STALE_STEP][rows])
            failing = np.isin(rows, failed) if failed else np.zeros(len(rows), dtype=np.bool_)
            counts &= ~failing
            writes = counts & (column[COVERED][rows] > 0)
            outputs = counts & launched.samples & (sampled >= 0)
            outputs &= (state == RUNNING) | (state == PREEMPTED)
            out_rows, out_tokens = rows[outputs], sampled[outputs]
            written = rows[writes]
            self._written(written, advance(column[WRITTEN][written], launched.counts[writes]))
            known = length(column[PROMPT][out_rows], column[DELIVERED][out_rows])
            lengths = self._deliver(out_rows, out_tokens, known)
            if replay is not None:
                replay.settled(step, launched, writes, outputs)
                replay.skipped(step, ~(writes | failing), PUBLISH, launched.counts)
                silent = ~(outputs | failing) & launched.samples
                replay.skipped(step, silent, OUTPUT, np.ones_like(rows))

        try:
            stopped = self._stoppable(
                judge(out_rows, out_tokens, lengths, column[LIMIT][out_rows]), rows
            )
        except BaseException:  # Ctrl-C too: the step's holds must not outlive it
            self._end_failed(failed, step)
            self._end_step(step)
            raise
        for stop in stopped:
            self.stop(stop.row, step, stop.reason, at_limit=stop.at_limit)
        ended = self._end_failed(failed, step)
        self._end_step(step)
        return Settled(step, out_rows, out_tokens, lengths, stopped, ended)

    def _settleable(
        self, step: int, sampled: Int32Array, failed: Iterable[int]
    ) -> tuple[Int32Array, tuple[int, ...]]:
        """What `settle` is told, in its types. Raises RefusedError."""
        if step not in self._steps or step != self._engine.processed + 1:
            why = f"step {step} is not the oldest one in flight"
            raise refused_engine(self.mode, STEP_PROCESSED, why)
        rows, tokens = self._steps[step].rows, as_token_ids(sampled)
        if tokens is None or len(tokens) != len(rows):
            why = f"step {step} has {len(rows)} rows, and its results are no token for each"
            raise refused_engine(self.mode, STEP_PROCESSED, why)
        failed = tuple(failed)
        if failed and not set(failed) <= set(rows.tolist()):
            why = f"step {step} has not all of the rows {failed}"
            raise refused_engine(self.mode, STEP_PROCESSED, why)
        return tokens, failed

    def _stoppable(self, stops: Iterable[Stop], rows: Int64Array) -> tuple[Stop, ...]:
        """What the judge says. Raises RefusedError for a stop that cannot be."""
        stops = tuple(stops)
        if stops:
            known = set(rows.tolist())
            for stop in stops:
                if not (isinstance(stop, Stop) and stop.row in known):
                    why = f"{stop} stops no row of the step"
                    raise refused_engine(self.mode, "stop", why)
                if stop.reason not in STOP_REASONS:
                    why = f"{stop.reason} is no way in which a turn ends by its output"
                    raise refused_request(self._ids[stop.row], RUNNING, STOP, why)
        return stops

    def _end_failed(self, failed: Iterable[int], step: int) -> tuple[int, ...]:
        """The requests end that a step has failed, unless it is stale for them. Returns those."""
        ended = []
        for row in failed:
            if counts_for(self, row, step):
                self._ask_blank()
                if self._fire(row, ERROR).went:
                    ended.append(row)
        return tuple(ended)

    def _end_step(self, step: int) -> None:
        """The STEP holds of a processed step end."""
        ledger = self._ledger
        if not self._config.check:
            ledger.end_step(step)
            return
        replay, holds = BlockReplay(ledger), list(step_holds_of(ledger))
        ledger.end_step(step)
        replay.processed(step, holds, step_holds_of(ledger))
        replay.compare(f"the holds of step {step}")

    def _written(self, rows: Int64Array, written: Int64Array) -> None:
        """PUBLISH for all: `written` tokens are, and the blocks that are full by now are hits."""
        column = self._column
        column[WRITTEN][rows] = written
        full = written // self._block_size
        hashed = column[HASHED][rows]
        filled = (full > hashed).nonzero()[0]
        if filled.size:
            column[HASHED][rows[filled]] = full[filled]
            changed = (rows[filled].tolist(), hashed[filled].tolist(), full[filled].tolist())
            for row, first, end in zip(*changed, strict=True):
                self._publish(row, first, end)

    def _deliver(self, rows: Int64Array, tokens: Int32Array, known: Int64Array) -> Int64Array:
        """OUTPUT for all: a token each joins the `known` ones. Returns the lengths with it."""
        delivered = self._column[DELIVERED]
        self._tokens[rows, known] = tokens
        delivered[rows] = advance(delivered[rows], 1)
        lengths: Int64Array = advance(known, 1)
        return lengths

    # --- letting go of all ------------------------------------------------------------------------

    def _let_go_at_once(self, rows: Int64Array, events: Int64Array) -> None:
        """PREEMPT or RECLAIM for each row, then every cached prefix without a hold is dropped.

        rows, events: [n], int64. All rows are resident, and all that run are sent PREEMPT. No step
        is in flight, so every hold is released.
        """
        replay = BlockReplay(self._ledger) if self._config.check else None
        tables = [self.table(row).tolist() for row in rows.tolist()] if replay is not None else []
        self._ledger.release_and_forget(self._let_go(rows, events))
        if replay is not None:
            for table in tables:
                replay.request(RELEASE, table, ())
            replay.dropped()
            replay.compare("what lets go at once")

    def _let_go(self, rows: Int64Array, events: Int64Array) -> Int32Array:
        """The events alone. Returns the blocks of all holds, one by one, each with its tail first.

        The caller gives them to the ledger.
        """
        if not rows.size:
            return np.zeros(0, dtype=np.int32)
        replay = LaneReplay(self, rows) if self.replays else None
        self._proven_rows = None
        column = self._column
        width = int(column[COVERED][rows].max())
        blocks = self._tables[rows, :width][:, ::-1].ravel()
        self._tables[rows, :width] = -1
        self._reserved -= int(column[RESERVED][rows].sum())
        for fact in (COMPUTED, WRITTEN, HASHED, RESERVED, COVERED):
            column[fact][rows] = 0
        states = column[STATE][rows]
        runs = events == PREEMPT
        column[STATE][rows[runs]] = PREEMPTED
        for row in rows[states == WAITING_FOR_STREAMING_REQ].tolist():
            self._count_parked(row)
        assert len(self._running) == int(np.count_nonzero(runs)), "all that run let go"
        self._waiting.absorb(self._running)
        now = self._clock()
        preempted = (now, PREEMPT, RUNNING, PREEMPTED, _PREEMPTS)
        for row, state in zip(rows.tolist(), states.tolist(), strict=True):
            reclaimed = (now, RECLAIM, state, state, _RECLAIMS)
            self._history[row].append(preempted if state == RUNNING else reclaimed)
        self._moves += len(rows)
        self._holds_version += 1
        if replay is not None:
            replay.let_go(runs)
        return blocks[blocks >= 0]


def _going(state: int, event: int) -> int:
    """The code of the row that goes, without its commands."""
    return next(
        number << ROW_SHIFT for number, row in REQUEST.table.cell(state, event) if row.answer == GO
    )


_PREEMPTS = _going(RUNNING, PREEMPT)
_RECLAIMS = _going(WAITING, RECLAIM)


def counts_for(lanes: StepLanes, row: int, step: int) -> bool:
    """Whether a step's failure still concerns the request in that row."""
    return bool(fresh_output(step, int(lanes.view.stale_step[row])))
