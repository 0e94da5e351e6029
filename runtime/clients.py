"""Requests of clients: how they come in, and how they go on.

Each layer of the core is one class on top of the other, in this order: `telling.py` (what clients
are told, and how their requests end), `clients.py` (how they come in and go on),
`stepping.py` (steps and their outputs), `observed.py` (what is due, and what can be looked at),
`resets.py`, `pauses.py`, and `core.py`, which joins them as `EngineCore`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence

from ..statemachine.errors import RefusedError
from ..statemachine.states import (
    FINISHED,
    FINISHED_IGNORED,
    WAITING,
    WAITING_FOR_STREAMING_REQ,
    EngineEvent,
    RequestEvent,
)
from .api import (
    DuplicateRequestError,
    EngineClosedError,
    EngineConfig,
    FinishReason,
    InvalidRequestError,
    SessionError,
    UnknownRequestError,
)
from .arguments import ends_the_program, int64, required, token_ids
from .deadlines import Deadlines, PausableClock
from .protocols import Connector, Int32Array, Runner
from .sampling_params import SamplingParams
from .sessions import OnOutput, Request, Text, TextFactory, no_text
from .telling import STOP_TOKENS, Telling
from .transfers.manager import TransferManager


class Clients(Telling):
    """The requests that clients have sent, by the rows of the lifecycle."""

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
        super().__init__(config, runner, clock)
        self.transfers: TransferManager | None = None
        if connector is not None:
            self.transfers = TransferManager(
                self.lifecycle, connector, runner.kv.bytes_per_block, clock
            )
        self._eos = frozenset(eos_token_ids)
        self._new_text = text
        self._vocabulary = vocabulary
        #: Of parked sessions and of grammars: they stand still while the engine is paused.
        self._pausing_clock = PausableClock(clock)
        self._pausing_deadlines = Deadlines(self._pausing_clock)
        self._load_deadlines = Deadlines(clock)
        self._waits = itertools.count(1)
        self._prompt_tokens = 0

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
        needs_grammar: bool = False,
        text: TextFactory | None = None,
    ) -> None:
        """Take a request in; `on_output` is told of its tokens on the thread that drives this.

        needs_grammar: it waits, for `grammar_deadline` at most, until `grammar_ready` is called.

        Raises InvalidRequestError, DuplicateRequestError, EngineClosedError, and
        RejectedCallError, as every call here does, from within a text that is being made.
        """
        self._not_from_a_text()
        if not isinstance(request_id, str) or not callable(on_output):
            raise InvalidRequestError("a request has an id, a str, and an on_output to call")
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(f"{params!r} are no SamplingParams")
        request_id = str.__str__(request_id)  # a subclass may hash and compare as it likes
        priority = int64(InvalidRequestError, "a request's priority", priority)
        required(InvalidRequestError, "a request's salt", salt, bytes)
        required(InvalidRequestError, "resumable", resumable, bool)
        required(InvalidRequestError, "needs_grammar", needs_grammar, bool)
        if text is not None and not callable(text):
            raise InvalidRequestError(f"text is {text!r}: it must be callable or None")
        ids = token_ids("prompt", tokens, self._vocabulary)
        new_text = self._new_text if text is None else text
        made = self._made(new_text, params)
        # From here on no code of the caller's runs: what it raises must not leave half a request.
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
                grammar=needs_grammar,
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
        request = Request(request_id, row, params, on_output, new_text, self._eos)
        self._requests[row] = request
        if request.new_text is not None:
            self._texts += 1
        self._begin_turn(request, params, made)
        self._prompt_tokens += len(ids)
        if needs_grammar:
            self._wait_at_most(self.config.grammar_deadline, request)

    def grammar_ready(self, request_id: str) -> bool:
        """A request's grammar is compiled: it may run. False when it waits for none.

        Raises InvalidRequestError for what is no id.
        """
        self._not_from_a_text()
        row = self._row_of(request_id)
        if row is None:
            self.lifecycle.count_ignored(RequestEvent.GRAMMAR_READY)
            return False
        return self.lifecycle.grammar_ready(row).went

    def grammar_failed(self, request_id: str, why: str) -> bool:
        """A request's grammar cannot be compiled: its client gets an error that says why.

        False when it waits for none. Raises InvalidRequestError for what is no id or no text.
        """
        self._not_from_a_text()
        row = self._row_of(request_id)
        required(InvalidRequestError, "why its grammar failed", why, str)
        if row is None:
            self.lifecycle.count_ignored(RequestEvent.GRAMMAR_FAILED)
            return False
        went = self.lifecycle.grammar_failed(row).went
        if went:
            self._requests[row].error = f"its grammar could not be compiled: {why}"
        self._sweep()
        return went

    def add_chunk(
        self,
        request_id: str,
        tokens: Int32Array | Sequence[int],
        params: SamplingParams | None = None,
    ) -> None:
        """A session's next input; it waits until the present turn is over.

        Raises UnknownRequestError, SessionError, InvalidRequestError, EngineClosedError.
        """
        self._not_from_a_text()
        if params is not None and not isinstance(params, SamplingParams):
            raise InvalidRequestError(f"{params!r} are no SamplingParams")
        ids = token_ids("chunk", tokens, self._vocabulary)
        self._engine_takes(EngineEvent.CHUNK)
        request = self._request(request_id)
        parked = self._is_parked(request)
        made = self._made(request.new_text, params or request.params) if parked else None
        try:
            self.lifecycle.chunk(request.row, ids)
        except RefusedError as refusal:
            raise SessionError(f"{request_id!r}: {refusal.why}") from refusal
        self._prompt_tokens += len(ids)
        if parked:
            self._next_turn(request, params, made)
        else:
            request.queued.append(params)

    def close_input(self, request_id: str) -> bool:
        """A session gets no further input; what it has is finished.

        False when its input is closed already, or it is finished or unknown. Raises SessionError
        for what is no session.
        """
        self._not_from_a_text()
        row = self._row_of(request_id)
        if row is None:
            self.lifecycle.count_ignored(RequestEvent.CLOSE_INPUT)
            return False
        try:
            went = self.lifecycle.close_input(row).went
        except RefusedError as refusal:
            raise SessionError(f"{request_id!r}: {refusal.why}") from refusal
        self._sweep()
        return went

    def abort(self, request_id: str) -> bool:
        """The client gives up on a request. False when it is finished or unknown.

        Raises InvalidRequestError for what is no id: it takes one at a time.
        """
        self._not_from_a_text()
        row = self._row_of(request_id)
        if row is None:
            self.lifecycle.count_ignored(RequestEvent.ABORT)
            return False
        went = self.lifecycle.abort(row).went
        self._sweep()
        return went

    def _request(self, request_id: str) -> Request:
        row = self._row_of(request_id)
        request = None if row is None else self._requests.get(row)
        if request is None:
            raise UnknownRequestError(f"no live request {request_id!r} is known")
        return request

    def _row_of(self, request_id: str) -> int | None:
        required(InvalidRequestError, "a request's id", request_id, str)
        return self.lifecycle.row_of(request_id)

    def _is_parked(self, request: Request) -> bool:
        return bool(self.lifecycle.state_of(request.row) == WAITING_FOR_STREAMING_REQ)

    def _engine_takes(self, event: int) -> None:
        try:
            self.lifecycle.engine_event(event)
        except RefusedError as refusal:
            raise EngineClosedError(refusal.why) from refusal

    def _pool_tokens(self) -> int:
        return self.lifecycle.longest - 1

    def _begin_turn(
        self, request: Request, params: SamplingParams | None, text: Text | None
    ) -> None:
        view, row = self.lifecycle.view, request.row
        request.begin_turn(
            params, int(view.prompt[row]), int(view.delivered[row]), self.config.max_model_len, text
        )
        self.lifecycle.set_limit(row, request.limit)
        self._stop_tokens |= request.stops
        if len(self._stop_tokens) > self._stop_tokens_kept:
            self._forget_stop_tokens()

    def _forget_stop_tokens(self) -> None:
        """Those of requests that have ended, once they may be the greater part."""
        self._stop_tokens = set().union(*(known.stops for known in self._requests.values()))
        self._stop_tokens_kept = 2 * len(self._stop_tokens) + STOP_TOKENS

    def _next_turn(
        self, request: Request, params: SamplingParams | None, text: Text | None
    ) -> None:
        request.turn += 1
        request.wait = next(self._waits)
        self._begin_turn(request, params, text)

    def _after_turn(self, request: Request, told: FinishReason) -> None:
        """A turn is over: its request too, or a session's next one begins, or it parks."""
        state = self.lifecycle.state_of(request.row)
        if state in FINISHED:
            self._forget_client(request, told)
        elif state == WAITING:
            params = request.queued.popleft()
            try:
                text = self._made(request.new_text, params or request.params)
            except InvalidRequestError as error:
                self._text_fails(request, str(error))
                text = None
            self._next_turn(request, params, text)
        elif state == WAITING_FOR_STREAMING_REQ:
            self._wait_at_most(self.config.session_deadline, request)

    def _wait_at_most(self, seconds: float, request: Request) -> None:
        """What it waits for now has a deadline; an earlier one is over."""
        request.wait = next(self._waits)
        self._pausing_deadlines.add(seconds, request.row, request.wait)

    def _made(self, new_text: TextFactory | None, params: SamplingParams) -> Text | None:
        """The text of a turn, if it has one. Raises InvalidRequestError if it cannot be made."""
        if new_text is None:
            return None
        try:
            with self._text_is_made():
                return new_text(params)
        except BaseException as error:
            if ends_the_program(error):
                raise
            raise InvalidRequestError(no_text(error)) from error
