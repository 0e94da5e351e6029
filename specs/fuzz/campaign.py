"""The search: run after run with fresh seeds, until time or operations are used up.

Known findings do not stop it, and are avoided: most runs leave out something that each known
finding needs, so that the others have a chance. The same seed and the same budget in operations
give the same findings.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .findings import Finding
from .generation import Generator, Plan, RandomDraw, chance, plan
from .run import Failure, explore
from .shrink import BUDGET, Shrinker
from .target import Target

#: Operations in one run.
LENGTH = 70


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop: what is None does not count."""

    seconds: float | None = 60.0
    operations: int | None = None
    findings: int | None = None
    replays: int = BUDGET  # that shrinking one finding may cost

    def used(self, seconds: float, operations: int, findings: int) -> float:
        """The part that is used up, from 0 to 1 and beyond."""
        parts = [
            spent / limit
            for spent, limit in (
                (seconds, self.seconds),
                (operations, self.operations),
                (findings, self.findings),
            )
            if limit
        ]
        return max(parts, default=0.0)


@dataclass(slots=True)
class Report:
    """What a search did and found."""

    target: type[Target]
    seed: int
    findings: list[Finding] = field(default_factory=list)
    runs: int = 0
    operations: int = 0
    seconds: float = 0.0
    by_operation: dict[str, int] = field(default_factory=dict)


def search(
    target: type[Target],
    budget: Budget,
    seed: int = 0,
    faults: bool = True,
    connector: str | None = None,
    progress: Callable[[Report, float], None] | None = None,
) -> Report:
    """Search for findings. `faults`: some runs (a quarter) inject lost and repeated signals.

    Raises ValueError when the target does not know the connector.
    """
    if connector is not None and connector not in target.connectors:
        raise ValueError(f"{target.__name__} knows the connectors {', '.join(target.connectors)}")
    report = Report(target, seed)
    known: dict[tuple[str, ...], Finding] = {}
    began = time.monotonic()
    while True:
        used = budget.used(report.seconds, report.operations, len(report.findings))
        if progress is not None:
            progress(report, min(used, 1.0))
        if used >= 1.0:
            return report
        run_seed = seed * 1_000_003 + report.runs
        report.runs += 1
        draw = RandomDraw(run_seed)
        chosen = _plan(draw, target, faults, connector, report.findings)
        generator = Generator(chosen, draw)
        done, failure = explore(target, generator, LENGTH)
        report.operations += len(done)
        for operation in done:
            report.by_operation[operation.name] = report.by_operation.get(operation.name, 0) + 1
        if failure is not None:
            _record(report, known, failure, run_seed, began, budget.replays)
        report.seconds = time.monotonic() - began


def _plan(
    draw: RandomDraw,
    target: type[Target],
    faults: bool,
    connector: str | None,
    findings: list[Finding],
) -> Plan:
    inject = faults and chance(draw, 25)
    avoid = chance(draw, 75)
    needs = [finding.needs() for finding in findings]
    for _ in range(12):
        chosen = plan(draw, target, inject, connector)
        labels = chosen.labels()
        if not avoid or not any(need and need <= labels for need in needs):
            break
    return chosen


def _record(
    report: Report,
    known: dict[tuple[str, ...], Finding],
    failure: Failure,
    seed: int,
    began: float,
    replays: int,
) -> None:
    key = failure.key()
    if key in known:
        known[key].count += 1
        return
    smallest = Shrinker(failure, replays).shrink()
    finding = Finding(smallest, 1, seed, report.operations, time.monotonic() - began)
    known[key] = finding
    report.findings.append(finding)
