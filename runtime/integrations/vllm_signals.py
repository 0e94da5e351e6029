"""Completions that reach vLLM late, twice or for nobody: absorbed, where vLLM asserts.

vLLM's completions carry a request's id and no number. One that comes late while the same request
is loading again cannot be told from the true one, from here or from anywhere in the scheduler.
"""

from __future__ import annotations

from typing import Any

from .vllm_report import Report
from .vllm_reset import LOADING
from .vllm_tier import offloading


class Signals:
    """Which completions a scheduler waits for, and the filter that lets only those through."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._receiving: set[str] = set()  # finished, and a load still writes its blocks
        self._sending: set[str] = set()  # finished, and the connector still reads its blocks

    def delayed(self, request: Any, loading: bool, sending: bool) -> None:
        """A finished request's blocks stay until a transfer ends."""
        if loading:
            self._receiving.add(request.request_id)
        if sending:
            self._sending.add(request.request_id)

    def filter(self, scheduler: Any, output: Any) -> None:
        """Leave in a connector's output only what somebody waits for; the rest is counted."""
        if output.finished_recving:
            output.finished_recving = {
                r for r in output.finished_recving if self._received(scheduler, r)
            }
        if output.finished_sending:
            output.finished_sending = {r for r in output.finished_sending if self._sent(r)}
        connector = offloading(scheduler)
        completed = getattr(output.kv_connector_worker_meta, "completed_jobs", None)
        if connector and completed:
            for job, count in list(completed.items()):
                if job < connector._stale_job_threshold:
                    continue  # vLLM skips those itself
                status = connector._jobs.get(job)
                if status is None:
                    del completed[job]
                    self._report.repair("a completion of an unknown job absorbed", str(job))
                elif count > status.pending_count:
                    completed[job] = status.pending_count
                    self._report.repair("a duplicate completion of a job absorbed", status.req_id)

    def _received(self, scheduler: Any, request_id: str) -> bool:
        request = scheduler.requests.get(request_id)
        if request is not None and request.status == LOADING:
            return True
        if request_id not in self._receiving:
            self._report.repair("a late completion of a load absorbed", request_id)
            return False
        self._receiving.discard(request_id)
        # vLLM frees at the first of two ends; the other transfer still touches the blocks.
        return request_id not in self._sending

    def _sent(self, request_id: str) -> bool:
        if request_id not in self._sending:
            self._report.repair("a late completion of a send absorbed", request_id)
            return False
        self._sending.discard(request_id)
        return request_id not in self._receiving
