"""A guard for unpatched vLLM: `vllm serve … --scheduler-cls <this module>.GuardedScheduler`.

It subclasses vLLM's scheduler and holds the declaration beside it. `KVPROOF_GUARD` says what for:

- `observe` (the default): change nothing, report each departure from the declaration;
- `repair`: besides, close the faults that can be closed from here (docs/guard.md lists them);
- `strict`: as `observe`, and raise at a departure.

`KVPROOF_TRACE=FILE` writes every transition for `kvproof conform`, at a cost for each request and
step.

The guard needs vLLM and kvproof's base install, not kvproof's engine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import RequestStatus

from . import vllm_reset as resets
from . import vllm_sessions as sessions
from . import vllm_tier as tier
from .vllm_drift import installed_drift
from .vllm_report import DepartureError, Report, logger
from .vllm_shadow import Shadow
from .vllm_signals import Signals
from .vllm_trace import TracedShadow

MODES = ("observe", "repair", "strict")

#: What vLLM's `_set_kv_fetch_stage` is told when a load starts.
_LOAD_STARTED = "in_progress"


class Guard(Scheduler):  # type: ignore[misc]
    """Every override calls vLLM's own method, of whichever scheduler comes behind this class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        mode = os.environ.get("KVPROOF_GUARD", "observe")
        if mode not in MODES:
            raise ValueError(f"KVPROOF_GUARD={mode}: it is one of {', '.join(MODES)}")
        found = installed_drift()
        if not found.safe:
            logger.warning("kvproof guard: %s", found)
        self.guard_repairs = mode == "repair" and found.safe
        self.guard_report = Report(strict=mode == "strict" and found.safe)
        trace = os.environ.get("KVPROOF_TRACE")
        self._guard_shadow: Shadow | None = (
            TracedShadow(self, self.guard_report, trace)
            if trace
            else Shadow(self, self.guard_report)
        )
        self._guard_signals = Signals(self.guard_report)
        self._guard_ended = sessions.Ended()
        self._guard_turns: list[Any] = []  # sessions whose turn ended in this update
        self._guard_outputs: list[tuple[int, Any]] = []  # (client, output) still to be sent
        self._guard_sending = False
        self._guard_closing = False
        self._guard_paused_from = PauseState.UNPAUSED
        if self.guard_repairs and tier.offloading(self):
            self._guard_matched = self.connector.get_num_new_matched_tokens
            self.connector.get_num_new_matched_tokens = self._guard_no_load_while_flushed
        logger.info(
            "kvproof guard: %s", "repair" if self.guard_repairs else f"observe (asked for: {mode})"
        )

    def _guard_watch(self, name: str, *args: Any) -> Any:
        """Tell the shadow; a mistake of the shadow must not stop an engine."""
        if self._guard_shadow is None:
            return None
        try:
            return getattr(self._guard_shadow, name)(*args)
        except DepartureError:
            raise
        except Exception:
            logger.exception("kvproof guard: the shadow failed and is given up")
            self._guard_shadow = None
            return None

    # Clients.
    def add_request(self, request: Any) -> None:
        """A new request, a session's next chunk, or the end of its input."""
        name = request.request_id
        session = self.requests.get(name)
        if session is None:
            if self.guard_repairs and name in self._guard_ended:
                self.guard_report.repair("a chunk for a session that has ended answered", name)
                self._guard_send(request, RequestStatus.FINISHED_ABORTED)
                return
            super().add_request(request)
            self._guard_watch("added", request)
            return
        tokens = len(request.prompt_token_ids or ())
        starts_turn = request.resumable and session.status == resets.PARKED
        if self.guard_repairs and starts_turn and not sessions.fits(session, tokens, self):
            self.guard_report.repair("a session longer than the model or pool ended", name)
            self._guard_end(session, RequestStatus.FINISHED_LENGTH_CAPPED)
            return
        if request.resumable:
            self._guard_watch("chunk", session, tokens)
        else:
            self._guard_watch("close", session)
        self._guard_closing = True
        try:
            super().add_request(request)
        finally:
            self._guard_closing = False

    def _guard_end(self, request: Any, status: Any) -> None:
        """End a request and tell its client with the next step's outputs."""
        self.finish_requests(request.request_id, status)
        self._guard_send(request, status)

    def _guard_send(self, request: Any, status: Any) -> None:
        output = EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=[],
            finish_reason=RequestStatus.get_finished_reason(status),
        )
        self._guard_outputs.append((request.client_index, output))
        # An engine without work takes no step, and outputs go with one.
        self.finished_req_ids.add(request.request_id)

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: Any
    ) -> list[Any]:
        """Requests are ended from outside."""
        everybody = request_ids is None
        if isinstance(request_ids, str):
            request_ids = (request_ids,)
        names = list(self.requests if request_ids is None else request_ids)
        if not self._guard_closing:
            known = [self.requests[name] for name in names if name in self.requests]
            live = [request for request in known if not request.is_finished()]
            self._guard_watch("ending", live, finished_status)
        finished: list[Any] = super().finish_requests(names, finished_status)
        if everybody or finished_status != RequestStatus.FINISHED_ABORTED:
            for request in finished:
                if request.resumable:
                    self._guard_ended.add(request.request_id)
        return finished

    def _free_request(self, request: Any, delay_free_blocks: bool = False) -> Any:
        self._guard_sending = False
        answer = super()._free_request(request, delay_free_blocks)
        if request.request_id in self.requests:
            self._guard_signals.delayed(request, delay_free_blocks, self._guard_sending)
        return answer

    def _connector_finished(self, request: Any) -> Any:
        answer = super()._connector_finished(request)
        self._guard_sending = bool(answer[0])
        return answer

    def _free_blocks(self, request: Any) -> None:
        super()._free_blocks(request)
        self._guard_watch("forget", request.request_id)

    # Steps.
    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """One step is planned."""
        output = super().schedule(*args, **kwargs)
        self._guard_watch("scheduled", output)
        if self.guard_repairs and not output.total_num_scheduled_tokens and not self.running:
            self._guard_make_room()
        return output

    def _guard_make_room(self) -> None:
        """Nothing runs though work waits: one holder is reclaimed; the next step tries again."""
        paused = self._pause_state
        if paused == PauseState.PAUSED_ALL or self.deferred_frees or resets.loads_in_flight(self):
            return
        queues = [self.kv_holding_waiting]
        if paused == PauseState.UNPAUSED:
            queues.append(self.waiting)
        waiting = (request for queue in queues for request in queue)
        first = next((r for r in waiting if not self._is_blocked_waiting_status(r.status)), None)
        if first is None or (first.num_stale_output_tokens and not first.drop_stale_output):
            return
        needed = self._request_remaining_blocks(first)
        if needed <= self.kv_cache_manager.block_pool.get_num_free_blocks():
            return
        resets.promote_landed(self)
        victim = sessions.victim(self)
        if victim is not None:
            self._guard_reclaim(victim, "blocks reclaimed because nothing could run")

    def _guard_reclaim(self, request: Any, why: str) -> None:
        self.guard_report.repair(why, request.request_id)
        self._guard_watch("reclaimed", request)
        resets.reclaim(self, request)

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        self._guard_watch("preempting", request, bool(kwargs.get("drop_stale_output")))
        super()._preempt_request(request, *args, **kwargs)
        if self.guard_repairs:
            tier.forget_blocks(self, request, request.num_tokens)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """A step's results are processed."""
        self._guard_watch("processed", scheduler_output, model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._guard_watch("updated")
        if self._guard_turns:
            self._guard_check_queues()
        if self._guard_outputs:
            for client, output in self._guard_outputs:
                outputs.setdefault(client, EngineCoreOutputs()).outputs.append(output)
            self._guard_outputs.clear()
        return outputs

    def _guard_check_queues(self) -> None:
        for session in self._guard_turns:
            if not sessions.in_no_queue(self, session):
                continue
            name = session.request_id
            self.guard_report.departure(
                "a session in no queue", "every live request is in one", "in none", name
            )
            if self.guard_repairs:
                self._enqueue_waiting_request(session)
                self.guard_report.repair("a session in no queue put back", name)
        self._guard_turns.clear()

    # Sessions.
    def _handle_stopped_request(self, request: Any) -> bool:
        ask = self._guard_watch("stopping", request)
        queue = request.streaming_queue
        update = queue[0] if request.resumable and queue else None
        if (
            self.guard_repairs
            and update is not None
            and not sessions.fits(request, len(update.prompt_token_ids or ()), self)
        ):
            self.guard_report.repair("a queued chunk too long: session ended", request.request_id)
            request.status = RequestStatus.FINISHED_LENGTH_CAPPED
            self._guard_ended.add(request.request_id)
            finished = True
        else:
            finished = bool(super()._handle_stopped_request(request))
        if not finished:
            self._guard_turns.append(request)
        if ask is not None:
            self._guard_watch("stopped", request, ask, finished)
        return finished

    def _update_request_as_session(self, session: Any, update: Any) -> None:
        if not self.guard_repairs:
            super()._update_request_as_session(session, update)
            return
        kept = sessions.kept_tokens(session)
        with sessions.tokens_kept(session):
            super()._update_request_as_session(session, update)
        # The runner is told of a turn's tokens when its session is sent as new. One that was
        # preempted in an earlier turn and loads, because it was reclaimed, is sent as resumed.
        session.num_preemptions = 0
        tier.forget_blocks(self, session, kept)

    # Transfers.
    def _set_kv_fetch_stage(self, request: Any, stage: str | None) -> None:
        super()._set_kv_fetch_stage(request, stage)
        if stage == _LOAD_STARTED:
            self._guard_watch("loading", request)

    def _update_waiting_for_remote_kv(self, request: Any) -> None:
        failed = request.request_id in self.failed_recving_kv_req_ids
        super()._update_waiting_for_remote_kv(request)
        self._guard_watch("loaded", request, failed)
        if self.guard_repairs and failed and not request.num_computed_tokens:
            # It holds nothing any more; what it reserved would count against itself.
            self._inflight_prefills.discard(request)

    def _update_from_kv_xfer_finished(self, kv_connector_output: Any) -> None:
        if self.guard_repairs:
            self._guard_signals.filter(self, kv_connector_output)
        super()._update_from_kv_xfer_finished(kv_connector_output)

    def _guard_no_load_while_flushed(self, request: Any, *args: Any) -> Any:
        """A preempted request's stores are flushed in this step, and no load may be beside them."""
        if request.request_id in self.reset_preempted_req_ids:
            return None, False
        return self._guard_matched(request, *args)

    def shutdown(self) -> None:
        """The engine ends: the trace is complete."""
        super().shutdown()
        self._guard_watch("close_trace")

    # Resets and pauses.
    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """False: refused, and nothing has changed."""
        declared = self._guard_watch("refuses_reset", reset_running_requests)
        if not self.guard_repairs:
            return self._guard_compare_reset(declared, reset_running_requests, reset_connector)
        pausing = _called_by_pause()
        if pausing and self._pause_state == PauseState.UNPAUSED:
            self.guard_report.repair("a sleep that was resumed meanwhile refused")
            return False
        refused = bool(
            resets.refusing(self)
            if reset_running_requests
            else self.kv_cache_manager.block_pool.get_num_free_blocks()
            != self.kv_cache_manager.block_pool.num_gpu_blocks - 1
        )
        if refused:
            self.guard_report.repair("a reset refused, nothing changed")
            if pausing:
                self.guard_report.repair("a pause whose reset was refused rolled back")
                self.set_pause_state(self._guard_paused_from)
            return False
        if not reset_running_requests:
            return bool(super().reset_prefix_cache(False, reset_connector))
        resets.promote_landed(self)
        for request in reversed(resets.resident_waiting(self)):
            self._guard_reclaim(request, "blocks reclaimed for a forced reset")
        with resets.steps_keep_their_blocks(self):
            return bool(super().reset_prefix_cache(True, reset_connector))

    def _guard_compare_reset(self, declared: Any, running: bool, connector: bool) -> bool:
        """vLLM's own reset, compared with what the declaration says of it."""
        what = "forced reset" if running else "reset"
        says = "refused" if declared else "done"
        try:
            done = bool(super().reset_prefix_cache(running, connector))
        except Exception as error:
            self.guard_report.departure(what, says, f"raises {type(error).__name__}: {error}")
            raise
        if declared is not None and done == declared and not connector:
            self.guard_report.departure(what, says, "done" if done else "refused")
        return done

    def reset_connector_cache(self) -> bool:
        """The connector's tier is cleared."""
        if not self.guard_repairs:
            return bool(super().reset_connector_cache())
        with tier.jobs_to_flush_set_aside(self):
            return bool(super().reset_connector_cache())

    def set_pause_state(self, pause_state: Any) -> None:
        """Pause or resume."""
        self._guard_paused_from = self._pause_state
        super().set_pause_state(pause_state)

    def get_num_unfinished_requests(self) -> int:
        """vLLM subtracts every parked session from those that hold blocks; some hold none."""
        count = int(super().get_num_unfinished_requests())
        if self.guard_repairs and self._pause_state == PauseState.PAUSED_NEW:
            count += sessions.parked_without_blocks(self)
        return count


def _called_by_pause() -> bool:
    """Whether the reset under way is part of a pause: the scheduler is not told."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(4):
        if frame is None:
            break
        if frame.f_code.co_name == "_finish_pause":
            return True
        frame = frame.f_back
    return False


class GuardedScheduler(Guard):
    """vLLM's scheduler with the guard; with asynchronous scheduling it is the asynchronous one."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """The class that fits the configuration, so that one name serves both."""
        config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
        asynchronous = config.scheduler_config.async_scheduling
        chosen = GuardedAsyncScheduler if asynchronous and cls is GuardedScheduler else cls
        return object.__new__(chosen)


class GuardedAsyncScheduler(GuardedScheduler, AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler with the guard."""
