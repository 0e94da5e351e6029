"""`kvproof explore --target ENGINE`: every interleaving of a few calls to a real engine."""

import json
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ..explore.small_scope import SmallScopeReport, explore_target, scope_of
from ..fuzz.findings import Finding
from ..fuzz.mistakes import TargetError
from ..fuzz.pytest_writer import write
from ..fuzz.targets import UnknownTargetError, load
from . import exits

DEFAULT_DEPTH = 6


def small_scope(name: str, depth: int, out: Path | None, as_json: bool) -> int:
    """Explore an engine to a depth, print what was found, write a failure as a pytest."""
    try:
        target = load(name)
    except UnknownTargetError as error:
        raise typer.BadParameter(str(error)) from error
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=as_json,
    )
    with bar:
        task = bar.add_task("starting")

        def report(now: SmallScopeReport) -> None:
            rate = now.transitions / now.seconds if now.seconds else 0.0
            words = f"level {len(now.levels)}: {now.states:,} states, {rate:,.0f} calls/s"
            bar.update(task, description=words)

        try:
            found = explore_target(target, scope_of(target, depth), report)
        except TargetError as error:
            raise typer.BadParameter(str(error)) from error
    test = _written(found, f"kvproof explore --target {name} --depth {depth}", out)
    if as_json:
        typer.echo(json.dumps(_as_dict(found), indent=2))
    else:
        _print(found, depth, test)
    return exits.OK if found.failure is None else exits.REFUTED


def _written(found: SmallScopeReport, command: str, out: Path | None) -> Path | None:
    if found.failure is None or out is None:
        return None
    out.mkdir(parents=True, exist_ok=True)
    finding = Finding(found.failure, 1, 0, found.transitions, found.seconds)
    path = out / f"test_{finding.slug}.py"
    path.write_text(write(finding, command))
    return path


def _print(found: SmallScopeReport, depth: int, test: Path | None) -> None:
    console = Console()
    console.print(
        f"{found.states:,} states, {found.transitions:,} calls, {depth} deep, "
        f"{found.seconds:.1f} s",
        highlight=False,
    )
    failure = found.failure
    if failure is None:
        console.print("[green]every rule held after every call[/]")
        return
    console.print(f"[red]counterexample[/], {len(failure.operations)} calls:")
    for number, operation in enumerate(failure.operations, start=1):
        typer.echo(f"{number:4}  {operation}")
    typer.echo(f"      {failure.violation.rule}: {failure.violation.message}")
    if test is not None:
        typer.echo(f"written as {test}")


def _as_dict(found: SmallScopeReport) -> dict[str, object]:
    failure = found.failure
    return {
        "states": found.states,
        "calls": found.transitions,
        "levels": found.levels,
        "seconds": round(found.seconds, 3),
        "failure": None
        if failure is None
        else {
            "rule": failure.violation.rule,
            "message": failure.violation.message,
            "operations": [operation.to_json() for operation in failure.operations],
        },
    }
