"""The calls of an engine, safe from any thread: its core behind a loop in a thread of its own.

A call waits for the loop, which carries it out between two steps (`loop.py`); what takes longer is
a future. Where the loop has failed, `healthy` says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .api import (
    CallResult,
    EngineClosedError,
    EngineFailedError,
    EngineStats,
    Holder,
    RejectedCallError,
    RequestInfo,
    ResetResult,
)
from .arguments import in_words, seconds
from .core import EngineCore
from .loop import EngineLoop
from .protocols import Int32Array
from .sampling_params import SamplingParams
from .sessions import OnOutput, TextFactory

if TYPE_CHECKING:
    from .llm import LLM

__all__ = ["Engine", "EngineCore"]


class Engine(EngineLoop):
    """Serves requests on a runner, and on a connector's tier if there is one.

    All methods may be called from any thread; those that wait say so. `on_output` is called on
    the loop's thread: hand over quickly.
    """

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
        self._may_wait()
        return self.begin_reset(reset_running_requests, reset_connector, wait).result()

    def begin_reset(
        self,
        reset_running_requests: bool = False,
        reset_connector: bool = False,
        wait: float = 0.0,
    ) -> Future[ResetResult]:
        """A reset without waiting: the future's result is what `reset_prefix_cache` returns.

        Cancelling it gives a waiting reset up. Raises InvalidWaitError and RejectedCallError at
        once, the latter also from within an output: what is launched must be processed first. The
        future raises EngineFailedError should the loop fail.
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
