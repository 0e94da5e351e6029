"""`kvproof fuzz`: look for faults of an engine, write each as a stand-alone pytest."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ..fuzz import report as reports
from ..fuzz.campaign import Budget, Report, search
from ..fuzz.mistakes import TargetError
from ..fuzz.rules import RULES
from ..fuzz.targets import KNOWN, UnknownTargetError, load
from . import exits
from .lazy import missing_extra
from .paths import writable, writable_folder


def command(
    target: Annotated[
        str, typer.Option(help=f"The engine: {', '.join(KNOWN)}, or module:Class.")
    ] = "runtime",
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to search.")] = 60.0,
    operations: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many operations instead.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same runs.")] = 0,
    connector: Annotated[
        str | None, typer.Option(help="Only with this connector of the target.")
    ] = None,
    faults: Annotated[
        bool, typer.Option(help="Also lose and repeat transfers' signals, in some of the runs.")
    ] = True,
    out: Annotated[
        Path,
        typer.Option(callback=writable_folder, help="Where the pytests of the findings go."),
    ] = Path("kvproof-findings"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    junit: Annotated[
        Path | None, typer.Option(callback=writable, help="Write the report as a JUnit file.")
    ] = None,
    rules: Annotated[bool, typer.Option("--rules", help="List the rules, and stop.")] = False,
) -> int:
    """Look for faults of an engine; write each as a pytest that imports that engine only."""
    console = Console()
    if rules:
        for name, words in RULES.items():
            console.print(f"[bold]{name}[/]: {words}")
        return exits.OK
    try:
        kind = load(target)
        if connector is not None and connector not in kind.connectors:
            raise UnknownTargetError(
                f"{target} has no connector {connector}: use one of {', '.join(kind.connectors)}"
            )
    except UnknownTargetError as error:
        raise typer.BadParameter(str(error)) from error
    except ModuleNotFoundError as error:
        if missing_extra(error, None) is not None:
            raise
        raise typer.BadParameter(f"{target} needs {error.name}, which is not there") from error
    if caveat := kind.caveat():
        Console(stderr=True).print(f"[yellow]{caveat}[/]", soft_wrap=True)
    budget = Budget(seconds=None if operations else seconds, operations=operations)
    how = f"kvproof fuzz --target {target} --seed {seed}"
    how += f" --connector {connector}" if connector else ""
    how += "" if faults else " --no-faults"
    so_far, mistake = Report(kind, seed), None
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=as_json,
    ) as bar:
        task = bar.add_task(f"fuzzing {target}", total=1.0, done="")

        def progress(report: Report, used: float) -> None:
            nonlocal so_far
            so_far = report
            done = f"{report.operations} operations, {len(report.findings)} findings"
            bar.update(task, completed=used, done=done)

        try:
            so_far = search(kind, budget, seed, faults, connector, progress)
        except TargetError as error:
            mistake = error
    report = so_far
    paths = reports.write_tests(report, out, how)
    if mistake is not None:
        typer.echo(f"kvproof fuzz: the target is wrong, not the engine: {mistake}", err=True)
        if paths:
            typer.echo(f"the pytests of what was found before are in {out}", err=True)
        return exits.USAGE
    if junit is not None:
        reports.write_junit(report, junit)
    if as_json:
        typer.echo(json.dumps(reports.as_dict(report, paths), indent=2))
    else:
        _print(console, report, paths, out, how)
    return exits.FAILED if report.findings else exits.OK


def _print(console: Console, report: Report, paths: dict[str, Path], out: Path, how: str) -> None:
    if report.findings:
        console.print(reports.table(report))
        legal = sum(finding.legal for finding in report.findings)
        console.print(
            f"[red]{len(report.findings)} findings[/], {legal} of them in a legal environment; "
            f"{len(paths)} pytests in {out}"
        )
        console.print(f"the same again: {how} --operations {report.operations}", soft_wrap=True)
    else:
        console.print("[green]no rule was broken[/]")
    console.print(
        f"{report.operations} operations in {report.runs} runs, {report.seconds:.1f} s, "
        f"seed {report.seed}"
    )
