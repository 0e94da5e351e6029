"""`kvproof check --mutants`: who notices when the declaration is broken, and what nobody does."""

import json
from collections import Counter
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from ..check.declaration import standard
from ..check.mutants import mutants
from ..check.score import EQUIVALENT, SURVIVES, Fate, score
from ..check.score import sample as sample_of
from . import exits


def mutation_score(sample: int | None, seed: int, *, as_json: bool) -> int:
    """Score all mutants, or a sample; exit 0 if nothing survives, else 1."""
    every = mutants(standard().sources)
    chosen = every if sample is None else sample_of(every, sample, seed)
    fates: list[Fate] = []
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True,
                  disable=as_json) as progress:  # fmt: skip
        task = progress.add_task("mutants", total=len(chosen))
        for fate in score(chosen):
            fates.append(fate)
            progress.update(task, advance=1, description=fate.mutant.words[:60])
    report = _as_dict(fates, len(every))
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _print(Console(), report)
    return exits.FAILED if report["survivors"] else exits.OK


def _as_dict(fates: list[Fate], every: int) -> dict[str, Any]:
    killed = Counter(fate.by for fate in fates if fate.by not in (EQUIVALENT, SURVIVES))
    return {
        "mutants": len(fates),
        "of": every,
        "killed": sum(killed.values()),
        "by": dict(killed.most_common()),
        "equivalent": sum(fate.by == EQUIVALENT for fate in fates),
        "operators": dict(Counter(fate.mutant.operator for fate in fates)),
        "survivors": [
            {
                "operator": fate.mutant.operator,
                "words": fate.mutant.words,
                "change": str(fate.change),
            }
            for fate in fates
            if fate.by == SURVIVES
        ],
    }


def _print(console: Console, report: dict[str, Any]) -> None:
    alive = report["mutants"] - report["equivalent"]
    share = 100.0 * report["killed"] / alive if alive else 100.0
    console.print(
        f"{report['mutants']} of {report['of']} mutants: {report['killed']} killed, "
        f"{report['equivalent']} equivalent (proved), {len(report['survivors'])} survive: "
        f"{share:.1f} % of those that differ"
    )
    for name, count in report["by"].items():
        console.print(f"  {count:5} by {name}")
    for each in report["survivors"]:
        console.print(Text(f"\n{each['operator']}: {each['words']}", style="bold red"))
        console.print(Text(each["change"]))
