"""`kvproof bench`: what the scheduler costs, and what the model reaches, beside vLLM."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from . import exits
from .bench_model import command as model_command

command = typer.Typer(add_completion=False, no_args_is_help=True, help="Benchmarks.")
command.command("model")(model_command)


@command.command("scheduler")
def scheduler(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, the sides in turns.")] = 5,
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
    console = Console(stderr=as_json)
    found: list[dict[str, Any]] = []
    try:
        with console.status("measuring") as status:
            for figure in compare(SCENARIOS, rounds, vllm):
                found.append(figure.as_dict())
                status.update(f"{len(found)} of {len(SCENARIOS)} measured")
    except SideError as error:
        typer.echo(f"kvproof bench scheduler: {error}", err=True)
        return exits.FAILED
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return exits.OK
    table = Table("what", "unit", "kvproof", "vllm", "ratio")
    for one in found:
        medians = {name: statistics.median(each) for name, each in one["rounds"].items()}
        low, high = one.get("ratio_spread", (0, 0))
        table.add_row(
            one["scenario"],
            one["unit"],
            f"{medians['kvproof']:.2f}",
            f"{medians['vllm']:.2f}" if "vllm" in medians else "",
            f"{one['ratio']:.3f} ({low:.3f}–{high:.3f})" if "ratio" in one else "",
        )
    console.print(table)
    return exits.OK
