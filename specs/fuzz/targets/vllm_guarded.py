"""vLLM's schedulers with kvproof's guard in repair mode, as targets.

What cannot be closed from a subclass of the scheduler is not asked for here; docs/guard.md names
it: a completion that comes late while the same request is loading again.
"""

from __future__ import annotations

import os
from typing import Any

from ..target import Promise, RejectedError, ResetAnswer, Settings
from .vllm import VllmAsyncScheduler, VllmScheduler


class GuardedVllmScheduler(VllmScheduler):
    """`kvproof fuzz --target vllm-guarded`: the synchronous scheduler."""

    #: What vLLM promises, and what the guard adds to it.
    promises = VllmScheduler.promises | {
        Promise.REFUSED_RESET_CHANGES_NOTHING,
        Promise.SESSIONS_STAY_WITHIN_LENGTH,
    }

    def __init__(self, settings: Settings) -> None:
        os.environ["KVPROOF_GUARD"] = "repair"
        super().__init__(settings)

    @classmethod
    def scheduler_class(cls) -> type[Any]:
        from ....runtime.integrations.vllm import GuardedScheduler

        return GuardedScheduler

    @classmethod
    def version(cls) -> str:
        return f"{super().version()} with kvproof's guard"

    def duplicate(self, transfer: str) -> None:
        name = self.device.request_of(transfer)
        request = self.scheduler.requests.get(name)
        loads = [t for t in self.device.transfers() if t.open and t.kind == "LOAD"]
        again = request is not None and request.status.name == "WAITING_FOR_REMOTE_KVS"
        # Aborted, it waits no more, and its load goes on.
        if not again and not any(load.request == name for load in loads):
            super().duplicate(transfer)

    def reset(self, running: bool, connector: bool) -> ResetAnswer:
        answer = super().reset(running, connector)
        mock = self.scheduler.connector if self.settings.connector == "mock" else None
        if not answer.done and (self.device.unreported() or (mock and mock.queued())):
            # To the scheduler a transfer is open from when it is asked for to when it is told.
            raise RejectedError("a transfer has not begun, or its end has not been reported")
        return answer

    def sleep(self, level: int) -> bool:
        try:
            return super().sleep(level)
        except RuntimeError as error:
            return self._refused(error)

    def _when_idle(self) -> None:
        try:
            super()._when_idle()
        except RuntimeError as error:
            self._refused(error)

    def _refused(self, error: RuntimeError) -> bool:
        """The engine core's own words for a reset that is refused during a pause or sleep."""
        if "Failed to reset the KV connector cache" not in str(error):
            raise error
        return False


class GuardedVllmAsyncScheduler(GuardedVllmScheduler, VllmAsyncScheduler):
    """`kvproof fuzz --target vllm-guarded-async`: two steps in flight."""
