"""The demo as a whole: proofs, model, server, scenario, the server's trace, verdict."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from ..conform import Verdict, conform
from ..conform.replay import read_lines
from . import scenario
from .client import Api
from .fetch import fetched
from .proofs import ProofReport, prove
from .rows import Row
from .server import served
from .view import View


@dataclass(frozen=True, slots=True)
class Options:
    """What `kvproof demo` was asked for. `load_delay` in seconds."""

    model: str
    url: str | None
    load_delay: float
    proofs: bool
    as_json: bool = False


@dataclass(slots=True)
class Report:
    """What came of it."""

    proofs: ProofReport | None = None
    rows: list[tuple[str, Row]] = field(default_factory=list)
    #: Of the trace that the server wrote; None if the demo did not start the server.
    trace: Verdict | None = None

    @property
    def holds(self) -> bool:
        """Whether everything that was run holds."""
        trials = sum(len(part.trials) for part in scenario.PARTS)
        complete = len(self.rows) == trials
        proved = self.proofs is None or self.proofs.holds
        conforms = self.trace is None or self.trace.conforms
        return proved and complete and conforms and all(row.holds for _, row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "holds": self.holds,
            "proofs": None if self.proofs is None else self.proofs.as_dict(),
            "trace": None if self.trace is None else _trace_as_dict(self.trace),
            "trials": [row.as_dict() | {"part": part} for part, row in self.rows],
        }


def run_demo(console: Console, options: Options) -> Report:
    """Run it all, shown on `console`. Raises DemoError when it cannot go on."""
    report = Report()
    if options.proofs:
        report.proofs = prove(console, options.as_json)
    console.rule("The reset scenario, over HTTP", align="left")
    folder = Path(tempfile.mkdtemp(prefix="kvproof-demo-"))
    try:
        trace = folder / "trace.jsonl"
        _run_scenario(console, options, report, trace)
        if options.url is None:
            report.trace = conform(read_lines([trace]))
    finally:
        # One that departs is kept, because somebody will want to look at it.
        if report.trace is None or report.trace.departure is None:
            shutil.rmtree(folder)
    _verdict(console, report)
    return report


def _run_scenario(console: Console, options: Options, report: Report, trace: Path) -> None:
    with _server(console, options, trace) as api:
        console.print(_caption(options), soft_wrap=False)
        view = View(console)
        with view.shown():
            view.step("tokenising the prompts")
            bench = scenario.prepare(api)
            view.watch(bench)
            for done in scenario.warm_up(bench):
                view.step(f"undisturbed run of each prompt: {done} of {scenario.PROMPTS}")
            view.step("")
            for part, row in scenario.run(bench):
                report.rows.append((part.title, row))
                view.add(part.title, row)
            bench.streams, bench.doing = [], ""


@contextlib.contextmanager
def _server(console: Console, options: Options, trace: Path) -> Iterator[Api]:
    if options.url is not None:
        yield Api(options.url)
        return
    fetched(console, options.model)
    command = scenario.server_options(options.load_delay)
    console.print(f"kvproof serve {options.model} {' '.join(command)}", style="dim", soft_wrap=True)
    with served(options.model, [*command, "--trace", str(trace)]) as api:
        yield api


def _caption(options: Options) -> str:
    blocks, size = scenario.DEVICE_BLOCKS, scenario.BLOCK_SIZE
    return (
        f"{options.model}, float32, {blocks} device blocks of {size} tokens, "
        f"{scenario.HOST_TIER_GB} GB host tier that the resets leave alone. The prompts' blocks "
        f"are not on the device, so they are loaded back; a TEST CONNECTOR DELAYS each load by "
        f"{options.load_delay:g} s (the copy itself is real), so that the resets meet it.\n"
        "refused by: who a refusal names, and how often it was asked; a LOAD goes with the "
        "request that waits for it. true when: tokens that the two streams still owed. "
        "same: streams with the token ids of an undisturbed run. MB in: loaded from the host. "
        "after: /health, and a generation compared."
    )


def _verdict(console: Console, report: Report) -> None:
    console.print()
    failed = [row.name for _, row in report.rows if not row.holds]
    if failed:
        console.print(f"These do not hold: {', '.join(failed)}.", style="bold red")
    if report.proofs is not None and not report.proofs.holds:
        console.print("The proofs do not hold; see their table.", style="bold red")
    if report.trace is not None:
        _trace_verdict(console, report.trace)
    if report.holds:
        checks = sum(len(row.passed) for _, row in report.rows)
        console.print(
            f"Every row holds: {len(report.rows)} trials, {checks} checks.", style="bold green"
        )


def _trace_as_dict(trace: Verdict) -> dict[str, Any]:
    departure = None if trace.departure is None else trace.departure.as_dict()
    return {"matched": trace.matched, "subjects": trace.subjects, "departure": departure}


def _trace_verdict(console: Console, trace: Verdict) -> None:
    if trace.conforms:
        console.print(
            f"The server's trace conforms to the declaration: {trace.matched} transitions of "
            f"{trace.subjects} subjects.",
            style="bold green",
        )
    elif trace.departure is None:
        console.print("The server wrote no trace.", style="bold red")
    else:
        found = trace.departure
        console.print(
            f"The server's trace departs from the declaration at {found.file}:{found.line}: "
            f"{found.what}",
            style="bold red",
            markup=False,
            emoji=False,  # ":100:" is one
            soft_wrap=True,
        )
