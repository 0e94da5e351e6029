"""Steps: planned, launched, collected and settled; what they sample goes to the clients."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ..statemachine.lanes import capacity
from ..statemachine.states import (
    FINISHED,
    FINISHED_LENGTH_CAPPED,
    FINISHED_STOPPED,
    WAITING_FOR_REMOTE_KVS,
)
from .api import TokenLogprobs
from .arguments import ends_the_program, in_words
from .batch import BatchBuilder
from .clients import Clients
from .columns import Int64Array, every
from .lifecycle import LaunchedStep, Lifecycle, Settled, Stop
from .protocols import Int32Array, RunnerError, StepBatch, StepResult
from .scheduler import Scheduler
from .sessions import Request, no_text
from .steps import counts_for

_log = logging.getLogger(__name__)

_INT32 = np.dtype(np.int32)
#: The usual ones: to ask whether a thing is an abstract Mapping takes a microsecond.
_MAPPINGS = (MappingProxyType, dict)


class Stepping(Clients):
    """One or two steps in flight, of a runner that executes them in order."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        config = self.config
        blocks = self.runner.kv.num_blocks
        if blocks < config.num_blocks:
            raise RunnerError(
                f"EngineConfig.num_blocks is {config.num_blocks}, "
                f"and the runner's device has {blocks} (kv.num_blocks)"
            )
        self.scheduler = Scheduler(self.lifecycle, self.transfers)
        self._batches = BatchBuilder(self.lifecycle)
        #: No sequence is longer, whatever its turn allows: the model's length or the pool's. Who
        #: only outgrows what quarantine has left of the pool gets an error from the scheduler.
        self._longest = min(
            config.max_model_len, capacity(config.num_blocks, config.block_size) + 1
        )
        #: Steps whose launch failed: no result will come from the runner.
        self._broken: dict[int, Exception] = {}
        #: By step, the rows that it was launched without, because they could not be bound.
        self._unbound: dict[int, dict[int, Exception]] = {}
        self._preemptions = 0
        self._generation_tokens = 0
        self._prefix_queries = 0
        self._prefix_hits = 0

    # --- steps ----------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Steps launched and not processed."""
        return self.lifecycle.in_flight

    def launch_step(self) -> bool:
        """Plan the next step and launch it. False when there is nothing to launch now.

        Raises RejectedCallError from within an output: what the present step delivered is not
        dealt with yet.
        """
        self._not_from_within()
        lifecycle = self.lifecycle
        if lifecycle.in_flight >= self.config.steps_in_flight or self._broken or self._unbound:
            return False
        if not len(lifecycle.running) and not len(lifecycle.waiting):
            return False
        plan = self.scheduler.plan(self.config.max_batched_tokens)
        if plan.empty:
            return False
        done = self.scheduler.carry_out(plan)
        self._preemptions += len(done.preempted)
        for row in done.errors:
            self._requests[row].error = "it cannot fit in the block pool, even alone"
        for admission in done.admitted:
            self._admitted(admission.row, len(admission.hits))
            if self.transfers is not None and len(admission.hits):
                self.transfers.keep_stored(admission.row, admission.hits.tolist())
        for load in done.loading:
            self._began_loading(load.row)
        launched = done.launched
        if launched is not None:
            unbound: dict[int, Exception] = {}
            for admission in done.admitted:
                self._bind(admission.row, unbound)
            batch = self._batches.build(launched)
            if unbound:
                self._unbound[launched.step] = unbound
                batch = _without(batch, unbound)
            try:
                if not unbound or len(batch.rows):
                    self.runner.launch(batch)
                else:
                    self._broken[launched.step] = RunnerError("none of its rows could be bound")
            except BaseException as error:
                self._broken[launched.step] = _contained(error)
                _log.exception("step %d could not be launched", launched.step)
        if lifecycle.finished:
            self._sweep()
        self.check()
        return launched is not None

    def _admitted(self, row: int, hits: int) -> None:
        view = self.lifecycle.view
        request = self._requests[row]
        if hits or view.written[row] == 0:
            self._prefix_queries += self.lifecycle.length(row)
            self._prefix_hits += hits * self.lifecycle.block_size
        if view.delivered[row] == view.turn_start[row]:
            computed = int(view.written[row])
            request.cached_tokens = min(computed, int(view.prompt[row]))

    def _began_loading(self, row: int) -> None:
        if self.lifecycle.state_of(row) == WAITING_FOR_REMOTE_KVS:
            request = self._requests[row]
            request.wait = next(self._waits)
            self._load_deadlines.add(self.config.load_deadline, row, request.wait)

    def _bind(self, row: int, unbound: dict[int, Exception]) -> None:
        """The runner learns what the present turn starts from; should it fail, say so there."""
        request = self._requests[row]
        if not request.bound:
            view = self.lifecycle.view
            outputs = int(view.delivered[row] - view.turn_start[row])
            tokens = self.lifecycle.sequence(row).copy()
            try:
                self.runner.bind(row, request.params, tokens, outputs)
            except BaseException as error:
                unbound[row] = _contained(error)
                _log.exception("%r could not be bound", request.id)
            else:
                request.bound = True

    def finish_step(self, timeout: float | None = None) -> bool:
        """Collect the oldest launched step and process it. False when none is in flight.

        Waits for the device at most `timeout` seconds, for ever if None. Raises TimeoutError only
        if given a timeout (without one, a runner's fails the step), and RejectedCallError from
        within an output: a later step's would overtake it.
        """
        self._not_from_within()
        steps = self.lifecycle.steps_in_flight
        if not steps:
            return False
        launched = steps[0]
        broken = self._broken.pop(launched.step, None)
        result: StepResult
        if broken is None:
            try:
                result = self._read(self.runner.collect(launched.step, timeout), launched)
            except BaseException as error:
                if isinstance(error, TimeoutError) and timeout is not None:
                    raise
                broken = _contained(error)
                _log.exception("step %d failed", launched.step)
        unbound = self._unbound.pop(launched.step, None)
        if broken is not None:
            rows = launched.rows.astype(np.int32)
            result = StepResult(
                launched.step,
                rows,
                np.full(len(rows), -1, dtype=np.int32),
                dict.fromkeys(rows.tolist(), broken) | (unbound or {}),
            )
        elif unbound:
            result = result._replace(errors={**result.errors, **unbound})
        self._settle(result)
        return True

    def _read(self, result: StepResult, launched: LaunchedStep) -> StepResult:
        """The result as the launched rows are ordered. Raises RunnerError if it is none."""
        wrong = _what_is_wrong(result, launched)
        if wrong:
            raise RunnerError(f"step {launched.step}: {wrong}")
        if result.errors:
            errors = {int(row): error for row, error in result.errors.items()}
            result = result._replace(errors=errors)
        if type(result.logprobs) not in _MAPPINGS:
            # A class of the runner's own: what it raises is raised here, and not half way.
            result = result._replace(logprobs=dict(result.logprobs))
        if not self._batches.in_order(result.rows, launched):
            result = _by_row(result, launched)
        if not every(result.sampled >= 0):
            result = _with_tokens(result, launched, self.lifecycle)
        return result

    def process_launched(self) -> None:
        """Process every launched step; they end without anyone's help."""
        while self.finish_step():
            pass

    def _settle(self, result: StepResult) -> None:
        lifecycle = self.lifecycle
        for row, error in result.errors.items():
            request = self._requests.get(row)
            if request is not None and lifecycle.state_of(row) not in FINISHED:
                request.error = in_words(error)
        self._making_text = True  # by `_judge`
        try:
            settled = lifecycle.settle(
                result.step, result.sampled, result.errors.keys(), self._judge
            )
        finally:
            self._making_text = False
        self._deliver(settled, result.logprobs)
        while self._text_failed:
            request = self._text_failed.pop()
            # Unless a client has ended it from within an output, and its row may be another's.
            if self._requests.get(request.row) is request:
                lifecycle.error(request.row)
        if lifecycle.finished:
            self._sweep()
        self.check()

    def _deliver(self, settled: Settled, logprobs: Mapping[int, Any]) -> None:
        """Tell each client of its token, and of its turn's end if it ended by it."""
        stopped = {stop.row for stop in settled.stopped}
        self._generation_tokens += len(settled.rows)
        requests = self._requests
        # What a client does from within its output may end another one, and give its row away.
        told = [requests[row] for row in settled.rows.tolist()]
        self._delivering = True  # no step is processed from within an output: it was False
        try:
            self._tell_each(told, settled, stopped, logprobs)
        finally:
            self._delivering = False

    def _tell_each(
        self,
        told: list[Request],
        settled: Settled,
        stopped: set[int],
        logprobs: Mapping[int, Any],
    ) -> None:
        requests = self._requests
        for request, token, length in zip(
            told, settled.tokens.tolist(), settled.lengths.tolist(), strict=True
        ):
            row = request.row
            if requests.get(row) is not request:
                continue
            found: tuple[TokenLogprobs, ...] = ()
            if logprobs and row in logprobs:
                found = (logprobs[row],)
            if row not in stopped:
                output = request.output((token,), length, None, found)
            else:
                reason = self._turn_ended(request)
                with self._text_is_made():
                    output = request.output((token,), length, reason, found)
                if output.finish_reason is None:  # the rest of its text could not be made
                    self._text_failed.append(request)
                else:
                    self._after_turn(request, output.finish_reason)
            try:
                request.on_output(output)
            except BaseException as error:
                self._on_output_failed(request, error)

    def _judge(
        self, rows: Int64Array, tokens: Int32Array, lengths: Int64Array, limits: Int64Array
    ) -> Iterable[Stop]:
        """Whose turn ends by the token that was just delivered."""
        hard = self._longest
        requests = self._requests
        sampled = tokens.tolist()
        if not self._texts and self._stop_tokens.isdisjoint(sampled) and every(lengths < limits):
            return  # nobody need be asked one by one
        for row, token, length in zip(rows.tolist(), sampled, lengths.tolist(), strict=True):
            request = requests[row]
            try:
                stops = request.stops_at(token, length)
            except BaseException as error:
                if ends_the_program(error):
                    raise
                _log.exception("the text of %r failed", request.id)
                self._text_fails(request, no_text(error))
                continue
            if stops:
                yield Stop(row, FINISHED_STOPPED, at_limit=length >= hard)
            elif length >= request.limit or length >= hard:
                yield Stop(row, FINISHED_LENGTH_CAPPED, at_limit=length >= hard)

    def check(self) -> None:
        """With `check` in the configuration: recompute all counts and containers."""
        if self.config.check:
            self.lifecycle.check()


