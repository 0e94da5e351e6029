"""Resets of the prefix cache: decided at once, or pending until what refuses them has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..statemachine.reset import DONE, REFUSED, clears_tier, may_wait, outcome
from ..statemachine.states import DRAINING, PREEMPTED, RESET_DECIDED, RESET_PENDING, STOPPED
from .answers import answered, give
from .api import Holder, InvalidWaitError, RejectedCallError, ResetResult
from .arguments import required, seconds
from .observed import Observed


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


class Resets(Observed):
    """`reset_prefix_cache`, also with `wait`."""

    _waiting_reset: _WaitingReset | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._refused: Counter[str] = Counter()

    def reset_prefix_cache(
        self,
        reset_running_requests: bool = False,
        reset_connector: bool = False,
        wait: float = 0.0,
    ) -> Future[ResetResult]:
        """Forget every cached prefix of the device, and then of the tier if asked.

        With `wait` seconds, a reset that is refused only by what ends by itself stays pending;
        cancelling the future gives it up. Raises InvalidWaitError for a wait below 0 or above
        `max_reset_wait`, RejectedCallError when the engine has stopped, or for a wrong flag,
        and from within an output: it would process a step.
        """
        required(RejectedCallError, "reset_running_requests", reset_running_requests, bool)
        required(RejectedCallError, "reset_connector", reset_connector, bool)
        required(InvalidWaitError, "wait", wait, int, float)
        if not 0.0 <= wait <= self.config.max_reset_wait:  # also for NaN
            raise InvalidWaitError(
                f"wait {wait}: a reset may wait from 0 to {self.config.max_reset_wait:g} seconds"
            )
        wait = seconds(InvalidWaitError, "wait", wait)
        self._not_from_within()
        if self.lifecycle.mode == STOPPED:
            raise RejectedCallError("the engine has stopped")
        now = self.clock()
        waiting = self._waiting_reset
        flags = (reset_running_requests, reset_connector)
        future: Future[ResetResult] = Future()
        if wait > 0 and waiting is not None and waiting.is_for(*flags):
            waiting.answers.append(future)
            return future
        result = self._try_reset(force=reset_running_requests, connector=reset_connector)
        holders = result.holders
        may = may_wait(len(holders), _ended_by_clients(holders), wait > 0)
        if not may or waiting is not None or self.lifecycle.mode == DRAINING:
            self._count_refusal(result)
            return answered(result)
        self.lifecycle.engine_event(RESET_PENDING)
        self._waiting_reset = _WaitingReset(*flags, now, now + wait, [future])
        return future

    def _try_reset(self, *, force: bool, connector: bool) -> ResetResult:
        """Decide a reset now."""
        self.process_launched()
        if self.transfers is not None:
            self.transfers.hear()
        decision = self.lifecycle.reset(force)
        holders = decision.refused_by
        states = self.lifecycle.view.state[list(decision.let_go)]
        self._preemptions += int(np.count_nonzero(states == PREEMPTED))
        tiers: tuple[str, ...] = ("device",) if decision.forgot else ()
        cleared = True
        if clears_tier(len(holders), connector):
            cleared = self.transfers is None or self.transfers.reset_tier()
            if cleared:
                tiers += ("connector",)
        decided = outcome(len(holders), connector, cleared)
        self.check()
        done = decided == DONE
        retryable = _ended_by_clients(holders) == 0 if decided == REFUSED else not done
        return ResetResult(success=done, retryable=retryable, tiers=tiers, holders=holders)

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
        if self.lifecycle.refuses(waiting.force) and not over:
            return
        result = self._try_reset(force=waiting.force, connector=waiting.connector)
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
            give(answer, result)


def _ended_by_clients(holders: Sequence[Holder]) -> int:
    """How many of them end only when their client acts."""
    return sum(holder.ends_by == "client" for holder in holders)
