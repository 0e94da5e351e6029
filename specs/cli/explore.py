"""`kvproof explore`: every state of a finite instance, and the shortest counterexample."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..explore import InstanceError, Report, Script, as_mermaid, as_pytest, as_text, explore
from ..explore.backend import backend_of
from ..explore.compiled import System
from ..explore.liveness import ASSUMPTIONS, Assumption, promises_of
from ..explore.search import Progress as SearchProgress
from . import exits
from . import instances as options
from .instances import DEFAULTS, instance_of
from .paths import writable_folder
from .small_scope import DEFAULT_DEPTH, small_scope


def command(
    requests: options.Requests = DEFAULTS.requests,
    blocks: options.Blocks = DEFAULTS.blocks,
    transfers: options.Transfers = DEFAULTS.transfers,
    block_size: options.BlockSize = DEFAULTS.block_size,
    length: options.Length = DEFAULTS.model_length,
    prompt: options.Prompt = DEFAULTS.prompt,
    chunk: options.Chunk = DEFAULTS.chunk,
    steps_ahead: options.StepsAhead = DEFAULTS.steps_ahead,
    with_: options.With = None,
    without: options.Without = None,
    symmetry: Annotated[
        bool, typer.Option(help="Merge states that differ in names only; checks no promise.")
    ] = False,
    liveness: Annotated[bool, typer.Option(help="Look for runs that never make progress.")] = True,
    drop: Annotated[
        str | None, typer.Option(metavar="NAME", help="Drop this assumption, to see it is needed.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu (numpy), cuda (torch) or torch-cpu.")] = "cpu",
    states: Annotated[int | None, typer.Option(help="Stop after this many states.")] = None,
    depth: Annotated[int | None, typer.Option(help="Stop after this many levels.")] = None,
    target: Annotated[
        str, typer.Option(help="declaration; or an engine as `fuzz` names it: its small scope.")
    ] = "declaration",
    agree: Annotated[
        bool, typer.Option("--agree", help="Count again by a plain Python search and by Spin.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=writable_folder, help="Write each counterexample here: text, picture, pytest."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Enumerate every state of a finite instance of the declaration, breadth first.

    With an engine as --target: every interleaving of a few calls to it, --depth calls deep.
    """
    if target != "declaration":
        return small_scope(target, depth or DEFAULT_DEPTH, out, as_json)
    instance = instance_of(
        with_=with_,
        without=without,
        requests=requests,
        blocks=blocks,
        transfers=transfers,
        block_size=block_size,
        model_length=length,
        prompt=prompt,
        chunk=chunk,
        steps_ahead=steps_ahead,
    )
    dropped = _assumption(drop)
    if symmetry and dropped:
        raise typer.BadParameter("under --symmetry no promise is asked for: leave one of them out")
    try:
        backend = backend_of(device)
        with _Progress(hidden=as_json) as progress:
            report = explore(
                instance,
                symmetry=symmetry,
                backend=backend,
                most_states=states,
                most_levels=depth,
                liveness=liveness,
                without=dropped,
                report=progress,
            )
    except InstanceError as error:
        raise typer.BadParameter(str(error)) from error
    counted = _counted_again(report) if agree else {}
    if out is not None:
        _write(report.scripts, out)
    if as_json:
        typer.echo(json.dumps(_as_dict(report, counted), indent=2))
    else:
        _print(report, counted)
    return _exit(report, counted)


def _exit(report: Report, counted: dict[str, tuple[int, int]]) -> int:
    if report.refuted:
        return exits.REFUTED
    mine = (report.found.states, report.found.transitions)
    if any(theirs != mine for theirs in counted.values()):
        return exits.DISAGREE
    return exits.OK if report.found.complete else exits.UNDECIDED


def _assumption(name: str | None) -> Sequence[Assumption]:
    if name is None:
        return ()
    found = [each for each in ASSUMPTIONS if each.name == name]
    if not found:
        known = "; ".join(each.name for each in ASSUMPTIONS)
        raise typer.BadParameter(f"no assumption is named {name!r}; known are: {known}")
    return found


