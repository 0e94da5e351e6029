"""The engine's core: requests in, steps through, outputs out. One thread, no waiting of its own.

Whoever drives it calls `tick` (what is due: transfers, deadlines, pending calls), `launch_step`
and `finish_step`; `Engine` in `engine.py` does so in a loop of its own.
"""

from __future__ import annotations

import itertools
import logging
import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..statemachine.errors import RefusedError
from ..statemachine.gates import clocks_stand_still
from ..statemachine.lanes import capacity, in_flight
from ..statemachine.request import REQUEST, container
from ..statemachine.states import (
    DRAINING,
    FINISHED,
    FINISHED_ABORTED,
    FINISHED_ERROR,
    FINISHED_IGNORED,
    FINISHED_LENGTH_CAPPED,
    FINISHED_REPETITION,
    FINISHED_STOPPED,
    STOPPED,
    WAITING,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
    Container,
    EngineEvent,
    EngineMode,
    RequestEvent,
    RequestState,
)
from .api import (
    DuplicateRequestError,
    EngineClosedError,
    EngineConfig,
    EngineStats,
    FinishReason,
    Holder,
    InvalidRequestError,
    RequestInfo,
    RequestOutput,
    SessionError,
    TokenLogprobs,
    UnknownRequestError,
)
from .batch import BatchBuilder
from .columns import Int64Array, every
from .deadlines import Deadlines, PausableClock
from .lifecycle import Lifecycle, Settled, Stop
from .protocols import Connector, Int32Array, Runner, StepResult
from .sampling_params import SamplingParams
from .scheduler import Scheduler
from .sessions import OnOutput, Request, TextFactory
from .trace_writer import TraceWriter
from .transfers.manager import TransferManager
from .watchdog import Watchdog

_log = logging.getLogger(__name__)

_REASONS = {
    FINISHED_STOPPED: FinishReason.STOP,
    FINISHED_LENGTH_CAPPED: FinishReason.LENGTH,
    FINISHED_REPETITION: FinishReason.REPETITION,
    FINISHED_ABORTED: FinishReason.ABORT,
    FINISHED_IGNORED: FinishReason.IGNORED,
    FINISHED_ERROR: FinishReason.ERROR,
}

#: How many finished requests are remembered for `request_info`.
REMEMBERED = 256


