"""The observing and the strict guard as targets of the fuzzer; what each one reported is kept."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from kvproof.specs.fuzz.target import Settings
from kvproof.specs.fuzz.targets.vllm import VllmAsyncScheduler, VllmScheduler
from kvproof.specs.fuzz.targets.vllm_guarded import GuardedVllmScheduler

REPORTS: list[Any] = []


class Observed(VllmScheduler):
    """The guard only observes."""

    guard = "observe"

    def __init__(self, settings: Settings) -> None:
        os.environ["KVPROOF_GUARD"] = self.guard
        super().__init__(settings)
        REPORTS.append(self.scheduler.guard_report)

    @classmethod
    def scheduler_class(cls) -> type[Any]:
        return GuardedVllmScheduler.scheduler_class()


class Unrepaired(GuardedVllmScheduler):
    """The target of the repairing guard, over one that repairs nothing."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.scheduler.guard_repairs = False


class ObservedAsync(Observed, VllmAsyncScheduler):
    """The same with two steps in flight."""


class Strict(Observed):
    """The guard raises at a departure."""

    guard = "strict"


class StrictAsync(ObservedAsync):
    """The same with two steps in flight."""

    guard = "strict"


def departures() -> Counter[str]:
    """What all guards since the last call reported, by its name."""
    found: Counter[str] = Counter()
    for report in REPORTS:
        for (kind, what), count in report.counts.items():
            if kind == "departure":
                found[what] += count
    REPORTS.clear()
    return found
