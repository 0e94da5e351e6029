"""What is due between two steps, and what can be seen of the engine from outside."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from ..statemachine.gates import clocks_stand_still
from ..statemachine.states import (
    DRAINING,
    STOPPED,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
    EngineMode,
)
from .api import EngineStats, Holder, RejectedCallError, RequestInfo
from .arguments import required
from .outcome import Fired
from .sessions import Request
from .stepping import Stepping
from .trace_writer import TraceWriter
from .watchdog import Watchdog

_log = logging.getLogger(__name__)


class Observed(Stepping):
    """Deadlines, watchdog, trace, statistics."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.watchdog = Watchdog(self.lifecycle, self.config.watchdog, self.clock)
        self._trace: TraceWriter | None = None

    # --- what is due ----------------------------------------------------------------------------

    def tick(self) -> None:
        """Everything that is due between two steps. Never blocks.

        Raises RejectedCallError from within an output.
        """
        self._not_from_within()
        if self.transfers is not None:
            self.transfers.tick()
        if len(self._load_deadlines) or len(self._pausing_deadlines):
            self._end_waits()
        if self.lifecycle.finished:
            self._sweep()
        self.watchdog.look()

    def _end_waits(self) -> None:
        self._pausing_clock.stand_still(clocks_stand_still(self.lifecycle.engine))
        for row, wait in (*self._load_deadlines.due(), *self._pausing_deadlines.due()):
            request = self._requests.get(row)
            if request is None or request.wait != wait:
                continue
            state = self.lifecycle.state_of(row)
            if state == WAITING_FOR_STREAMING_REQ:
                request.error = "no chunk came in time"
                self.lifecycle.deadline(row)
            elif state == WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
                request.error = "its grammar was not ready in time"
                self.lifecycle.deadline(row)
            elif state == WAITING_FOR_REMOTE_KVS:
                self.lifecycle.deadline(row)

    def next_time(self) -> float | None:
        """Seconds until something is due, None when nothing is."""
        times = [self._load_deadlines.next_in()]
        if not self._pausing_clock.standing:
            times.append(self._pausing_deadlines.next_in())
        if self.transfers is not None:
            lease = self.transfers.next_lease()
            times.append(None if lease is None else max(0.0, lease - self.clock()))
        known = [seconds for seconds in times if seconds is not None]
        return min(known) if known else None

    # --- looking --------------------------------------------------------------------------------

    def requests(self) -> list[Request]:
        """The requests whose clients are still to be told something."""
        return list(self._requests.values())

    def trace(self, path: str | Path | None) -> None:
        """Append every transition from now on to a file; None ends the trace.

        Raises OSError when the file cannot be opened, RejectedCallError for what is no path. A
        trace that cannot be written any more (a full disk) ends, with a line in the log; the
        engine goes on.
        """
        self.trace_to(self.open_trace(path))

    def open_trace(self, path: str | Path | None) -> TraceWriter | None:
        """What writes a trace to that file, or None for None. From any thread.

        It waits where a file does: for the reader of a named pipe. Raises as `trace` does.
        """
        required(RejectedCallError, "the trace's path", path, str, Path, none=True)
        try:
            return None if path is None else TraceWriter(path, self.clock)
        except ValueError as error:  # a NUL in it, or what the file system cannot encode
            raise RejectedCallError(f"the trace's path is {path!r}: {error}") from error

    def trace_to(self, writer: TraceWriter | None) -> None:
        """Write every transition from now on there; None ends the trace."""
        self._not_from_a_text()
        self._end_trace()
        self._trace = writer
        self.lifecycle.tell(None if writer is None else self._witness)

    def _witness(self, fired: Fired) -> None:
        if self._trace is None:
            return  # it has ended within this very lane
        try:
            self._trace(fired)
        except OSError as error:
            _log.error("the trace ends here, it cannot be written: %s", error)
            self._end_trace()

    def _end_trace(self) -> None:
        trace, self._trace = self._trace, None
        self.lifecycle.tell(None)
        try:
            if trace is not None:
                trace.close()
        except OSError as error:
            _log.error("the end of the trace is lost, it cannot be written: %s", error)

    def holds(self) -> list[Holder]:
        """Who keeps which blocks, since when."""
        return self.lifecycle.holds()

    def is_paused(self) -> bool:
        """Whether nothing runs because a client asked for it; sleeping is paused too."""
        mode = self.lifecycle.mode
        return mode in (EngineMode.PAUSED, EngineMode.SLEEPING, EngineMode.WAKING)

    def is_sleeping(self) -> bool:
        """Whether memory is given back."""
        return self.lifecycle.mode in (EngineMode.SLEEPING, EngineMode.WAKING)

    def healthy(self) -> tuple[bool, str]:
        """Whether requests can be served, and if not, why."""
        if self.lifecycle.mode == STOPPED:
            return False, "the engine has stopped"
        if self.watchdog.stuck_for:
            return False, self.watchdog.report
        return True, "draining" if self.lifecycle.mode == DRAINING else ""

    def request_info(self, request_id: str) -> RequestInfo | None:
        """One request's facts and last transitions; of a finished one, as it ended.

        Raises InvalidRequestError for what is no id.
        """
        row = self._row_of(request_id)
        if row is None:
            return self._remembered.get(request_id)
        return self._info(row)

    def stats(self) -> EngineStats:
        """One consistent picture of the counters."""
        lifecycle, ledger, transfers = self.lifecycle, self.lifecycle.ledger, self.transfers
        return EngineStats(
            mode=EngineMode(lifecycle.mode).name.lower(),
            waiting=len(lifecycle.waiting),
            blocked=len(lifecycle.blocked),
            running=len(lifecycle.running),
            parked_sessions=len(lifecycle.parked),
            blocks_total=ledger.num_blocks,
            blocks_free=ledger.pool.free,
            blocks_cached=ledger.cached_blocks,
            blocks_quarantined=ledger.quarantined_blocks,
            holds=lifecycle.hold_counts(),
            steps_launched=lifecycle.launched,
            steps_processed=lifecycle.processed,
            preemptions=self._preemptions,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
            tier_loaded_bytes=transfers.loaded_bytes if transfers else 0,
            tier_stored_bytes=transfers.stored_bytes if transfers else 0,
            finished=dict(self._finish_counts),
            ignored_signals=dict(lifecycle.ignored),
            refused_resets=self._refused_resets(),
            watchdog_trips=self.watchdog.trips,
            stuck_for=self.watchdog.stuck_for,
        )

    def _refused_resets(self) -> dict[str, int]:
        return {}
