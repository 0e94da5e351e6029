"""`kvproof demo`: the proofs, then the reset scenario on a served model."""

from __future__ import annotations

import json as json_lines

import typer

from . import exits


def command(
    model: str = typer.Argument("smollm2-135m", help="A known name, a directory or a GGUF file."),
    url: str | None = typer.Option(None, help="Use a server that runs already, with --dev."),
    load_delay: float = typer.Option(1.0, min=0.1, help="Seconds by which loads are delayed."),
    proofs: bool = typer.Option(True, help="Prove the declaration first."),
    json: bool = typer.Option(False, "--json", help="One JSON object on stdout, nothing else."),
) -> int:
    """Prove the lifecycle, then reset a served model under load; exit 1 if any row fails."""
    from rich.console import Console

    from ..demo.client import DemoError
    from ..demo.run import Options, run_demo

    console = Console(stderr=json)
    try:
        report = run_demo(console, Options(model, url, load_delay, proofs, json))
    except DemoError as error:
        typer.echo(f"kvproof demo: {error}", err=True)
        return exits.FAILED
    if json:
        typer.echo(json_lines.dumps(report.as_dict()))
    return exits.OK if report.holds else exits.FAILED
