"""The thread that drives a core: it carries out callers' functions between two steps.

A call is put into the inbox and carried out by the loop; what it waits for is a future. Should the
loop fail, every waiting caller gets EngineFailedError, and every request an error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from ..statemachine.states import STOPPED
from .api import (
    EngineClosedError,
    EngineConfig,
    EngineError,
    EngineFailedError,
    FinishReason,
    RejectedCallError,
    RequestOutput,
)
from .arguments import in_words
from .core import EngineCore
from .protocols import Connector, NotifyingConnector, Runner
from .sessions import TextFactory

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds for which the loop waits for the device before it looks at its inbox again.
_STEP_PATIENCE = 0.02
#: Seconds between two looks at a connector that does not say when a transfer has ended,
_POLL = 0.001
#: and at one that does: should its word be lost, requests are late and no more.
_POLL_IN_CASE = 0.05
#: Seconds between two looks when nothing is expected at all.
_IDLE = 5.0


class EngineLoop:
    """A core and the thread that drives it. `call` may be used from any thread."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        connector: Connector | None = None,
        *,
        eos_token_ids: Iterable[int] = (),
        text: TextFactory | None = None,
        vocabulary: int | None = None,
    ) -> None:
        self.core = EngineCore(
            config, runner, connector, eos_token_ids=eos_token_ids, text=text,
            vocabulary=vocabulary,
        )  # fmt: skip
        self.config = config
        self._inbox: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._bell = threading.Condition()
        self._rung = False  # since the loop has last looked at the connector
        self._poll = _POLL
        if isinstance(connector, NotifyingConnector):
            connector.on_signal(self._ring)
            self._poll = _POLL_IN_CASE
        self._failure: BaseException | None = None
        #: What a client's call raised after it had changed something: the loop ends by it.
        self._half_done: BaseException | None = None
        self._turned_at = time.monotonic()
        self._idle = min(_IDLE, config.watchdog / 2)
        self._thread = threading.Thread(target=self._run, name="kvproof-engine", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T]) -> T:
        """Carry out a function on the loop's thread, between two steps, and return its result.

        Raises what it raises; EngineFailedError when the loop has failed, EngineClosedError when
        it has stopped. What is no EngineError and comes after a change, nobody can call harmless:
        then the engine fails.
        """
        if threading.current_thread() is self._thread:
            self._refuse_if_over()
            return self._carry_out(function)
        answer: Future[T] = Future()
        with self._bell:
            self._refuse_if_over()
            self._inbox.append((function, answer))
            self._bell.notify()
        return answer.result()

    def _post(self, function: Callable[[], Any]) -> None:
        """Have a function called by the loop, without waiting. Nobody hears of its EngineError.

        Nor of its OSError; what else it raises is in the log. Nothing happens when the loop has
        stopped.
        """
        with self._bell:
            if self._failure is None and self.core.lifecycle.mode != STOPPED:
                self._inbox.append((function, Future()))
                self._bell.notify()

    def _carry_out(self, function: Callable[[], T]) -> T:
        """Call a client's function. What it raises is the client's, unless it was half done.

        An EngineError says that nothing was changed; so does the count of moves, whatever the
        error. Otherwise the error is kept, and the loop ends by it.
        """
        moves = self.core.lifecycle.moves
        try:
            return function()
        except EngineError:
            raise
        except BaseException as error:
            if self.core.lifecycle.moves != moves:
                self._half_done = error
            raise

    def _may_wait(self, instead: str = "") -> None:
        """Raise RejectedCallError on the loop's thread: who waits there waits for itself."""
        if threading.current_thread() is self._thread:
            other = f", or call {instead} and do not wait" if instead else ""
            raise RejectedCallError(f"an output cannot wait: call from another thread{other}")

    def _ring(self) -> None:
        """A transfer has ended: the loop hears of it at once, or in its next turn."""
        with self._bell:
            self._rung = True
            self._bell.notify()

    def _refuse_if_over(self) -> None:
        if self._failure is not None:
            raise EngineFailedError(in_words(self._failure)) from self._failure
        if self.core.lifecycle.mode == STOPPED:
            raise EngineClosedError("the engine has stopped")

    def _run(self) -> None:
        try:
            while self.core.lifecycle.mode != STOPPED:
                self._turn()
        except BaseException as error:
            # Whatever came of a call that was half done, the call is where it began.
            failure = error if self._half_done is None else self._half_done
            _log.error("the engine's loop has failed", exc_info=failure)
            self._fail(failure)
            return
        self._answer_the_rest(EngineClosedError("the engine has stopped"))

    def _turn(self) -> None:
        """One turn: clients first, then what is due, then a step, then its result or a wait."""
        core = self.core
        self._turned_at = time.monotonic()
        moves = core.lifecycle.moves
        self._serve_clients()
        self._end_if_half_done()
        self._rung = False  # before the look: what comes later rings again
        core.tick()
        self._end_if_half_done()
        launched = core.launch_step()
        full = core.in_flight >= self.config.steps_in_flight
        if core.in_flight and (full or not launched):
            try:
                core.finish_step(_STEP_PATIENCE)
            except TimeoutError:
                return
        elif not launched and core.lifecycle.moves == moves:
            self._wait()

    def _end_if_half_done(self) -> None:
        """Raise what a client's call from within an output has raised after a change."""
        if self._half_done is not None:
            raise self._half_done

    def _serve_clients(self) -> None:
        """Carry out what the inbox has; nothing more once a call is half done."""
        while self._inbox:
            self._end_if_half_done()
            with self._bell:
                function, answer = self._inbox.popleft()
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(self._carry_out(function))
            except BaseException as error:
                if self._half_done is error:
                    answer.set_exception(_failed(error))
                    raise
                if not isinstance(error, EngineError | OSError):
                    _log.error("a client's call failed", exc_info=error)
                answer.set_exception(error)

    def _wait(self) -> None:
        """Nothing to compute: sleep until a client calls or something is due."""
        core = self.core
        if core.lifecycle.mode == STOPPED:
            return
        seconds = self._idle
        due = core.next_time()
        if due is not None:
            seconds = min(seconds, due)
        if core.lifecycle.open_count:
            seconds = min(seconds, self._poll)
        with self._bell:
            if not self._inbox and not self._rung:
                self._bell.wait(seconds)

    def _fail(self, error: BaseException) -> None:
        why = f"the engine failed: {in_words(error)}"
        with self._bell:
            self._failure = error
        self._answer_the_rest(_failed(error))
        self.core.fail_calls(_failed(error))
        for request in self.core.requests():
            output = RequestOutput(request.id, finish_reason=FinishReason.ERROR, error=why)
            try:
                request.on_output(output)
            except BaseException:
                _log.exception("on_output of %r failed", request.id)
        self.core.close()

    def _answer_the_rest(self, error: BaseException) -> None:
        while True:
            with self._bell:
                if not self._inbox:
                    return
                _, answer = self._inbox.popleft()
            answer.set_exception(error)


def _failed(error: BaseException) -> EngineFailedError:
    if isinstance(error, EngineFailedError):
        return error
    failed = EngineFailedError(in_words(error))
    failed.__cause__ = error
    return failed
