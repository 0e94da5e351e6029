"""`kvproof demo`: the proofs, then the reset scenario on a served model."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from . import exits
from .lazy import require


def command(
    model: Annotated[
        str, typer.Argument(help="A known name, a directory or a GGUF file.")
    ] = "smollm2-135m",
    url: Annotated[
        str | None, typer.Option(help="Use a server that is already running, with --dev.")
    ] = None,
    load_delay: Annotated[
        float, typer.Option(min=0.1, help="Seconds by which loads are delayed.")
    ] = 1.0,
    proofs: Annotated[bool, typer.Option(help="Prove the declaration first.")] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout, nothing else.")
    ] = False,
) -> int:
    """Prove the lifecycle, then reset a served model under load; exit 1 if anything fails."""
    from rich.console import Console

    from ..demo.client import DemoError
    from ..demo.run import Options, run_demo

    if proofs:
        require("z3")
    console = Console(stderr=as_json)
    try:
        report = run_demo(console, Options(model, url, load_delay, proofs, as_json))
    except DemoError as error:
        typer.echo(f"kvproof demo: {error}", err=True)
        return exits.FAILED
    if as_json:
        typer.echo(json.dumps(report.as_dict()))
    return exits.OK if report.holds else exits.FAILED