def _counted_again(report: Report) -> dict[str, tuple[int, int]]:
    """States and transitions by a plain search and, where it is installed, by Spin."""
    from ..check.declaration import standard
    from ..explore.plain import plain_search
    from ..explore.spin import run_spin, spin_available

    if report.symmetry or not report.found.complete:
        raise typer.BadParameter("--agree counts complete searches without symmetry")
    system = System(report.instance, standard())
    plain = plain_search(system)
    counted = {"plain Python": (plain.states, plain.transitions)}
    if spin_available():
        spin = run_spin(system, most_states=2 * report.found.states + 1000)
        counted["Spin"] = (spin.states, spin.transitions)
    return counted


class _Progress:
    """A line on the terminal: level, states, rate."""

    def __init__(self, *, hidden: bool) -> None:
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=hidden,
        )
        self._task = self._bar.add_task("compiling the declaration")

    def __enter__(self) -> "_Progress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, now: SearchProgress) -> None:
        rate = now.states / now.seconds if now.seconds else 0.0
        words = f"level {now.level}: {now.states:,} states, {now.transitions:,} transitions"
        self._bar.update(self._task, description=f"{words}, {rate:,.0f} states/s")


def _print(report: Report, counted: dict[str, tuple[int, int]]) -> None:
    console = Console()
    found = report.found
    console.print(str(report.instance), highlight=False)
    how = "one of each orbit under symmetry, " if report.symmetry else ""
    rate = found.states / found.seconds if found.seconds else 0.0
    console.print(
        f"{found.states:,} states, {how}{found.transitions:,} transitions, "
        f"{len(found.levels)} levels, {found.seconds:.1f} s ({rate:,.0f} states/s)"
    )
    for name, (states, transitions) in counted.items():
        same = (states, transitions) == (found.states, found.transitions)
        mark = "[green]agrees[/]" if same else "[red]disagrees[/]"
        console.print(f"{mark}: {name} counts {states:,} states, {transitions:,} transitions")
    if report.verdicts:
        table = Table("promise", "owed in", "assumed", "")
        for verdict in report.verdicts:
            assumed = ", ".join(each.name for each in verdict.assumptions)
            mark = "[green]kept[/]" if verdict.kept else "[red]broken[/]"
            table.add_row(verdict.promise.name, f"{verdict.states:,}", assumed, mark)
        console.print(table)
    elif report.symmetry and any(True for _ in promises_of(report.instance)):
        console.print("[yellow]not asked under symmetry[/]: whether the promises are kept")
    for script in report.scripts:
        console.print(f"[red]counterexample[/], {len(script.steps)} steps:")
        typer.echo(as_text(script))
    if not report.refuted:
        if found.complete:
            console.print("[green]every reachable state was visited; every check holds[/]")
        else:
            console.print("[yellow]stopped at a limit[/]: what was visited holds every check")


def _write(scripts: Sequence[Script], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, script in enumerate(scripts, start=1):
        (folder / f"counterexample_{number}.txt").write_text(as_text(script))
        (folder / f"counterexample_{number}.mmd").write_text(as_mermaid(script))
        if script.again is None:
            (folder / f"test_counterexample_{number}.py").write_text(as_pytest(script))


def _as_dict(report: Report, counted: dict[str, tuple[int, int]]) -> dict[str, object]:
    found = report.found
    return {
        "instance": str(report.instance),
        "symmetry": report.symmetry,
        "states": found.states,
        "transitions": found.transitions,
        "levels": found.levels,
        "seconds": round(found.seconds, 3),
        "complete": found.complete,
        "counted_again": {name: list(counts) for name, counts in counted.items()},
        "promises": [
            {
                "name": verdict.promise.name,
                "kept": verdict.kept,
                "owed_in": verdict.states,
                "assumptions": [each.name for each in verdict.assumptions],
            }
            for verdict in report.verdicts
        ],
        "counterexamples": [
            {
                "name": script.name,
                "subject": script.subject,
                "script": script.labels,
                "again": script.again,
            }
            for script in report.scripts
        ],
    }
