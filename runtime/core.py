"""The engine's core: requests in, steps through, outputs out. One thread, no waiting of its own.

Whoever drives it calls `tick` (what is due: transfers, deadlines, pending calls), `launch_step`
and `finish_step`; `EngineLoop` in `loop.py` does so in a thread of its own. `clients.py` says in
which order its layers are to be read.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError

from ..statemachine.states import DRAINED, DRAINING, LIVE, SHUTDOWN
from .answers import give
from .api import EngineFailedError, RejectedCallError
from .arguments import ends_the_program, required, seconds
from .pauses import Pauses

_log = logging.getLogger(__name__)


class EngineCore(Pauses):
    """The core with all of its calls. Single-threaded: whoever drives it calls it."""

    _shutdown: Future[None] | None = None
    _drain_until: float = 0.0
    #: Once the requests have ended, the device has only to answer: since when it has not, and the
    #: last step that it has answered.
    _silent_since: float | None = None
    _answered: int = 0

    # --- shutdown -------------------------------------------------------------------------------

    def shutdown(self, drain: bool = True, timeout: float = 60.0) -> Future[None]:
        """Take nothing new; finish what is there, or end it. The future is done when stopped.

        With `drain`, what is not finished after `timeout` seconds is aborted. Raises
        RejectedCallError for a wrong flag or timeout, and from within an output.
        """
        required(RejectedCallError, "drain", drain, bool)
        timeout = seconds(RejectedCallError, "the timeout", timeout)
        self._not_from_within()
        if self._shutdown is not None:
            if not drain:
                self._end_all()
            return self._shutdown
        self._shutdown = Future()
        lifecycle = self.lifecycle
        if self._waiting_reset is not None:
            waiting = self._waiting_reset
            self._end_reset(self._try_reset(force=waiting.force, connector=waiting.connector))
        lifecycle.engine_event(SHUTDOWN)
        self._end_pause(False, "the engine is shutting down")
        self._drain_until = self.clock() + timeout
        engine = lifecycle.engine
        if not drain or not (engine.weights_resident and engine.cache_resident):
            self._end_all()
        for request in list(self._requests.values()):
            if lifecycle.view.resumable[request.row]:
                lifecycle.close_input(request.row)
        self._sweep()
        return self._shutdown

    def _end_all(self) -> None:
        lifecycle = self.lifecycle
        self._hear_the_device()
        for row in lifecycle.known_rows():
            if lifecycle.state_of(row) in LIVE:
                self._requests[row].error = "the engine is shutting down"
                lifecycle.abort(row)
        if self.transfers is not None:
            for record in lifecycle.open_transfers():
                self.transfers.cancel(record.number)
        self._sweep()

    def _look_at_shutdown(self) -> None:
        lifecycle = self.lifecycle
        if lifecycle.mode != DRAINING:
            return
        if lifecycle.live and self.clock() >= self._drain_until:
            self._end_all()
        if lifecycle.live:
            return
        if lifecycle.in_flight:
            self._device_must_answer()
            return  # asked in every turn: the holds are counted only when nobody is left
        holds = lifecycle.holds_left()
        if holds or not lifecycle.engine_event(DRAINED, live=lifecycle.live, holds=holds).went:
            return
        self.close()
        assert self._shutdown is not None
        give(self._shutdown, None)

    def _device_must_answer(self) -> None:
        """A drain waits for a launched step that nobody needs, but not for ever.

        Its blocks cannot be given back while a device may touch them. Raises EngineFailedError.
        """
        silent = self.clock() - self._hear_the_device()
        if silent > self.config.watchdog:
            step = self.lifecycle.steps_in_flight[0].step
            error = EngineFailedError(f"the device has not answered step {step} for {silent:.0f} s")
            self.fail_calls(error)
            raise error

    def _hear_the_device(self) -> float:
        """Since when it has not answered: its last answer, or the end of the last request."""
        processed = self.lifecycle.processed
        if self._silent_since is None or processed != self._answered:
            self._silent_since, self._answered = self.clock(), processed
        return self._silent_since

    def close(self) -> None:
        """End the trace, and stop the workers of runner and connector, whatever one of them raises.

        Nothing runs afterwards: for who has drained the engine, or gives it up after a failure.
        Only Ctrl-C passes.
        """
        closing: list[Callable[[], None]] = [lambda: self.trace(None), self.runner.close]
        if self.transfers is not None:
            closing.append(self.transfers.close)
        for close in closing:
            try:
                close()
            except BaseException as error:
                if ends_the_program(error):
                    raise
                _log.exception("something could not be closed")

    # --- what is due ----------------------------------------------------------------------------

    def tick(self) -> None:
        """Everything that is due between two steps. Blocks only for a reset that may succeed.

        Raises RejectedCallError from within an output; EngineFailedError after `shutdown`, when
        the device is silent for longer than `config.watchdog`: then only `close` is left.
        """
        super().tick()
        if self._waiting_reset is not None:
            self._look_at_reset()
        if self._waiting_pause is not None:
            self._look_at_pause()
        if self._shutdown is not None:
            self._look_at_shutdown()

    def next_time(self) -> float | None:
        """Seconds until something is due, None when nothing is."""
        known = super().next_time()
        if self._silent_since is not None and self.lifecycle.in_flight:
            left = max(0.0, self._silent_since + self.config.watchdog - self.clock())
            known = left if known is None else min(known, left)
        if self._waiting_reset is not None:
            left = max(0.0, self._waiting_reset.until - self.clock())
            known = left if known is None else min(known, left)
        if self.lifecycle.mode == DRAINING and self.lifecycle.live:
            left = max(0.0, self._drain_until - self.clock())
            known = left if known is None else min(known, left)
        return known

    def fail_calls(self, error: BaseException) -> None:
        """The engine has failed: everybody who waits for an answer is told."""
        answers: list[Future[object]] = []
        if self._waiting_reset is not None:
            answers += self._waiting_reset.answers  # type: ignore[arg-type]
        if self._waiting_pause is not None:
            answers += self._waiting_pause.answers  # type: ignore[arg-type]
        if self._shutdown is not None:
            answers.append(self._shutdown)  # type: ignore[arg-type]
        for answer in answers:
            with contextlib.suppress(InvalidStateError):
                answer.set_exception(error)
