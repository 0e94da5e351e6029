"""Pause, resume, sleep, wake, weights_changed: what can fail is tried before anything is done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from ..statemachine.answers import IGNORE
from ..statemachine.engine import ASLEEP, ENGINE
from ..statemachine.errors import RefusedError
from ..statemachine.states import (
    ABORT_ALL,
    ACTIVE,
    CACHE,
    KEEP_ALL,
    PAUSE,
    PAUSE_REACHED,
    PAUSED,
    PAUSING,
    PREEMPTED,
    RESUME,
    SLEEP,
    SLEEP_FAILED,
    SLEEPING,
    WAIT_FOR_ALL,
    WAKE,
    WAKE_FAILED,
    WEIGHTS,
    WEIGHTS_CHANGED,
    WOKE,
    EngineMode,
)
from .answers import answered, give
from .api import CallResult, Holder, RejectedCallError
from .arguments import ends_the_program, in_words, required
from .outcome import Outcome
from .resets import Resets

_log = logging.getLogger(__name__)

PAUSE_MODES = {"abort": ABORT_ALL, "wait": WAIT_FOR_ALL, "keep": KEEP_ALL}
TAGS = {"weights": WEIGHTS, "cache": CACHE, "kv_cache": CACHE}
#: Why a pause or a sleep has come to nothing: a client had the last word.
_RESUMED = "it was resumed before it was reached"


@dataclass(slots=True)
class _WaitingPause:
    """A pause that is not reached yet, or a sleep that begins with one."""

    clear_cache: bool
    level: int = 0  # of the sleep, 0 for a pause
    ended: list[str] = field(default_factory=list)
    answers: list[Future[CallResult]] = field(default_factory=list)


class Pauses(Resets):
    """The calls that stop the engine and give its memory back, and those that undo it."""

    _waiting_pause: _WaitingPause | None = None

    # --- pause ----------------------------------------------------------------------------------

    def pause(self, mode: str = "abort", clear_cache: bool = False) -> Future[CallResult]:
        """Stop stepping: what runs is ended ("abort"), finished ("wait") or kept ("keep").

        `clear_cache` forgets the cached prefixes as a forced reset does, before the pause counts
        as reached; transfers that are under way are waited for. Raises RejectedCallError.
        """
        number = _known(mode, PAUSE_MODES, "mode")
        required(RejectedCallError, "clear_cache", clear_cache, bool)
        outcome = self._called(PAUSE, pausing=number)
        waiting = self._waiting_pause
        future: Future[CallResult] = Future()
        if self.lifecycle.mode == PAUSING:
            if waiting is not None:  # the same pause is under way
                waiting.clear_cache |= clear_cache
                waiting.answers.append(future)
                return future
            self._begin_waiting(_WaitingPause(clear_cache, answers=[future]), number)
            return future
        if clear_cache:
            self._not_from_within()
        # Paused already, perhaps with requests kept: to abort them now is no less what was asked.
        ended: list[str] = []
        self._end_running(number, ended)
        if not self.is_paused():  # by a client, from what it was told of its end
            return answered(self._answer(False, _RESUMED, ended=tuple(ended)))
        result = self._answer(True, _why(outcome), ended=tuple(ended))
        if clear_cache and self.lifecycle.mode == PAUSED:
            cleared = self._try_reset(force=True, connector=False)
            if not cleared.success:
                result = self._answer(False, "the cache is held", cleared.holders, tuple(ended))
        return answered(result)

    def _begin_waiting(self, waiting: _WaitingPause, mode: int) -> None:
        """The pause is under way. Its clients may call from what they are told of their end."""
        self._waiting_pause = waiting
        self._end_running(mode, waiting.ended)
        self._look_at_pause()

    def _end_running(self, mode: int, ended: list[str]) -> None:
        """In mode ABORT_ALL: abort what has begun, and add the ids of what was aborted to `ended`.

        Before their clients are told: one that calls from there may have the list answered.
        """
        if mode != ABORT_ALL:
            return
        lifecycle = self.lifecycle
        preempted = [row for row in lifecycle.waiting if lifecycle.state_of(row) == PREEMPTED]
        for row in [*lifecycle.running, *preempted]:
            ended.append(lifecycle.id_of(row))
            self._requests[row].error = "the engine was paused"
            lifecycle.abort(row)
        self._sweep()

    def _look_at_pause(self) -> None:
        """Whether the pause is reached; then the sleep that waits for it follows."""
        waiting = self._waiting_pause
        if waiting is None or self._delivering:
            return  # from within an output: the next look is soon enough
        lifecycle = self.lifecycle
        running = len(lifecycle.running) + sum(
            lifecycle.state_of(row) == PREEMPTED for row in lifecycle.waiting
        )
        if not lifecycle.engine_would(PAUSE_REACHED, running=running):
            return
        if waiting.clear_cache and (
            lifecycle.refuses(True) or not self._try_reset(force=True, connector=False)
        ):
            return  # by transfers alone, which end: none starts in this mode
        reached = lifecycle.engine_event(PAUSE_REACHED, running=running)
        assert reached.went, _why(reached)
        if waiting.level:
            result = self._fall_asleep(waiting.level, tuple(waiting.ended))
            self._waiting_pause = None
            for answer in waiting.answers:
                give(answer, result)
        else:
            self._end_pause(True, "")

    def _end_pause(self, success: bool, why: str, holders: tuple[Holder, ...] = ()) -> None:
        waiting, self._waiting_pause = self._waiting_pause, None
        if waiting is None:
            return
        result = self._answer(success, why, holders, tuple(waiting.ended))
        for answer in waiting.answers:
            give(answer, result)

    def resume(self) -> CallResult:
        """Go on after a pause. Raises RejectedCallError when asleep or shutting down."""
        outcome = self._called(RESUME)
        self._end_pause(False, _RESUMED)
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
        required(RejectedCallError, "the level", level, int)
        if level not in (1, 2):
            raise RejectedCallError(f"level {level}: the level is 1 or 2")
        self._not_from_a_text()
        if lifecycle.mode in (ACTIVE, PAUSED):
            refusal = self._cannot_sleep()
            if refusal is not None:
                return answered(refusal)
        if lifecycle.mode == PAUSED:
            ended: list[str] = []
            self._end_running(number, ended)
            if lifecycle.mode != PAUSED:
                return answered(self._overtaken(level, tuple(ended)))
            return answered(self._fall_asleep(level, tuple(ended)))
        outcome = self._called(SLEEP, level=level, pausing=number)
        if lifecycle.mode != PAUSING or not outcome.went:
            return answered(self._answer(outcome.answer == IGNORE, _why(outcome), retryable=True))
        future: Future[CallResult] = Future()
        self._begin_waiting(_WaitingPause(False, level, answers=[future]), number)
        return future

    def _overtaken(self, level: int, ended: tuple[str, ...]) -> CallResult:
        """While it ended requests, a client of theirs has resumed or slept: that is done."""
        if self.lifecycle.mode not in ASLEEP:
            return self._answer(False, _RESUMED, ended=ended, retryable=True)
        try:
            outcome = self._called(SLEEP, level=level)
        except RejectedCallError as rejected:  # but it has ended requests: no rejection any more
            return self._answer(False, str(rejected), ended=ended)
        return self._answer(outcome.answer == IGNORE, _why(outcome), ended=ended)

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
        why = _failure(lambda: self.runner.release_weights(level))
        if why:
            return f"the weights could not be released: {why}"
        why = _failure(self.runner.kv.release)
        if why:
            return f"the cache could not be released: {why}{self._restore_again()}"
        return ""

    def _restore_again(self) -> str:
        """The weights were released and the cache was not. Says if they cannot be brought back.

        Steps are then launched and fail at the device, until a sleep and a wake restore them.
        """
        why = _failure(self.runner.restore_weights)
        return f"; nor could the weights be restored: {why}; sleep and wake it" if why else ""

    def wake(self, tags: Iterable[str] = ("weights", "cache")) -> CallResult:
        """Take the memory of these tags again; steps run when both are resident.

        On an error it sleeps on as before. Raises RejectedCallError.
        """
        required(RejectedCallError, "tags", tags, Iterable)
        try:
            named = tuple(tags)
        except Exception as error:
            raise RejectedCallError(f"the tags cannot be read: {in_words(error)}") from error
        number = 0
        for tag in named:
            number |= _known(tag, TAGS, "tag")
        lifecycle = self.lifecycle
        outcome = self._called(WAKE, tags=number)
        if lifecycle.mode != EngineMode.WAKING:
            return self._answer(True, _why(outcome))
        engine = lifecycle.engine
        weights = bool(number & WEIGHTS) and not engine.weights_resident
        why = _failure(self.runner.restore_weights) if weights else ""
        if not why and number & CACHE and not engine.cache_resident:
            why = _failure(self.runner.kv.restore)
            if why and weights:
                # They sleep on with the cache. Should they not: resident for nothing, until the
                # next try to wake finds them so.
                _failure(lambda: self.runner.release_weights(engine.sleep_level))
        if why:
            lifecycle.engine_event(WAKE_FAILED)
            return self._answer(False, f"memory could not be restored: {why}", retryable=True)
        lifecycle.engine_event(WOKE, tags=number)
        left = "a part of it is still asleep" if lifecycle.mode == SLEEPING else ""
        return self._answer(True, left)

    def weights_changed(self) -> CallResult:
        """The weights are others: nothing older can be a hit in any tier. Only when paused."""
        outcome = self._called(WEIGHTS_CHANGED, holds=self.lifecycle.holds_left())
        if outcome.went:
            return self._answer(True, "")
        holders = tuple(holder for holder in self.holds() if not holder.quarantined)
        return self._answer(False, _why(outcome), holders, retryable=True)

    def _called(self, event: int, **ask: int) -> Outcome:
        """An event of the engine that a client's call is. Raises RejectedCallError."""
        self._not_from_a_text()
        try:
            return self.lifecycle.engine_event(event, **ask)
        except RefusedError as refusal:
            raise RejectedCallError(refusal.why) from refusal

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


def _failure(call: Callable[[], None]) -> str:
    """Ask the device for something; what it raised, in words, "" if nothing. Ctrl-C passes.

    Its SystemExit or asyncio.CancelledError, which are no Exception, would end the engine.
    """
    try:
        call()
    except BaseException as error:
        if ends_the_program(error):
            raise
        _log.exception("memory could not be released or restored")
        return in_words(error)
    return ""


def _known(name: str, names: dict[str, int], what: str) -> int:
    if not isinstance(name, str) or name not in names:
        raise RejectedCallError(f"{what} {name!r}; known are {', '.join(names)}")
    return names[name]


def _why(outcome: Outcome) -> str:
    """In words, why the engine did not do it; "" if it did."""
    return "" if outcome.went else ENGINE.row(int(outcome)).why
