"""`kvproof check --mutants`: who notices when the declaration is broken, and what nobody does."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from ..check.declaration import Declaration, standard
from ..check.mutants import mutants
from ..check.score import EQUIVALENT, SURVIVES, Fate, score
from ..check.score import sample as sample_of


@dataclass(frozen=True)
class Sampling:
    """Which mutants: so many of them, all if None, and how many processes look at them."""

    count: int | None
    seed: int
    jobs: int


def mutation_score(asked: Sampling, *, quiet: bool) -> dict[str, Any]:
    """The score of all mutants, or of a sample, as a report that can be printed or written."""
    every = mutants(standard().sources)
    chosen = every if asked.count is None else sample_of(every, asked.count, asked.seed)
    fates: list[Fate] = []
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True,
                  disable=quiet) as progress:  # fmt: skip
        task = progress.add_task("mutants", total=len(chosen))
        for fate in score(chosen, witnesses=(_explored,), jobs=asked.jobs):
            fates.append(fate)
            progress.update(task, advance=1, description=fate.mutant.words[:60])
    return _as_dict(fates, len(every))


def _explored(declaration: Declaration) -> tuple[str, str] | None:
    """What no obligation refutes is explored: a battery of small instances, exhaustively."""
    try:
        from ..explore.battery import first_counterexample
    except ImportError:  # the extra is not installed: then it survives
        return None
    found = first_counterexample(declaration)
    return None if found is None else ("exploration", f"{found[1].name} ({found[0]})")


def _as_dict(fates: Sequence[Fate], every: int) -> dict[str, Any]:
    killed = Counter(fate.by for fate in fates if fate.by not in (EQUIVALENT, SURVIVES))
    different = sum(fate.by != EQUIVALENT for fate in fates)
    return {
        "looked_at": len(fates),
        "of": every,
        "killed": sum(killed.values()),
        "equivalent": len(fates) - different,
        "score": 100.0 * sum(killed.values()) / different if different else 100.0,
        "by": dict(killed.most_common()),
        "operators": dict(Counter(fate.mutant.operator for fate in fates)),
        "survivors": [_named(fate) for fate in fates if fate.by == SURVIVES],
        "fates": [_named(fate) for fate in fates if fate.by != SURVIVES],
    }


def _named(fate: Fate) -> dict[str, Any]:
    return {
        "operator": fate.mutant.operator,
        "words": fate.mutant.words,
        "change": str(fate.change or ""),
        "by": fate.by,
        "broken": fate.broken,
    }


def print_score(console: Console, report: dict[str, Any]) -> None:
    """One line for each who killed some, then the survivors with their changes."""
    console.print(
        f"\n{report['looked_at']} of {report['of']} mutants: {report['killed']} killed, "
        f"{report['equivalent']} equivalent (proved), {len(report['survivors'])} survive: "
        f"{report['score']:.1f} % of those that differ"
    )
    for name, count in report["by"].items():
        console.print(f"  {count:5} by {name}")
    for each in report["survivors"]:
        console.print(Text(f"\n{each['operator']}: {each['words']}", style="bold red"))
        console.print(Text(each["change"]))
