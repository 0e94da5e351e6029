"""Each of vLLM's requests has a record in the declaration, moved by what vLLM does.

Only changes are followed, never what a running request does in each step: a record's counters are
read from vLLM's own when one of its events comes. The answer to an event and the state that it
leads to are compared with what vLLM did; where they differ it is a departure, and the record
follows vLLM from there.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.request import RequestStatus

from ...statemachine import states
from ...statemachine.answers import ANSWER_MASK, GO, Answer
from ...statemachine.facts import Ask, EngineFacts, RequestFacts
from ...statemachine.request import REQUEST
from ...statemachine.reset import request_refuses
from ...statemachine.states import RequestEvent, RequestState
from .vllm_report import Report

#: vLLM tries a load as often as its connector offers one.
NO_LIMIT = 1 << 30

_STATES = {status: RequestState[status.name] for status in RequestStatus}


def declared_state(request: Any) -> int:
    """The declaration's state for a request of vLLM.

    A preempted request whose prefix was loaded holds blocks and waits to run: WAITING.
    """
    if request.status == RequestStatus.PREEMPTED and request.num_computed_tokens > 0:
        return states.WAITING
    return int(_STATES[request.status])


class Shadow:
    """The records of one scheduler's requests, by request id."""

    def __init__(self, scheduler: Any, report: Report) -> None:
        self._scheduler = scheduler
        self._report = report
        self._arrivals = 0
        self._loads = 0
        self.records: dict[str, RequestFacts] = {}
        self.engine = EngineFacts(
            mode=states.ACTIVE,  # what vLLM's pauses hold back is vLLM's to know
            weights_resident=True,
            cache_resident=True,
            block_size=scheduler.block_size,
            pool_blocks=scheduler.cache_config.num_gpu_blocks - 1,
            model_length=scheduler.max_model_len,
            loads_limit=NO_LIMIT,
            steps_ahead=NO_LIMIT,
        )
        self._tables = scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks

    # The clients.
    def added(self, request: Any) -> None:
        """vLLM took a new request in."""
        record = self.records[request.request_id] = RequestFacts()
        self._arrivals += 1
        grammar = request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        self._fire(
            record,
            states.ADD,
            request,
            tokens=request.num_prompt_tokens,
            grammar=grammar,
            resumable=request.resumable,
            priority=request.priority,
            arrival=self._arrivals,
        )

    def chunk(self, session: Any, tokens: int) -> None:
        """A chunk comes: called before vLLM takes it."""
        record = self._current(session)
        parked = record.state == states.WAITING_FOR_STREAMING_REQ
        to = states.WAITING if parked else record.state
        self._fire(record, states.CHUNK, session, to, tokens=tokens)

    def close(self, session: Any) -> None:
        """The end of a session's input comes: called before vLLM takes it."""
        record = self._current(session)
        parked = record.state == states.WAITING_FOR_STREAMING_REQ
        to = states.FINISHED_STOPPED if parked else record.state
        self._fire(record, states.CLOSE_INPUT, session, to)

    def ending(self, requests: list[Any], status: Any) -> None:
        """vLLM is about to end requests from outside their own output."""
        event = states.ERROR if status == RequestStatus.FINISHED_ERROR else states.ABORT
        for request in requests:
            self._fire(self._current(request), event, request, int(_STATES[status]))

    # Steps.
    def scheduled(self, output: Any) -> None:
        """vLLM scheduled a step: what it admitted is followed, what ran already is not."""
        admitted = [data.req_id for data in output.scheduled_new_reqs]
        admitted += output.scheduled_cached_reqs.resumed_req_ids
        for name in admitted:
            self._admitted(self._scheduler.requests[name], output.num_scheduled_tokens[name])
        if output.total_num_scheduled_tokens:
            self._launched(output)

    def _launched(self, output: Any) -> None:
        self.engine.launched += 1

    def _admitted(self, request: Any, scheduled: int) -> None:
        record = self._record(request)
        if record.state == states.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            self._fire(record, states.GRAMMAR_READY, request, states.WAITING)
        blocks = len(self._tables.get(request.request_id) or ())
        more = max(blocks - record.covered, 0)
        before = request.num_computed_tokens - scheduled
        hits = 0 if record.covered else min(before // self.engine.block_size, more)
        fresh = more - hits
        self._fire(
            record,
            states.ADMIT,
            request,
            states.RUNNING,
            blocks=more,
            hits=hits,
            fresh=fresh,
            free=self._free() + fresh,
        )

    def loading(self, request: Any) -> None:
        """vLLM started a load for a request."""
        record = self._record(request)
        self._loads += 1
        blocks = len(self._tables.get(request.request_id) or ())
        self._fire(
            record,
            states.ADMIT_REMOTE,
            request,
            blocks=blocks,
            fresh=blocks,
            free=self._free() + blocks,
            remote_tokens=request.num_computed_tokens,
            transfer=self._loads,
            joinable=True,
        )

    def loaded(self, request: Any, failed: bool) -> None:
        """vLLM takes a request whose load has ended out of the state of loading."""
        record = self._record(request)
        tokens = request.num_computed_tokens
        self._fire(
            record,
            states.TRANSFER_FAILED if failed else states.TRANSFER_LANDED,
            request,
            states.WAITING,
            transfer=record.waits_for,
            tokens=tokens,
            blocks=tokens // self.engine.block_size,
        )

    def processed(self, output: Any, result: Any) -> None:
        """A step's results have come: called before vLLM processes them."""
        if output.total_num_scheduled_tokens:
            self.engine.processed += 1

    def updated(self) -> None:
        """vLLM has processed a step's results."""

    def preempting(self, request: Any, forced: bool) -> None:
        """vLLM is about to preempt: called before it does."""
        record = self._current(request)
        self._fire(record, states.PREEMPT, request, states.PREEMPTED, allowed=True, forced=forced)

    def stopping(self, request: Any) -> Ask:
        """A turn ends: called before vLLM decides what becomes of it. What the event is told."""
        record = self._current(request)
        queue = request.streaming_queue
        if queue is not None:
            chunks = [update for update in queue if update is not None]
            record.queued_chunks = len(chunks)
            record.queued_tokens = sum(len(chunk.prompt_token_ids or ()) for chunk in chunks)
            record.input_open = len(chunks) == len(queue)
        first = queue[0] if queue else None
        return Ask(
            reason=int(_STATES[request.status]),
            step=self.engine.processed,
            at_limit=request.num_tokens >= self.engine.model_length,
            tokens=len(first.prompt_token_ids or ()) if first is not None else 0,
        )

    def stopped(self, request: Any, ask: Ask, finished: bool) -> None:
        """vLLM has decided: `finished`, or the session parks or goes on."""
        record = self._record(request)
        to = states.FINISHED_STOPPED if finished else declared_state(request)
        self._fire(record, states.STOP, request, to, **ask.as_dict())

    # The engine.
    def reclaimed(self, request: Any) -> None:
        """The guard let go of a waiting request's blocks: called before it does."""
        self._fire(self._current(request), states.RECLAIM, request)

    def refuses_reset(self, force: bool) -> bool:
        """Whether the declaration refuses a reset now."""
        for request in self._scheduler.requests.values():
            holds = bool(self._tables.get(request.request_id))
            if request.is_finished():
                if holds:
                    return True  # a transfer keeps them
            elif request.request_id in self._scheduler.finished_recving_kv_req_ids:
                if not force:
                    return True
            elif request_refuses(declared_state(request), holds, force):
                return True
        return False

    def close_trace(self) -> None:
        """Nothing is written without KVPROOF_TRACE."""

    # Records.
    def forget(self, request_id: str) -> None:
        """vLLM has forgotten a request."""
        self.records.pop(request_id, None)

    def _current(self, request: Any) -> RequestFacts:
        """A request's record, its counters as vLLM has them now."""
        record = self._record(request)
        self._read(record, request)
        return record

    def _record(self, request: Any) -> RequestFacts:
        """A request's record, its counters as they were when it was last looked at.

        A request that is met for the first time (the guard failed before) starts from there.
        """
        record = self.records.get(request.request_id)
        if record is None:
            record = self.records[request.request_id] = RequestFacts(
                state=declared_state(request),
                resumable=request.resumable,
                input_open=request.resumable,
            )
        return record

    def _read(self, record: RequestFacts, request: Any) -> None:
        """The counters that steps move, from vLLM's own."""
        engine, flying = self.engine, request.num_in_flight_tokens
        record.covered = len(self._tables.get(request.request_id) or ())
        record.computed = request.num_computed_tokens if record.covered else 0
        record.written = max(record.computed - flying, 0)
        record.hashed = record.written // engine.block_size
        record.newest_step = engine.launched if flying else engine.processed
        record.prompt = request.num_prompt_tokens
        # vLLM drops the last sampled token of a turn; what it keeps is what counts.
        record.delivered = max(request.num_computed_tokens - request.num_prompt_tokens, 0)

    def _free(self) -> int:
        return int(self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def _send(self, record: RequestFacts, event: int, name: str, ask: Ask) -> int:
        """Run the event on the record; the code that it answers."""
        return REQUEST.fire(event, record, self.engine, ask)

    def _fire(
        self, record: RequestFacts, event: int, request: Any, to: int | None = None, **ask: int
    ) -> None:
        """Send an event and compare; `to` is where vLLM takes the request, if not its status."""
        expected = declared_state(request) if to is None else to
        source = record.state
        code = self._send(record, event, request.request_id, Ask(**ask))
        answer = code & ANSWER_MASK
        finished = expected in states.FINISHED and record.state in states.FINISHED
        if answer == GO and (record.state == expected or finished):
            return
        row = REQUEST.row(code)
        reached = RequestState(record.state).name
        record.state = expected
        self._report.departure(
            f"{RequestEvent(event).name.lower()} in {RequestState(source).name}",
            row.why,
            f"it goes to {RequestState(expected).name}",
            request.request_id,
            answer=f"{Answer(answer).name.lower()}, {reached}",
        )
