"""`kvproof diagram`: a machine as Mermaid, DOT or SVG."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..diagrams import DRAW, edges
from . import exits
from .paths import writable


def command(
    machine: Annotated[
        Literal["request", "transfer", "engine"], typer.Option(help="Which machine.")
    ] = "request",
    form: Annotated[
        Literal["mermaid", "dot", "svg"],
        typer.Option("--format", help="Mermaid and DOT are graphs; SVG a chart of every row."),
    ] = "mermaid",
    out: Annotated[
        Path | None, typer.Option(callback=writable, help="Write to this file, not to stdout.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the graph's arrows as JSON instead.")
    ] = False,
) -> int:
    """Draw a machine. Nothing but the base install is needed."""
    if as_json:
        arrows = [
            {"from": e.source, "to": e.dest, "events": list(e.events)} for e in edges(machine)
        ]
        drawn = json.dumps(arrows, indent=2) + "\n"
    else:
        drawn = DRAW[form](machine)
    if out is None:
        typer.echo(drawn, nl=False)
    else:
        out.write_text(drawn, encoding="utf-8")
    return exits.OK