def _what_is_wrong(result: Any, launched: LaunchedStep) -> str:
    """What makes this no result of the launched step; "" if it is one.

    A look at the arrays' types: nothing here grows with the step unless something has failed.
    """
    if not isinstance(result, StepResult):
        return f"collect gave {type(result).__name__}, not a StepResult"
    if result.step != launched.step:
        return f"the result is of step {result.step!r}"
    ids: Any  # whatever the runner put there
    for name, ids in (("rows", result.rows), ("sampled", result.sampled)):
        if not isinstance(ids, np.ndarray):
            return f"{name} is {type(ids).__name__}, not an int32 array"
        if ids.dtype != _INT32 or ids.ndim != 1:
            return f"{name} is {ids.dtype} {list(ids.shape)}, not int32 [n]"
    if len(result.rows) != len(result.sampled):
        return f"{len(result.sampled)} sampled tokens for {len(result.rows)} rows"
    told: Any
    for name, told in (("errors", result.errors), ("logprobs", result.logprobs)):
        if not isinstance(told, _MAPPINGS) and not isinstance(told, Mapping):
            return f"{name} is {type(told).__name__}, not a mapping"
    if result.errors:
        strangers = set(result.errors) - set(launched.rows.tolist())
        if strangers:
            return f"an error of row {strangers.pop()!r}, which the step does not have"
    return ""


