"""Notices when there is work and it does not move, and names who holds what.

It ends nothing by itself: it says what it sees, in the log, in `stats` and in `healthy`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..statemachine.gates import finishes_work
from .lifecycle import Lifecycle

_log = logging.getLogger(__name__)


class Watchdog:
    """Compares what the lifecycle has got done over time.

    Not its count of all transitions: clients who come, go and ask while a step hangs raise that.
    """

    def __init__(self, lifecycle: Lifecycle, patience: float, clock: Callable[[], float]) -> None:
        """`patience`: seconds for which work may stand still."""
        self._lifecycle = lifecycle
        self._patience = patience
        self._clock = clock
        self._progress = -1
        self._worked = False  # at the last look there was work
        self._since = clock()
        self._tripped = False
        self.trips = 0
        self.report = ""

    @property
    def stuck_for(self) -> float:
        """Seconds for which work has stood still, 0 while within patience."""
        return self._clock() - self._since if self._tripped else 0.0

    def look(self) -> None:
        """To be called at least once between two steps."""
        progress = self._lifecycle.progress
        moved = progress != self._progress
        # While steps follow one another, whether the engine lets them need not be asked.
        works = self._is_under_way() or (
            self._is_queued() and (moved or bool(finishes_work(self._lifecycle.engine)))
        )
        # Work that has come since the last look has not stood still before it came.
        if moved or not works or not self._worked:
            self._progress = progress
            self._since = self._clock()
            self._tripped = False
            self.report = ""
        elif not self._tripped and self._clock() - self._since > self._patience:
            self._tripped = True
            self.trips += 1
            self.report = self._describe()
            _log.error("%s", self.report)
        self._worked = works

    def _is_under_way(self) -> bool:
        """Whether a device or a connector has something to do."""
        return bool(self._lifecycle.in_flight or self._lifecycle.loading_rows)

    def _is_queued(self) -> bool:
        """Whether a request runs or waits to run, should the engine let it."""
        return len(self._lifecycle.running) + len(self._lifecycle.waiting) > 0

    def _describe(self) -> str:
        lifecycle = self._lifecycle
        holders = ", ".join(
            f"{holder.kind} {holder.owner} ({holder.state}, {holder.blocks} blocks, "
            f"{holder.age:.0f} s)"
            for holder in lifecycle.holds()
        )
        return (
            f"nothing has moved for {self._clock() - self._since:.0f} s: "
            f"{len(lifecycle.running)} running, {len(lifecycle.waiting)} waiting, "
            f"{lifecycle.in_flight} steps in flight; holders: {holders or 'none'}"
        )
