"""`kvproof table`: the declaration as a table, for people or as JSON, and as the manual's page."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from ...statemachine.answers import GO, IGNORE, NOT_NOW, REJECT
from .. import page as lifecycle_page
from ..listing import (
    NumberedRow,
    event_named,
    forced_reset,
    refusals_before,
    reset_table,
    rows,
    state_named,
)
from . import exits
from .paths import writable

PREFIX = "WAITING_FOR_"
COLOURS = {GO: "green", NOT_NOW: "yellow", IGNORE: "dim", REJECT: "red"}


def command(
    machine: Annotated[
        Literal["request", "transfer", "engine"], typer.Option(help="Which machine.")
    ] = "request",
    state: Annotated[
        list[str] | None, typer.Option(help="Only what can decide in this state; repeatable.")
    ] = None,
    event: Annotated[list[str] | None, typer.Option(help="Only this event; repeatable.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also the rows that refuse; so with --state or --event.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every row that is asked for as JSON.")
    ] = False,
    page: Annotated[
        Path | None,
        typer.Option(
            callback=writable, help="Write the whole declaration to this file as Markdown."
        ),
    ] = None,
) -> int:
    """Print a machine's rows: what goes, from where, under which condition, and what it does."""
    if page is not None:
        page.write_text(lifecycle_page.page(), encoding="utf-8")
        return exits.OK
    try:
        states = [state_named(machine, name) for name in state or ()]
        events = [event_named(machine, name) for name in event or ()]
    except KeyError as unknown:
        raise typer.BadParameter(unknown.args[0]) from unknown
    chosen = rows(machine, states, events)
    every = every or bool(states or events)
    if not (every or as_json):
        chosen = [listed for listed in chosen if listed.row.answer == GO]
    if as_json:
        typer.echo(json.dumps([listed.as_dict() for listed in chosen], indent=2))
        return exits.OK
    console = Console()
    console.print(_rows(machine, chosen, every))
    if machine == "request" and not states and not events:
        console.print(_reset())
        console.print(_forced())
    if not every:
        console.print(f"What is refused, and why: kvproof table --machine {machine} --all")
    return exits.OK


def _rows(machine: str, chosen: list[NumberedRow], every: bool) -> Table:
    table = _table(f"The {machine} machine{f' (… is {PREFIX})' if machine == 'request' else ''}")
    refusals = [] if every else ["refusals"]
    for heading in ("event", "from", "if", *refusals, "to", "why"):
        table.add_column(heading, no_wrap=heading == "event", overflow="fold")
    last = ""
    for listed in chosen:
        event, source, guards, answer, dest, _, why = lifecycle_page.cells(listed)
        refused = listed.row.answer != GO
        end = f"[{COLOURS[listed.row.answer]}]{answer}[/]" if refused else dest or "stays"
        line = [cell.replace(PREFIX, "…") for cell in (source, guards, end, why)]
        if not every:
            line.insert(2, str(refusals_before(listed) or ""))
        table.add_row("" if event == last else event, *line)
        last = event
    return table


def _reset() -> Table:
    table = _table("A reset: if anybody refuses, nothing changes")
    head, *body = reset_table()
    for heading in head:
        table.add_column(heading)
    for cells in body:
        table.add_row(*cells)
    return table


def _forced() -> Table:
    table = _table("A forced reset, run on one holder of each kind")
    for heading in ("holder", "is sent", "state then", "hold", "so"):
        table.add_column(heading, overflow="fold")
    for f in forced_reset():
        after = f.after.replace(PREFIX, "…")
        table.add_row(f.holder, f.event or "nothing", after, f.commands, f.said)
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