def _contained(error: BaseException) -> Exception:
    """What a runner raised, as an error of the requests that it ends. Raises Ctrl-C again."""
    if ends_the_program(error):
        raise error
    return error if isinstance(error, Exception) else RunnerError(in_words(error))


def _without(batch: StepBatch, rows: Iterable[int]) -> StepBatch:
    """The batch without these rows."""
    kept = ~np.isin(batch.rows, list(rows))
    return batch._replace(
        rows=batch.rows[kept],
        starts=batch.starts[kept],
        counts=batch.counts[kept],
        tokens=batch.tokens[np.repeat(kept, batch.counts)],
        tables=batch.tables[kept],
        samples=batch.samples[kept],
    )


def _by_row(result: StepResult, launched: LaunchedStep) -> StepResult:
    """The result in the order of the launched rows; a row that it lacks has failed.

    Tokens are delivered by row: what a device says in another order must not change hands. Raises
    RunnerError if it says two things of one row.
    """
    rows = launched.rows
    place = {row: number for number, row in enumerate(result.rows.tolist())}
    if len(place) < len(result.rows):
        raise RunnerError(f"step {launched.step}: a row is in the result twice")
    sampled = np.full(len(rows), -1, dtype=np.int32)
    errors = dict(result.errors)
    for number, row in enumerate(rows.tolist()):
        if row in place:
            sampled[number] = result.sampled[place[row]]
        else:
            lacks = RunnerError(f"step {launched.step}: the device's result lacks it")
            errors.setdefault(row, lacks)
    return StepResult(result.step, rows.astype(np.int32), sampled, errors, result.logprobs)


def _with_tokens(result: StepResult, launched: LaunchedStep, lifecycle: Lifecycle) -> StepResult:
    """The result, in which a row has failed that should have sampled and has no token."""
    gaps = np.flatnonzero(launched.samples & (result.sampled < 0))
    errors = dict(result.errors)
    for row, token in zip(launched.rows[gaps].tolist(), result.sampled[gaps].tolist(), strict=True):
        if row not in errors and counts_for(lifecycle, row, launched.step):
            errors[row] = RunnerError(f"step {launched.step}: {token} is no token")
    return result._replace(errors=errors) if errors else result
