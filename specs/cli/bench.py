"""`kvproof bench`: the scheduler's cost and the model's throughput, beside vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from . import exits
from .bench_model import command as model_command
from .lazy import require

if TYPE_CHECKING:
    from ..bench.compare import Figure

command = typer.Typer(add_completion=False, no_args_is_help=True, help="Benchmarks.")
command.command("model")(model_command)


@command.command("scheduler")
def scheduler(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the sides take turns.")] = 5,
    vllm: Annotated[
        Path | None, typer.Option(help="Python of an environment with vLLM and kvproof.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> int:
    """Measure steps, admissions and resets on a device that takes no time."""
    from ..bench.compare import SideError, compare
    from ..bench.scenarios import SCENARIOS

    if vllm is not None and not vllm.exists():
        raise typer.BadParameter(f"{vllm} does not exist", param_hint="--vllm")
    require("numpy")
    console = Console(stderr=as_json)
    found: list[Figure] = []
    try:
        with console.status("measuring") as status:
            for figure in compare(SCENARIOS, rounds, vllm):
                found.append(figure)
                status.update(f"{len(found)} of {len(SCENARIOS)} measured")
    except SideError as error:
        typer.echo(f"kvproof bench scheduler: {error}", err=True)
        return exits.FAILED
    if as_json:
        typer.echo(json.dumps([figure.as_dict() for figure in found], indent=2))
    else:
        _print(console, found)
    return exits.OK


def _print(console: Console, figures: list[Figure]) -> None:
    table = Table("what", "unit", title="median (lowest–highest) of the rounds")
    sides = list(figures[0].rounds)
    for side in sides:
        table.add_column(side, justify="right")
    if len(sides) > 1:
        table.add_column(" / ".join(sides), justify="right")
    for figure in figures:
        cells = [_cell(figure.spread(side)) for side in sides]
        if ratio := figure.ratio():
            cells.append(_cell(ratio))
        table.add_row(figure.scenario.title, figure.scenario.unit, *cells)
    console.print(table)


def _cell(spread: tuple[float, float, float]) -> str:
    """Three significant digits of each."""
    median, lowest, highest = (
        f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" for value in spread
    )
    return f"{median} ({lowest}–{highest})"
