"""Calls to the engine as a whole: reset, pause, resume, sleep, wake, weights_changed, shutdown.

Each is answered by a future, because some wait for what is under way: `tick` looks whether they
can be answered now. What can fail is tried before anything irreversible is done.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..statemachine.answers import IGNORE
from ..statemachine.engine import ENGINE
from ..statemachine.errors import RefusedError
from ..statemachine.reset import DONE, clears_tier, may_wait, outcome
from ..statemachine.states import (
    ABORT_ALL,
    ACTIVE,
    CACHE,
    DRAINED,
    DRAINING,
    KEEP_ALL,
    LIVE,
    PAUSE,
    PAUSE_FAILED,
    PAUSE_REACHED,
    PAUSED,
    PAUSING,
    PREEMPTED,
    RESET_DECIDED,
    RESET_PENDING,
    RESUME,
    SHUTDOWN,
    SLEEP,
    SLEEP_FAILED,
    SLEEPING,
    STOPPED,
    WAIT_FOR_ALL,
    WAKE,
    WAKE_FAILED,
    WEIGHTS,
    WEIGHTS_CHANGED,
    WOKE,
    EngineMode,
)
from .api import CallResult, Holder, RejectedCallError, ResetResult
from .core import CoreBase
from .events import Outcome
from .lifecycle import ResetDecision

_log = logging.getLogger(__name__)

PAUSE_MODES = {"abort": ABORT_ALL, "wait": WAIT_FOR_ALL, "keep": KEEP_ALL}
TAGS = {"weights": WEIGHTS, "cache": CACHE, "kv_cache": CACHE}


@dataclass(slots=True)
class _WaitingReset:
    """A reset that stays pending; several callers may wait for it."""

    force: bool
    connector: bool
    since: float
    until: float
    answers: list[Future[ResetResult]]

    def is_for(self, force: bool, connector: bool) -> bool:
        """Whether it asks for the same."""
        return (self.force, self.connector) == (force, connector)


@dataclass(slots=True)
class _WaitingPause:
    """A pause that is not reached yet, or a sleep that begins with one."""

    mode: int
    clear_cache: bool
    level: int = 0  # of the sleep, 0 for a pause
    ended: list[str] = field(default_factory=list)
    answers: list[Future[CallResult]] = field(default_factory=list)


T = TypeVar("T")


def answered(value: T) -> Future[T]:
    """A future that has its result."""
    future: Future[T] = Future()
    future.set_result(value)
    return future


class EngineCore(CoreBase):
    """The core with all of its calls. Single-threaded: whoever drives it calls it."""

    _waiting_reset: _WaitingReset | None = None
    _waiting_pause: _WaitingPause | None = None
    _shutdown: Future[None] | None = None
    _drain_until: float = 0.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._refused: Counter[str] = Counter()

    # --- reset ----------------------------------------------------------------------------------

    def reset_prefix_cache(
        self,
        reset_running_requests: bool = False,
        reset_connector: bool = False,
        wait: float = 0.0,
    ) -> Future[ResetResult]:
        """Forget every cached prefix of the device, and then of the tier if asked.

        With `wait` seconds, a reset that is refused only by what ends by itself stays pending;
        cancelling the future gives it up. Raises RejectedCallError when the engine has stopped.
        """
        if self.lifecycle.mode == STOPPED:
            raise RejectedCallError("the engine has stopped")
        now = self.clock()
        wait = min(max(wait, 0.0), self.config.max_reset_wait)
        waiting = self._waiting_reset
        flags = (reset_running_requests, reset_connector)
        future: Future[ResetResult] = Future()
        if wait > 0 and waiting is not None and waiting.is_for(*flags):
            waiting.answers.append(future)
            return future
        result, may = self._try_reset(*flags, wait > 0)
        if not may or waiting is not None or self.lifecycle.mode == DRAINING:
            self._count_refusal(result)
            return answered(result)
        self.lifecycle.engine_event(RESET_PENDING)
        self._waiting_reset = _WaitingReset(*flags, now, now + wait, [future])
        return future

    def _try_reset(self, force: bool, connector: bool, waits: bool) -> tuple[ResetResult, bool]:
        """Decide a reset now. Also says whether it may wait for what refuses it."""
        self.process_launched()
        if self.transfers is not None:
            self.transfers.hear()
        decision = self.lifecycle.reset(force)
        if not decision.done:
            return self._refusal(decision, waits)
        self._preemptions += sum(
            self.lifecycle.state_of(row) == PREEMPTED for row in decision.let_go
        )
        tiers: tuple[str, ...] = ("device",)
        cleared = True
        if clears_tier(0, connector):
            cleared = self.transfers is None or self.transfers.reset_tier()
            if cleared:
                tiers += ("connector",)
        decided = outcome(0, connector, cleared)
        self.check()
        done = decided == DONE
        return ResetResult(success=done, retryable=not done, tiers=tiers), False

    def _refusal(self, decision: ResetDecision, waits: bool) -> tuple[ResetResult, bool]:
        holders = decision.refused_by
        by_client = sum(holder.ends_by == "client" for holder in holders)
        result = ResetResult(success=False, retryable=by_client == 0, holders=holders)
        return result, may_wait(len(holders), by_client, waits)

    def _count_refusal(self, result: ResetResult) -> None:
        if not result.success:
            self._refused.update({holder.kind for holder in result.holders})

    def _refused_resets(self) -> dict[str, int]:
        return dict(self._refused)

    def _look_at_reset(self) -> None:
        """Try the waiting reset again if it may succeed now, or end its wait."""
        waiting = self._waiting_reset
        if waiting is None:
            return
        waiting.answers = [answer for answer in waiting.answers if not answer.cancelled()]
        if not waiting.answers:
            self._end_reset(None)
            return
        now = self.clock()
        over = now >= waiting.until
        # Looking is cheap; a try makes the device wait, so it is worth it only if it may succeed.
        if self.lifecycle.refusing(waiting.force) and not over:
            return
        result, _ = self._try_reset(waiting.force, waiting.connector, False)
        if result.success or result.tiers or over:
            self._end_reset(
                ResetResult(
                    result.success, result.retryable, result.tiers, result.holders,
                    now - waiting.since,
                )
            )  # fmt: skip

    def _end_reset(self, result: ResetResult | None) -> None:
        waiting, self._waiting_reset = self._waiting_reset, None
        assert waiting is not None
        self.lifecycle.engine_event(RESET_DECIDED)
        if result is None:
            return
        self._count_refusal(result)
        for answer in waiting.answers:
            _give(answer, result)

    # --- pause ----------------------------------------------------------------------------------

    def pause(self, mode: str = "abort", clear_cache: bool = False) -> Future[CallResult]:
        """Stop stepping: what runs is ended ("abort"), finished ("wait") or kept ("keep").

        `clear_cache` forgets the cached prefixes once the pause is reached, as a forced reset
        does; should that be refused, the pause is undone. Raises RejectedCallError.
        """
        number = _known(mode, PAUSE_MODES, "mode")
        try:
            outcome = self.lifecycle.engine_event(PAUSE, pausing=number)
        except RefusedError as refusal:
            raise RejectedCallError(refusal.why) from refusal
        waiting = self._waiting_pause
        future: Future[CallResult] = Future()
        if self.lifecycle.mode == PAUSING:
            if waiting is not None:  # the same pause is under way
                waiting.clear_cache |= clear_cache
                waiting.answers.append(future)
                return future
            waiting = self._waiting_pause = _WaitingPause(number, clear_cache, answers=[future])
            self._end_running(waiting)
            self._look_at_pause()
            return future
        result = self._answer(True, _why(outcome))
        if clear_cache and self.lifecycle.mode == PAUSED:
            cleared, _ = self._try_reset(True, False, False)
            if not cleared.success:
                result = self._answer(False, "the cache is held", holders=cleared.holders)
        return answered(result)

    def _end_running(self, waiting: _WaitingPause) -> None:
        if waiting.mode != ABORT_ALL:
            return
        lifecycle = self.lifecycle
        preempted = [row for row in lifecycle.waiting if lifecycle.state_of(row) == PREEMPTED]
        for row in [*lifecycle.running, *preempted]:
            waiting.ended.append(lifecycle.id_of(row))
            self._requests[row].error = "the engine was paused"
            lifecycle.abort(row)
        self._sweep()

    def _look_at_pause(self) -> None:
        """Whether the pause is reached; then the sleep that waits for it follows."""
        waiting = self._waiting_pause
        if waiting is None:
            return
        lifecycle = self.lifecycle
        if lifecycle.in_flight:
            return
        running = len(lifecycle.running) + sum(
            lifecycle.state_of(row) == PREEMPTED for row in lifecycle.waiting
        )
        if waiting.mode != KEEP_ALL and running:
            return
        if waiting.clear_cache:
            cleared, _ = self._try_reset(True, False, False)
            if not cleared.success:
                lifecycle.engine_event(PAUSE_FAILED)
                self._end_pause(False, "the cache is held", cleared.holders)
                return
            running = 0 if waiting.mode != KEEP_ALL else running
        if not lifecycle.engine_event(PAUSE_REACHED, running=running).went:
            return
        if waiting.level:
            result = self._fall_asleep(waiting.level, tuple(waiting.ended))
            self._waiting_pause = None
            for answer in waiting.answers:
                _give(answer, result)
        else:
            self._end_pause(True, "")

    def _end_pause(self, success: bool, why: str, holders: tuple[Holder, ...] = ()) -> None:
        waiting, self._waiting_pause = self._waiting_pause, None
        if waiting is None:
            return
        result = self._answer(success, why, holders, tuple(waiting.ended))
        for answer in waiting.answers:
            _give(answer, result)

    def resume(self) -> CallResult:
        """Go on after a pause. Raises RejectedCallError when asleep or shutting down."""
        try:
            outcome = self.lifecycle.engine_event(RESUME)
        except RefusedError as refusal:
            raise RejectedCallError(refusal.why) from refusal
        self._end_pause(False, "it was resumed before it was reached")
        return self._answer(True, _why(outcome))

    # --- sleep ----------------------------------------------------------------------------------

    def sleep(self, level: int = 1, mode: str = "abort") -> Future[CallResult]:
        """Give the memory of weights and cache back; pause first, in that mode, if need be.

        Level 1 keeps a copy of the weights at hand, level 2 only their file. Refused, with
        everything as it was, while a transfer has not ended or a block is in quarantine. Raises
        RejectedCallError.
        """
        number = _known(mode, PAUSE_MODES, "mode")
        lifecycle = self.lifecycle
        if level not in (1, 2):
            raise RejectedCallError(f"level {level}: the level is 1 or 2")
        if lifecycle.mode in (ACTIVE, PAUSED):
            refusal = self._cannot_sleep()
            if refusal is not None:
                return answered(refusal)
        if lifecycle.mode == PAUSED:
            return answered(self._fall_asleep(level, ()))
        try:
            outcome = lifecycle.engine_event(SLEEP, level=level, pausing=number)
        except RefusedError as refusal_error:
            raise RejectedCallError(refusal_error.why) from refusal_error
        if lifecycle.mode != PAUSING or not outcome.went:
            return answered(self._answer(outcome.answer == IGNORE, _why(outcome), retryable=True))
        future: Future[CallResult] = Future()
        waiting = _WaitingPause(number, False, level, answers=[future])
        self._waiting_pause = waiting
        self._end_running(waiting)
        self._look_at_pause()
        return future

    def _cannot_sleep(self) -> CallResult | None:
        if self.transfers is not None:
            self.transfers.hear()
        holders = self.lifecycle.refusing(force=True)
        if holders:
            return self._answer(False, "a transfer has not ended", holders, retryable=True)
        if self.lifecycle.engine.quarantined:
            quarantined = tuple(h for h in self.lifecycle.holds() if h.quarantined)
            return self._answer(False, "a block is in quarantine", quarantined)
        return None

    def _fall_asleep(self, level: int, ended: tuple[str, ...]) -> CallResult:
        """Paused: give the memory back, or leave everything as it was."""
        lifecycle = self.lifecycle
        refusal = self._cannot_sleep()
        why = refusal.why if refusal is not None else self._give_memory_back(level)
        if why:
            lifecycle.engine_event(SLEEP_FAILED)
            holders = refusal.holders if refusal is not None else ()
            return self._answer(False, why, holders, ended, retryable=True)
        # Nothing can fail from here on.
        lifecycle.let_go_of_all()
        outcome = lifecycle.engine_event(SLEEP, level=level, holds=lifecycle.holds_left())
        assert outcome.went, _why(outcome)
        self.check()
        return self._answer(True, "", ended=ended)

    def _give_memory_back(self, level: int) -> str:
        """Release weights, then cache; on an error neither. Returns what went wrong, or ""."""
        try:
            self.runner.release_weights(level)
        except Exception as error:
            _log.exception("the weights could not be released")
            return f"the weights could not be released: {error}"
        try:
            self.runner.kv.release()
        except Exception as error:
            _log.exception("the cache could not be released")
            self.runner.restore_weights()
            return f"the cache could not be released: {error}"
        return ""

    def wake(self, tags: Iterable[str] = ("weights", "cache")) -> CallResult:
        """Take the memory of these tags again; steps run when both are resident.

        On an error it sleeps on as before. Raises RejectedCallError.
        """
        number = 0
        for tag in tags:
            number |= _known(tag, TAGS, "tag")
        lifecycle = self.lifecycle
        try:
            outcome = lifecycle.engine_event(WAKE, tags=number)
        except RefusedError as refusal:
            raise RejectedCallError(refusal.why) from refusal
        if lifecycle.mode != EngineMode.WAKING:
            return self._answer(True, _why(outcome))
        engine = lifecycle.engine
        restored_weights = False
        try:
            if number & WEIGHTS and not engine.weights_resident:
                self.runner.restore_weights()
                restored_weights = True
            if number & CACHE and not engine.cache_resident:
                self.runner.kv.restore()
        except Exception as error:
            _log.exception("waking failed")
            if restored_weights:
                self.runner.release_weights(engine.sleep_level)
            lifecycle.engine_event(WAKE_FAILED)
            return self._answer(False, f"memory could not be restored: {error}", retryable=True)
        lifecycle.engine_event(WOKE, tags=number)
        left = "a part of it is still asleep" if lifecycle.mode == SLEEPING else ""
        return self._answer(True, left)

    def weights_changed(self) -> CallResult:
        """The weights are others: nothing older can be a hit in any tier. Only when paused."""
        lifecycle = self.lifecycle
        try:
            outcome = lifecycle.engine_event(WEIGHTS_CHANGED, holds=lifecycle.holds_left())
        except RefusedError as refusal:
            raise RejectedCallError(refusal.why) from refusal
        if outcome.went:
            return self._answer(True, "")
        holders = tuple(holder for holder in self.holds() if not holder.quarantined)
        return self._answer(False, _why(outcome), holders, retryable=True)

    # --- shutdown -------------------------------------------------------------------------------

    def shutdown(self, drain: bool = True, timeout: float = 60.0) -> Future[None]:
        """Take nothing new; finish what is there, or end it. The future is done when stopped.

        With `drain`, what is not finished after `timeout` seconds is aborted.
        """
        if self._shutdown is not None:
            if not drain:
                self._end_all()
            return self._shutdown
        self._shutdown = Future()
        lifecycle = self.lifecycle
        if self._waiting_reset is not None:
            result, _ = self._try_reset(
                self._waiting_reset.force, self._waiting_reset.connector, False
            )
            self._end_reset(result)
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
        for row in lifecycle.known_rows():
            if lifecycle.state_of(row) in _LIVE:
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
        holds = lifecycle.holds_left()
        if lifecycle.live or holds or lifecycle.in_flight:
            return
        if not lifecycle.engine_event(DRAINED, live=lifecycle.live, holds=holds).went:
            return
        self.trace(None)
        self.runner.close()
        if self.transfers is not None:
            self.transfers.close()
        assert self._shutdown is not None
        _give(self._shutdown, None)

    # --- what is due ----------------------------------------------------------------------------

    def tick(self) -> None:
        """Everything that is due between two steps. Blocks only for a reset that may succeed."""
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
        if self._waiting_reset is not None:
            left = max(0.0, self._waiting_reset.until - self.clock())
            known = left if known is None else min(known, left)
        if self.lifecycle.mode == DRAINING:
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
            if not answer.done():
                answer.set_exception(error)

    def _answer(
        self,
        success: bool,
        why: str,
        holders: tuple[Holder, ...] = (),
        ended: tuple[str, ...] = (),
        retryable: bool = False,
    ) -> CallResult:
        mode = EngineMode(self.lifecycle.mode).name.lower()
        return CallResult(success, mode, why, retryable and not success, holders, ended)


_LIVE = tuple(int(state) for state in LIVE)


def _known(name: str, names: dict[str, int], what: str) -> int:
    if name not in names:
        raise RejectedCallError(f"{what} {name!r}; known are {', '.join(names)}")
    return names[name]


def _why(outcome: Outcome) -> str:
    """In words, why the engine did not do it; "" if it did."""
    return "" if outcome.went else ENGINE.row(int(outcome)).why


def _give(answer: Future[T], result: T) -> None:
    """Answer, unless the caller is gone."""
    if not answer.done():
        answer.set_result(result)
