"""`kvproof conform`: replay traces against the declaration, say where the first one departs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from ..conform import Verdict, conform
from ..conform.replay import read_lines
from . import exits
from .paths import writable


def command(
    files: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, readable=True)],
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    junit: Annotated[
        Path | None, typer.Option(callback=writable, help="Write the verdict as a JUnit file.")
    ] = None,
    rows: Annotated[
        bool, typer.Option("--rows", help="List the rows that the traces never used.")
    ] = False,
) -> int:
    """Replay traces (JSON lines) against the declaration."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=as_json) as progress:
        verdict = conform(_with_progress(files, progress))
    nothing = verdict.matched == 0
    if as_json:
        typer.echo(json.dumps(_as_dict(verdict), indent=2))
    else:
        _print(verdict, rows)
    if junit is not None:
        _write_junit(verdict, junit)
    if verdict.departure is not None and not _no_trace(verdict):
        return exits.REFUTED
    return exits.USAGE if nothing else exits.OK


def _with_progress(files: list[Path], progress: Progress) -> Iterator[tuple[Path, int, str]]:
    task = progress.add_task("replaying", total=sum(path.stat().st_size for path in files))
    for path, number, text in read_lines(files):
        progress.advance(task, len(text))
        yield path, number, text


def _no_trace(verdict: Verdict) -> bool:
    """The very first line is no transition: whatever the file is, it is not a trace."""
    found = verdict.departure
    return found is not None and verdict.matched == 0 and found.event == ""


def _as_dict(verdict: Verdict) -> dict[str, object]:
    return {
        "lines": verdict.lines,
        "matched": verdict.matched,
        "subjects": verdict.subjects,
        "cut_off": list(verdict.cut_off),
        "departure": verdict.departure.as_dict() if verdict.departure else None,
        "unused_rows": [
            {"machine": machine, "row": number, "event": row.trigger.name.lower(), "why": row.why}
            for machine, number, row in verdict.unused_rows()
        ],
    }


def _print(verdict: Verdict, rows: bool) -> None:
    # What stands in a trace is no markup (":100:" is an emoji of rich), and one message is a line.
    console = Console(emoji=False, soft_wrap=True, highlight=False)
    found = verdict.departure
    if _no_trace(verdict):
        assert found is not None
        console.print(
            "[red]nothing matched[/]:",
            Text(f"{found.file} is no trace: line {found.line}: {found.what}"),
        )
    elif found is not None:
        console.print("[red]departs[/] at", Text(f"{found.file}:{found.line}: {found.what}"))
        if found.event:
            console.print(Text(f"  subject {found.subject!r}, event {found.event}"))
            console.print(Text(f"  legal there: {', '.join(found.legal) or 'nothing'}"))
        if found.conjunct:
            console.print(Text(f"  what decided: {found.conjunct}"))
    elif verdict.matched == 0:
        console.print("[red]nothing matched[/]: the files hold no transition")
    else:
        console.print(
            f"[green]conforms[/]: {verdict.matched} transitions of {verdict.subjects} subjects"
        )
    for place in verdict.cut_off:
        console.print(Text(f"passed over: {place}, half a line (was its writer killed?)"))
    unused = verdict.unused_rows()
    total = len(unused) + sum(len(used) for used in verdict.used_rows.values())
    console.print(f"{total - len(unused)} of {total} rows of the tables were used")
    if rows:
        table = Table("machine", "row", "event", "why", title="rows never used")
        for machine, number, row in unused:
            table.add_row(machine, str(number), row.trigger.name.lower(), row.why)
        console.print(table)


def _write_junit(verdict: Verdict, path: Path) -> None:
    found = verdict.departure
    failed = not verdict.conforms
    suite = ElementTree.Element(
        "testsuite", name="kvproof conform", tests="1", failures="1" if failed else "0"
    )
    case = ElementTree.SubElement(suite, "testcase", name="trace conforms")
    if failed:
        words = found.what if found else "nothing matched"
        place = f"{found.file}:{found.line}: " if found else ""
        ElementTree.SubElement(case, "failure", message=f"{place}{words}")
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
