"""What clients are told, and how their requests end: tell the client, forget it, forget the record.

While a client is told something, nothing may process a step: its calls come from the middle of one.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..statemachine.lanes import in_flight
from ..statemachine.request import REQUEST, container
from ..statemachine.states import (
    FINISHED_ABORTED,
    FINISHED_ERROR,
    FINISHED_IGNORED,
    FINISHED_LENGTH_CAPPED,
    FINISHED_REPETITION,
    FINISHED_STOPPED,
    Container,
    RequestEvent,
    RequestState,
)
from .api import EngineConfig, FinishReason, RejectedCallError, RequestInfo, RequestOutput
from .arguments import ends_the_program
from .lifecycle import Lifecycle
from .protocols import Runner
from .sessions import Request

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
#: How many stop tokens may be known before it is asked whose they are.
STOP_TOKENS = 4096


class Telling:
    """The clients' side of requests, by the rows of the lifecycle."""

    def __init__(self, config: EngineConfig, runner: Runner, clock: Callable[[], float]) -> None:
        self.config = config
        self.clock = clock
        self.runner = runner
        self.lifecycle = Lifecycle(config, clock)
        self._requests: dict[int, Request] = {}
        #: Every token that may end some turn, and how many requests have text to be looked at:
        #: with neither in a step, nobody need be asked one by one.
        self._stop_tokens: set[int] = set()
        self._stop_tokens_kept = STOP_TOKENS
        self._texts = 0
        self._remembered: OrderedDict[str, RequestInfo] = OrderedDict()
        self._finish_counts: Counter[str] = Counter()
        #: Those whose text could not be made of what the present step has delivered.
        self._text_failed: list[Request] = []
        #: A client is being told something: what it calls from there must not process a step.
        self._delivering = False
        #: A request's text is being made, perhaps in the middle of a settle: it may call nothing.
        self._making_text = False

    def _turn_ended(self, request: Request) -> FinishReason:
        state = self.lifecycle.state_of(request.row)
        return _REASONS.get(state, FinishReason.TURN)

    def _sweep(self) -> None:
        """Tell the clients of requests that ended without a step, and forget what can be."""
        lifecycle = self.lifecycle
        for row in list(lifecycle.finished):
            request = self._requests.get(row)
            if request is not None:
                reason = _REASONS[lifecycle.state_of(row)]
                length = request.prompt_tokens + int(lifecycle.view.delivered[row])
                with self._text_is_made():
                    output = request.output((), length, reason)
                # Not the reason, should the rest of its text have failed.
                self._forget_client(request, output.finish_reason or reason)
                with self._telling():
                    self._tell(request, output)
            if row not in lifecycle.finished or row in self._requests:
                continue  # the client has made calls from within its output
            left = in_flight(int(lifecycle.view.newest_step[row]), lifecycle.processed)
            if not left and not lifecycle.owns_open_transfer(lifecycle.id_of(row)):
                lifecycle.forget(row, idle=True)

    def _forget_client(self, request: Request, told: FinishReason) -> None:
        """Nothing more is said to the client than how it ended; the record may stay for a while."""
        row = request.row
        info = self._info(row)
        self._remembered[request.id] = info
        self._remembered.move_to_end(request.id)
        if len(self._remembered) > REMEMBERED:
            self._remembered.popitem(last=False)
        self._finish_counts[told.value] += 1
        del self._requests[row]
        if request.new_text is not None:
            self._texts -= 1
        if not self._requests:
            self._stop_tokens.clear()
        if request.bound:
            try:
                self.runner.unbind(row)
            except BaseException as error:
                if ends_the_program(error):
                    raise
                # The row's next tenant is bound over what is left of this one.
                _log.exception("row %d of %r could not be unbound", row, request.id)

    def _text_fails(self, request: Request, why: str) -> None:
        """Its text cannot be made any more: it ends with the step that is being processed."""
        request.error = why
        self._text_failed.append(request)

    def _tell(self, request: Request, output: RequestOutput) -> None:
        try:
            request.on_output(output)
        except BaseException as error:
            self._on_output_failed(request, error)

    def _on_output_failed(self, request: Request, error: BaseException) -> None:
        """What a client's `on_output` raises is its own fault and ends nobody else.

        Nor does its SystemExit or its asyncio.CancelledError, which are no Exception. Raises
        Ctrl-C again.
        """
        if ends_the_program(error):
            raise error
        _log.error("on_output of %r failed", request.id, exc_info=error)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """While clients are told something, perhaps from within what another was told."""
        told, self._delivering = self._delivering, True
        try:
            yield
        finally:
            self._delivering = told

    def _not_from_within(self) -> None:
        """Raise RejectedCallError where a client calls from within its output, or a text does."""
        self._not_from_a_text()
        if self._delivering:
            raise RejectedCallError("outputs are being delivered: call from another thread")

    @contextmanager
    def _text_is_made(self) -> Iterator[None]:
        """While code of a client's makes text: what it calls must change nothing. Never nested."""
        self._making_text = True
        try:
            yield
        finally:
            self._making_text = False

    def _not_from_a_text(self) -> None:
        """Raise RejectedCallError where a request's text makes a call that changes something.

        A step's stops are not decided yet: an abort would take a row out of its middle.
        """
        if self._making_text:
            raise RejectedCallError("a text is being made: it may call nothing that changes this")

    def _info(self, row: int) -> RequestInfo:
        state = self.lifecycle.state_of(row)
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
                    "why": REQUEST.row(code).why,
                }
                for at, event, source, dest, code in self.lifecycle.history_of(row)
            ],
        )
