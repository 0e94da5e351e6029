"""The engine: its core behind a loop in a thread of its own, safe to be called from any thread.

A call is put into the inbox and carried out by the loop between two steps; what it waits for is a
future. Should the loop fail, every waiting caller gets EngineFailedError, every request an error,
and the engine says so in `healthy`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..statemachine.states import STOPPED
from .api import (
    CallResult,
    EngineClosedError,
    EngineConfig,
    EngineError,
    EngineFailedError,
    EngineStats,
    FinishReason,
    Holder,
    RejectedCallError,
    RequestInfo,
    RequestOutput,
    ResetResult,
)
from .arguments import in_words, seconds
from .core import EngineCore
from .protocols import Connector, Int32Array, NotifyingConnector, Runner
from .sampling_params import SamplingParams
from .sessions import OnOutput, TextFactory

if TYPE_CHECKING:
    from .llm import LLM

__all__ = ["Engine", "EngineCore"]

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


class Engine:
    """Serves requests on a runner, and on a connector's tier if there is one.

    All methods may be called from any thread; those that wait say so. `on_output` is called on
    the loop's thread: hand over quickly.
    """

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

    @staticmethod
    def from_pretrained(model: str | Path, **options: Any) -> LLM:
        """Load a model by a known name, a directory or a GGUF file, and start its engine.

        options: the fields of `pretrained.EngineOptions`. Needs the extra `runtime`. Raises
        TypeError or ValueError for a wrong option, ModelError, MemoryError.
        """
        from .pretrained import EngineOptions, load_engine

        return load_engine(model, EngineOptions(**options))

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
        """Take a request in. Raises InvalidRequestError, DuplicateRequestError, EngineClosedError.

        tokens: ids of the prompt. priority: lower runs first, under policy "priority". resumable:
        a session whose input stays open. salt: requests of another salt share no prefix with it.
        needs_grammar: it waits until `grammar_ready`.
        """
        self.call(
            lambda: self.core.add_request(
                request_id, tokens, params, on_output=on_output, priority=priority,
                resumable=resumable, salt=salt, needs_grammar=needs_grammar, text=text,
            )
        )  # fmt: skip

    def grammar_ready(self, request_id: str) -> bool:
        """A request's grammar is compiled: it may run. False when it waits for none."""
        return self.call(lambda: self.core.grammar_ready(request_id))

    def grammar_failed(self, request_id: str, why: str) -> bool:
        """Its grammar cannot be compiled: an error for its client. False when it waits for none."""
        return self.call(lambda: self.core.grammar_failed(request_id, why))

    def add_chunk(
        self,
        request_id: str,
        tokens: Int32Array | Sequence[int],
        params: SamplingParams | None = None,
    ) -> None:
        """A session's next input. Raises UnknownRequestError, SessionError, InvalidRequestError."""
        self.call(lambda: self.core.add_chunk(request_id, tokens, params))

    def close_input(self, request_id: str) -> bool:
        """A session gets no further input. False when that was so; SessionError if no session."""
        return self.call(lambda: self.core.close_input(request_id))

    def abort(self, request_id: str) -> bool:
        """The client gives up. False when the request is finished or unknown."""
        return self.call(lambda: self.core.abort(request_id))

    # --- the engine as a whole ------------------------------------------------------------------

    def reset_prefix_cache(
        self,
        reset_running_requests: bool = False,
        reset_connector: bool = False,
        wait: float = 0.0,
    ) -> ResetResult:
        """Forget every cached prefix; falsy, with its holders, when refused. Waits.

        reset_running_requests: preempt what runs and reclaim what is parked. reset_connector: clear
        its tier as well. wait: seconds for which a reset stays pending that is refused only by
        what ends by itself. Raises InvalidWaitError, and RejectedCallError also from within an
        output.
        """
        self._may_wait("begin_reset")
        return self.begin_reset(reset_running_requests, reset_connector, wait).result()

    def begin_reset(
        self,
        reset_running_requests: bool = False,
        reset_connector: bool = False,
        wait: float = 0.0,
    ) -> Future[ResetResult]:
        """A reset without waiting: the future's result is what `reset_prefix_cache` returns.

        Cancelling it gives a waiting reset up. Raises InvalidWaitError and RejectedCallError at
        once; the future raises EngineFailedError should the loop fail.
        """
        return self.call(
            lambda: self.core.reset_prefix_cache(reset_running_requests, reset_connector, wait)
        )

    def pause(self, mode: str = "abort", clear_cache: bool = False) -> CallResult:
        """Stop stepping; waits until the pause is reached. Raises RejectedCallError.

        mode: what runs is ended ("abort"), finished ("wait") or kept ("keep"). clear_cache: forget
        the cached prefixes before the pause counts as reached. From within an output it is
        rejected: the pause cannot be reached before that returns.
        """
        self._may_wait("begin_pause")
        return self.begin_pause(mode, clear_cache).result()

    def begin_pause(self, mode: str = "abort", clear_cache: bool = False) -> Future[CallResult]:
        """A pause without waiting: the future's result is what `pause` returns.

        Raises RejectedCallError at once; the future raises EngineFailedError should the loop fail.
        """
        return self.call(lambda: self.core.pause(mode, clear_cache))

    def resume(self) -> CallResult:
        """Go on after a pause. Raises RejectedCallError."""
        return self.call(self.core.resume)

    def sleep(self, level: int = 1, mode: str = "abort") -> CallResult:
        """Give memory back; waits until it is. Raises RejectedCallError.

        level: 1 keeps a copy of the weights at hand, 2 only their file. mode: of the pause that
        comes first. Falsy, with the holders, while a transfer has not ended. Rejected from within
        an output, as `pause` is.
        """
        self._may_wait("begin_sleep")
        return self.begin_sleep(level, mode).result()

    def begin_sleep(self, level: int = 1, mode: str = "abort") -> Future[CallResult]:
        """A sleep without waiting: the future's result is what `sleep` returns.

        Raises RejectedCallError at once; the future raises EngineFailedError should the loop fail.
        """
        return self.call(lambda: self.core.sleep(level, mode))

    def wake(self, tags: Iterable[str] = ("weights", "cache")) -> CallResult:
        """Take memory again. Raises RejectedCallError."""
        return self.call(lambda: self.core.wake(tags))

    def weights_changed(self) -> CallResult:
        """Nothing computed with older weights can be a hit any more. Raises RejectedCallError."""
        return self.call(self.core.weights_changed)

    def is_paused(self) -> bool:
        """Whether nothing runs because a client asked for it."""
        return self.core.is_paused()

    def is_sleeping(self) -> bool:
        """Whether memory is given back."""
        return self.core.is_sleeping()

    def shutdown(self, drain: bool = True, timeout: float = 60.0) -> None:
        """Finish what is there, or end it; waits until the loop's thread is gone.

        With `drain`, what is not finished after `timeout` seconds is aborted. A device that then
        does not answer its last step for `config.watchdog` seconds is given up.

        Raises RejectedCallError for a timeout that is no number of seconds, a drain that is no
        bool, and from within an output; EngineFailedError when the device is given up.
        """
        seconds(RejectedCallError, "the timeout", timeout)
        self._may_wait()
        try:
            stopped = self.call(lambda: self.core.shutdown(drain, timeout))
        except EngineClosedError:
            self._thread.join()
            return
        except EngineFailedError:
            # Its thread still closes what it can; a device that never answers may keep it.
            self._thread.join(self.config.watchdog)
            return
        stopped.result()
        self._thread.join()

    # --- looking --------------------------------------------------------------------------------

    def holds(self) -> list[Holder]:
        """Who keeps which blocks, since when."""
        return self.call(self.core.holds)

    def stats(self) -> EngineStats:
        """One consistent picture of the counters."""
        return self.call(self.core.stats)

    def request_info(self, request_id: str) -> RequestInfo | None:
        """One request's facts and last transitions, also after its end."""
        return self.call(lambda: self.core.request_info(request_id))

    def trace(self, path: str | Path | None) -> None:
        """Append every transition from now on to a file, as JSON lines; None ends the trace.

        Waits for the reader of a named pipe. Raises OSError when the file cannot be opened,
        RejectedCallError for what is no path.
        """
        writer = self.core.open_trace(path)  # here: a file may let the loop wait for ever
        try:
            self.call(lambda: self.core.trace_to(writer))
        except BaseException:
            if writer is not None:
                writer.close()
            raise

    def healthy(self) -> tuple[bool, str]:
        """Whether requests can be served, and if not, why. Never waits."""
        if self._failure is not None:
            return False, f"the engine has failed: {in_words(self._failure)}"
        silent = time.monotonic() - self._turned_at
        if silent > self.config.watchdog and self._thread.is_alive():
            # Not even the watchdog is asked: the loop waits for a device that never answers.
            return False, f"the engine's loop has not come round for {silent:.0f} s"
        return self.core.healthy()

    # --- the loop -------------------------------------------------------------------------------

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
        """Have a function called by the loop, without waiting; an EngineError of it is lost.

        Nothing happens when the loop has stopped.
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
            _log.exception("the engine's loop has failed")
            self._fail(error)
            return
        self._answer_the_rest(EngineClosedError("the engine has stopped"))

    def _turn(self) -> None:
        """One turn: clients first, then what is due, then a step, then its result or a wait."""
        core = self.core
        self._turned_at = time.monotonic()
        moves = core.lifecycle.moves
        self._serve_clients()
        self._rung = False  # before the look: what comes later rings again
        core.tick()
        if self._half_done is not None:  # by a call from within an output
            raise self._half_done
        launched = core.launch_step()
        full = core.in_flight >= self.config.steps_in_flight
        if core.in_flight and (full or not launched):
            try:
                core.finish_step(_STEP_PATIENCE)
            except TimeoutError:
                return
        elif not launched and core.lifecycle.moves == moves:
            self._wait()

    def _serve_clients(self) -> None:
        while self._inbox:
            with self._bell:
                function, answer = self._inbox.popleft()
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(self._carry_out(function))
            except BaseException as error:
                if self._half_done is not None:
                    answer.set_exception(_failed(error))
                    raise
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