class CoreBase:
    """Requests, steps and outputs; `control.py` adds the calls to the engine as a whole."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        connector: Connector | None = None,
        *,
        eos_token_ids: Iterable[int] = (),
        text: TextFactory | None = None,
        vocabulary: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Tokens of a request must be below `vocabulary`, if it is given; `text` makes text."""
        if config.policy not in ("fcfs", "priority"):
            raise ValueError(f"policy {config.policy!r}; known are fcfs and priority")
        self.config = config
        self.clock = clock
        self.runner = runner
        self.lifecycle = Lifecycle(config, clock)
        self.transfers: TransferManager | None = None
        if connector is not None:
            self.transfers = TransferManager(
                self.lifecycle, connector, runner.kv.bytes_per_block, clock
            )
        self.scheduler = Scheduler(self.lifecycle, self.transfers)
        self._batches = BatchBuilder(self.lifecycle)
        self.watchdog = Watchdog(self.lifecycle, config.watchdog, clock)
        self._eos = frozenset(eos_token_ids)
        self._new_text = text
        self._vocabulary = vocabulary
        self._requests: dict[int, Request] = {}
        #: Every token that may end some turn, and how many requests have text to be looked at:
        #: with neither in a step, nobody need be asked one by one.
        self._stop_tokens: set[int] = set()
        self._texts = 0
        #: No sequence is longer, whatever its turn allows: the model's length or the pool's. Who
        #: only outgrows what quarantine has left of the pool gets an error from the scheduler.
        self._longest = min(
            config.max_model_len, capacity(config.num_blocks, config.block_size) + 1
        )
        self._text_failed: list[int] = []
        self._remembered: OrderedDict[str, RequestInfo] = OrderedDict()
        self._session_clock = PausableClock(clock)
        self._session_deadlines = Deadlines(self._session_clock)
        self._load_deadlines = Deadlines(clock)
        self._waits = itertools.count(1)
        #: Steps whose launch failed: no result will come from the runner.
        self._broken: dict[int, Exception] = {}
        self._trace: TraceWriter | None = None
        self._finish_counts: Counter[str] = Counter()
        self._preemptions = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._prefix_queries = 0
        self._prefix_hits = 0

    # --- requests -------------------------------------------------------------------------------

    def add_request(
        self,
        request_id: str,
        tokens: Int32Array | Sequence[int],
        params: SamplingParams,
        *,
        on_output: OnOutput,
        priority: int = 0,
        resumable: bool = False,
        salt: bytes = b"",
        text: TextFactory | None = None,
    ) -> None:
        """Take a request in; `on_output` is told of its tokens on the thread that drives this.

        Raises InvalidRequestError, DuplicateRequestError, EngineClosedError.
        """
        if not isinstance(request_id, str) or not callable(on_output):
            raise InvalidRequestError("a request has an id, a str, and an on_output to call")
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(f"{params!r} are no SamplingParams")
        ids = self._checked(tokens, "prompt")
        self._engine_takes(EngineEvent.ADD)
        if self.lifecycle.row_of(request_id) is not None:
            raise DuplicateRequestError(
                f"{request_id!r} is live, or a step or transfer of its last life is left"
            )
        try:
            row = self.lifecycle.add(
                request_id,
                ids,
                resumable=resumable,
                priority=priority if self.config.policy == "priority" else 0,
                salt=salt,
            )
        except RefusedError as refusal:
            raise InvalidRequestError(f"{request_id!r}: {refusal.why}") from refusal
        if self.lifecycle.state_of(row) == FINISHED_IGNORED:
            self.lifecycle.forget(row, idle=True)
            self._finish_counts[FinishReason.IGNORED.value] += 1
            raise InvalidRequestError(
                f"{request_id!r}: {len(ids)} tokens; the model takes fewer than "
                f"{self.config.max_model_len}, the pool {self._pool_tokens()} at most"
            )
        request = Request(request_id, row, params, on_output, text or self._new_text, self._eos)
        self._requests[row] = request
        if request.new_text is not None:
            self._texts += 1
        self._begin_turn(request, params)
        self._prompt_tokens += len(ids)

    def add_chunk(
        self,
        request_id: str,
        tokens: Int32Array | Sequence[int],
        params: SamplingParams | None = None,
    ) -> None:
        """A session's next input; it waits until the present turn is over.

        Raises UnknownRequestError, SessionError, InvalidRequestError, EngineClosedError.
        """
        if params is not None and not isinstance(params, SamplingParams):
            raise InvalidRequestError(f"{params!r} are no SamplingParams")
        ids = self._checked(tokens, "chunk")
        self._engine_takes(EngineEvent.CHUNK)
        request = self._request(request_id)
        parked = self.lifecycle.state_of(request.row) == WAITING_FOR_STREAMING_REQ
        try:
            self.lifecycle.chunk(request.row, ids)
        except RefusedError as refusal:
            raise SessionError(f"{request_id!r}: {refusal.why}") from refusal
        self._prompt_tokens += len(ids)
        if parked:
            self._next_turn(request, params)
        else:
            request.queued.append(params)

    def close_input(self, request_id: str) -> bool:
        """A session gets no further input; what it has is finished.

        False when its input is closed already, or it is finished or unknown. Raises SessionError
        for what is no session.
        """
        row = self.lifecycle.row_of(request_id)
        if row is None:
            self.lifecycle.ignored["request.close_input"] += 1
            return False
        try:
            went = self.lifecycle.close_input(row).went
        except RefusedError as refusal:
            raise SessionError(f"{request_id!r}: {refusal.why}") from refusal
        self._sweep()
        return went

    def abort(self, request_id: str) -> bool:
        """The client gives up on a request. False when it is finished or unknown."""
        row = self.lifecycle.row_of(request_id)
        if row is None:
            self.lifecycle.ignored["request.abort"] += 1
            return False
        went = self.lifecycle.abort(row).went
        self._sweep()
        return went

    def _request(self, request_id: str) -> Request:
        row = self.lifecycle.row_of(request_id)
        request = None if row is None else self._requests.get(row)
        if request is None:
            raise UnknownRequestError(f"no live request {request_id!r} is known")
        return request

    def _checked(self, tokens: Int32Array | Sequence[int], what: str) -> Int32Array:
        """The tokens as an int32 array of our own."""
        try:
            if isinstance(tokens, np.ndarray):
                ids = np.array(tokens, dtype=np.int32)
                exact = tokens.ndim == 1 and np.array_equal(ids, tokens)
            else:
                ids = np.frombuffer(array("i", tokens), dtype=np.int32)
                exact = True
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidRequestError(f"the {what} is no list of token ids: {error}") from error
        if not exact:
            raise InvalidRequestError(f"the {what} is no flat list of token ids")
        if not ids.size:
            raise InvalidRequestError(f"the {what} is empty")
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0 or (self._vocabulary is not None and highest >= self._vocabulary):
            wrong = lowest if lowest < 0 else highest
            raise InvalidRequestError(f"the {what} has {wrong}, which is no token of the model")
        return ids

    def _engine_takes(self, event: int) -> None:
        try:
            self.lifecycle.engine_event(event)
        except RefusedError as refusal:
            raise EngineClosedError(refusal.why) from refusal

    def _pool_tokens(self) -> int:
        return self.lifecycle.longest - 1

    def _begin_turn(self, request: Request, params: SamplingParams | None) -> None:
        view, row = self.lifecycle.view, request.row
        request.begin_turn(
            params, int(view.prompt[row]), int(view.delivered[row]), self.config.max_model_len
        )
        self.lifecycle.set_limit(row, request.limit)
        self._stop_tokens |= request.stops

    def _next_turn(self, request: Request, params: SamplingParams | None) -> None:
        request.turn += 1
        request.wait = next(self._waits)
        self._begin_turn(request, params)

    # --- steps ----------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Steps launched and not processed."""
        return self.lifecycle.in_flight

    def launch_step(self) -> bool:
        """Plan the next step and launch it. False when there is nothing to launch now."""
        lifecycle = self.lifecycle
        if lifecycle.in_flight >= self.config.steps_in_flight:
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
            for admission in done.admitted:
                self._bind(admission.row)
            batch = self._batches.build(launched)
            try:
                self.runner.launch(batch)
            except Exception as error:
                _log.exception("step %d could not be launched", launched.step)
                self._broken[launched.step] = error
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

    def _bind(self, row: int) -> None:
        """The runner learns what the present turn starts from."""
        request = self._requests[row]
        if not request.bound:
            view = self.lifecycle.view
            outputs = int(view.delivered[row] - view.turn_start[row])
            tokens = self.lifecycle.sequence(row).copy()
            self.runner.bind(row, request.params, tokens, outputs)
            request.bound = True

    def finish_step(self, timeout: float | None = None) -> bool:
        """Collect the oldest launched step and process it. False when none is in flight.

        Waits for the device at most `timeout` seconds, for ever if None. Raises TimeoutError.
        """
        steps = self.lifecycle.steps_in_flight
        if not steps:
            return False
        launched = steps[0]
        broken = self._broken.pop(launched.step, None)
        result: StepResult
        if broken is None:
            try:
                result = self.runner.collect(launched.step, timeout)
            except TimeoutError:
                raise
            except Exception as error:
                _log.exception("step %d failed", launched.step)
                broken = error
        if broken is not None:
            rows = launched.rows.astype(np.int32)
            result = StepResult(
                launched.step,
                rows,
                np.full(len(rows), -1, dtype=np.int32),
                dict.fromkeys(rows.tolist(), broken),
            )
        self._settle(result)
        return True

    def process_launched(self) -> None:
        """Process every launched step; they end without anyone's help."""
        while self.finish_step():
            pass

    def _settle(self, result: StepResult) -> None:
        lifecycle = self.lifecycle
        for row, error in result.errors.items():
            request = self._requests.get(row)
            if request is not None and lifecycle.state_of(row) not in FINISHED:
                request.error = f"{type(error).__name__}: {error}"
        settled = lifecycle.settle(result.step, result.sampled, result.errors.keys(), self._judge)
        self._deliver(settled, result.logprobs)
        while self._text_failed:
            lifecycle.error(self._text_failed.pop())
        if lifecycle.finished:
            self._sweep()
        self.check()

    def _deliver(self, settled: Settled, logprobs: Mapping[int, Any]) -> None:
        """Tell each client of its token, and of its turn's end if it ended by it."""
        stopped = {stop.row for stop in settled.stopped}
        self._generation_tokens += len(settled.rows)
        requests = self._requests
        for row, token, length in zip(
            settled.rows.tolist(), settled.tokens.tolist(), settled.lengths.tolist(), strict=True
        ):
            request = requests.get(row)
            if request is None:
                continue  # another client's on_output has aborted it
            reason = self._turn_ended(request) if row in stopped else None
            found: tuple[TokenLogprobs, ...] = (logprobs[row],) if row in logprobs else ()
            output = request.output((token,), length, reason, found)
            if reason is not None:
                self._after_turn(request)
            try:
                request.on_output(output)
            except Exception:
                # The client's own fault must not end the others.
                _log.exception("on_output of %r failed", request.id)

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
            except Exception as error:
                _log.exception("the text of %r failed", request.id)
                request.error = f"its text could not be made: {error}"
                self._text_failed.append(row)
                continue
            if stops:
                yield Stop(row, FINISHED_STOPPED, at_limit=length >= hard)
            elif length >= request.limit or length >= hard:
                yield Stop(row, FINISHED_LENGTH_CAPPED, at_limit=length >= hard)

    def _turn_ended(self, request: Request) -> FinishReason:
        state = self.lifecycle.state_of(request.row)
        return _REASONS.get(state, FinishReason.TURN)

    def _after_turn(self, request: Request) -> None:
        """A session's turn is over: the next one begins, or the session parks."""
        state = self.lifecycle.state_of(request.row)
        if state in FINISHED:
            self._forget_client(request)
        elif state == WAITING:
            self._next_turn(request, request.queued.popleft())
        elif state == WAITING_FOR_STREAMING_REQ:
            request.wait = next(self._waits)
            self._session_deadlines.add(self.config.session_deadline, request.row, request.wait)

    def _tell(self, request: Request, output: RequestOutput) -> None:
        try:
            request.on_output(output)
        except Exception:
            # The client's own fault must not end the others.
            _log.exception("on_output of %r failed", request.id)

    # --- the end of requests --------------------------------------------------------------------

    def _sweep(self) -> None:
        """Tell the clients of requests that ended without a step, and forget what can be."""
        lifecycle = self.lifecycle
        for row in list(lifecycle.finished):
            request = self._requests.get(row)
            if request is not None:
                reason = _REASONS[lifecycle.state_of(row)]
                length = request.prompt_tokens + int(lifecycle.view.delivered[row])
                output = request.output((), length, reason)
                self._forget_client(request)
                self._tell(request, output)
            left = in_flight(int(lifecycle.view.newest_step[row]), lifecycle.processed)
            if not left and not lifecycle.owns_open_transfer(lifecycle.id_of(row)):
                lifecycle.forget(row, idle=True)

    def _forget_client(self, request: Request) -> None:
        """Nothing more is said to the client; the record stays until it is forgotten."""
        row = request.row
        info = self._info(row)
        self._remembered[request.id] = info
        self._remembered.move_to_end(request.id)
        if len(self._remembered) > REMEMBERED:
            self._remembered.popitem(last=False)
        self._finish_counts[_REASONS[self.lifecycle.state_of(row)].value] += 1
        del self._requests[row]
        if request.new_text is not None:
            self._texts -= 1
        if not self._requests:
            self._stop_tokens.clear()
        if request.bound:
            self.runner.unbind(row)

    # --- what is due ----------------------------------------------------------------------------

    def tick(self) -> None:
        """Everything that is due between two steps. Never blocks."""
        if self.transfers is not None:
            self.transfers.tick()
        if len(self._load_deadlines) or len(self._session_deadlines):
            self._end_waits()
        if self.lifecycle.finished:
            self._sweep()
        self.watchdog.look()

    def _end_waits(self) -> None:
        self._session_clock.stand_still(clocks_stand_still(self.lifecycle.engine))
        for row, wait in (*self._load_deadlines.due(), *self._session_deadlines.due()):
            request = self._requests.get(row)
            if request is None or request.wait != wait:
                continue
            state = self.lifecycle.state_of(row)
            if state == WAITING_FOR_STREAMING_REQ:
                request.error = "no chunk came in time"
                self.lifecycle.deadline(row)
            elif state == WAITING_FOR_REMOTE_KVS:
                self.lifecycle.deadline(row)

    def next_time(self) -> float | None:
        """Seconds until something is due, None when nothing is."""
        times = [self._load_deadlines.next_in()]
        if not self._session_clock.standing:
            times.append(self._session_deadlines.next_in())
        if self.transfers is not None:
            lease = self.transfers.next_lease()
            times.append(None if lease is None else max(0.0, lease - self.clock()))
        known = [seconds for seconds in times if seconds is not None]
        return min(known) if known else None

    def check(self) -> None:
        """With `check` in the configuration: recompute all counts and containers."""
        if self.config.check:
            self.lifecycle.check()

    # --- looking --------------------------------------------------------------------------------

    def requests(self) -> list[Request]:
        """The requests whose clients are still to be told something."""
        return list(self._requests.values())

    def trace(self, path: str | Path | None) -> None:
        """Write every transition from now on to a file; None ends the trace. Raises OSError."""
        writer = None if path is None else TraceWriter(path, self.clock)
        if self._trace is not None:
            self._trace.close()
        self._trace = self.lifecycle.witness = writer

    def holds(self) -> list[Holder]:
        """Who keeps which blocks, since when."""
        return self.lifecycle.holds()

    def is_paused(self) -> bool:
        """Whether nothing runs because a client asked for it; sleeping is paused too."""
        mode = self.lifecycle.mode
        return mode in (EngineMode.PAUSED, EngineMode.SLEEPING, EngineMode.WAKING)

    def is_sleeping(self) -> bool:
        """Whether memory is given back."""
        return self.lifecycle.mode in (EngineMode.SLEEPING, EngineMode.WAKING)

    def healthy(self) -> tuple[bool, str]:
        """Whether requests can be served, and if not, why."""
        if self.lifecycle.mode == STOPPED:
            return False, "the engine has stopped"
        if self.watchdog.stuck_for:
            return False, self.watchdog.report
        return True, "draining" if self.lifecycle.mode == DRAINING else ""

    def request_info(self, request_id: str) -> RequestInfo | None:
        """One request's facts and last transitions; of a finished one, as it ended."""
        row = self.lifecycle.row_of(request_id)
        if row is None:
            return self._remembered.get(request_id)
        return self._info(row)

    def _info(self, row: int) -> RequestInfo:
        state = self.lifecycle.state_of(row)
        table = REQUEST.table
        return RequestInfo(
            request_id=self.lifecycle.id_of(row),
            state=RequestState(state).name,
            container=Container(container(state)).name.lower(),
            facts=self.lifecycle.view.facts(row),
            transitions=[
                {
                    "time": at,
                    "event": RequestEvent(event).name.lower(),
                    "from": RequestState(source).name,
                    "to": RequestState(dest).name,
                    "why": table.rows[code >> 16].why,
                }
                for at, event, source, dest, code in self.lifecycle.history_of(row)
            ],
        )

    def stats(self) -> EngineStats:
        """One consistent picture of the counters."""
        lifecycle, ledger, transfers = self.lifecycle, self.lifecycle.ledger, self.transfers
        return EngineStats(
            mode=EngineMode(lifecycle.mode).name.lower(),
            waiting=len(lifecycle.waiting),
            blocked=len(lifecycle.blocked),
            running=len(lifecycle.running),
            parked_sessions=len(lifecycle.parked),
            blocks_total=ledger.num_blocks,
            blocks_free=ledger.pool.free,
            blocks_cached=ledger.cached_blocks,
            blocks_quarantined=ledger.quarantined_blocks,
            holds=lifecycle.hold_counts(),
            steps_launched=lifecycle.launched,
            steps_processed=lifecycle.processed,
            preemptions=self._preemptions,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
            tier_loaded_bytes=transfers.loaded_bytes if transfers else 0,
            tier_stored_bytes=transfers.stored_bytes if transfers else 0,
            finished=dict(self._finish_counts),
            ignored_signals=dict(lifecycle.ignored),
            refused_resets=self._refused_resets(),
            watchdog_trips=self.watchdog.trips,
            stuck_for=self.watchdog.stuck_for,
        )

    def _refused_resets(self) -> dict[str, int]:
        return {}
