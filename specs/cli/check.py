"""`kvproof check`: prove the obligations, say what is assumed and what is open."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..check.cache import Cache, user_cache
from ..check.conditions import DEFAULT_BUDGET, Verdict
from ..check.counterexample import Counterexample, counterexample, with_script
from ..check.declaration import standard
from ..check.explain import explain, explain_each
from ..check.report import as_dict, junit, print_report
from ..check.run import Finding, Report, UnknownObligationError, check, run_key
from ..check.second import second, write
from ..report import details, page, sarif
from ..symbolic import SymbolicError
from . import exits
from .mutants import Sampling, mutation_score, print_score
from .paths import writable, writable_folder

if TYPE_CHECKING:
    from ..suggest import Suggestion


#: `suggest` of the package of that name.
Suggest = Callable[[Report, Callable[[str], None]], "Suggestion | None"]


class Solver(StrEnum):
    """Which solvers are asked."""

    Z3 = "z3"
    BOTH = "both"


def command(
    ids: Annotated[
        list[str] | None, typer.Option("--id", help="Prove this obligation only (repeatable).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    junit_file: Annotated[
        Path | None,
        typer.Option("--junit", callback=writable, help="Write the report as a JUnit file."),
    ] = None,
    sarif_file: Annotated[
        Path | None,
        typer.Option("--sarif", callback=writable, help="Write what fails as SARIF 2.1.0."),
    ] = None,
    html_file: Annotated[
        Path | None,
        typer.Option("--html", callback=writable, help="Write the report as one HTML page."),
    ] = None,
    explained: Annotated[
        str | None, typer.Option("--explain", help="Print an obligation's formulas; prove nothing.")
    ] = None,
    solver: Annotated[
        Solver,
        typer.Option(
            help="Ask z3, or cvc5 as well, in a process of its own (of mutants: only z3)."
        ),
    ] = Solver.Z3,
    smt2: Annotated[
        Path | None,
        typer.Option(
            callback=writable_folder, help="Write every condition into this folder, as SMT-LIB 2."
        ),
    ] = None,
    suggests: Annotated[
        bool,
        typer.Option(
            "--suggest",
            help="Where the invariant is too weak: look for lines that it lacks, as Python.",
        ),
    ] = False,
    score_mutants: Annotated[
        bool,
        typer.Option(
            "--mutants",
            help="Prove, then break the declaration everywhere: who notices? Exit 1 if nobody.",
        ),
    ] = False,
    sample: Annotated[
        int | None, typer.Option(min=1, help="With --mutants: only this many of them.")
    ] = None,
    seed: Annotated[int, typer.Option(help="With --sample: which of them.")] = 0,
    jobs: Annotated[
        int, typer.Option(min=1, help="With --mutants: processes that look at them.")
    ] = 1,
    budget: Annotated[
        int, typer.Option(min=1, help="Z3 resource units that one condition may take.")
    ] = DEFAULT_BUDGET,
    use_cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Remember what was proved before.")
    ] = True,
) -> int:
    """Prove the lifecycle's obligations.

    Exit 0 proved, 1 a mutant survives, 2 refuted, 3 undecided, 4 vacuous, 5 solvers disagree.
    """
    if not score_mutants and (sample is not None or seed or jobs != 1):
        raise typer.BadParameter("--sample, --seed and --jobs say how to look at --mutants")
    if explained is not None and as_json:
        raise typer.BadParameter("--explain prints formulas for people, not as --json")
    console = Console()
    try:
        if explained is not None:
            for line in explain(explained):
                console.print(line, markup=False, highlight=False, soft_wrap=True)
            return exits.OK
        if score_mutants:
            if ids:
                typer.echo("kvproof check: --mutants asks every obligation, no --id", err=True)
                return exits.USAGE
            use_cache = False  # what this process proved need not be asked again of each mutant
        asked = _Asked(tuple(ids or ()), budget, solver, smt2, _suggest() if suggests else None)
        report, remembered = _report(asked, use_cache=use_cache, quiet=as_json)
        if score_mutants and _exit(report) == exits.OK:
            report["mutants"] = mutation_score(Sampling(sample, seed, jobs), quiet=as_json)
    except UnknownObligationError as error:
        typer.echo(f"kvproof check: {error}", err=True)
        return exits.USAGE
    except SymbolicError as error:
        typer.echo(
            f"kvproof check: the declaration cannot be executed symbolically: {error}", err=True
        )
        return exits.USAGE
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        print_report(console, report, remembered=remembered)
        for line in report.get("suggestions", ()):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        if "mutants" in report:
            print_score(console, report["mutants"])
    if junit_file is not None:
        junit_file.write_bytes(junit(report))
    if sarif_file is not None:
        sarif_file.write_text(json.dumps(sarif(report), indent=2) + "\n", encoding="utf-8")
    if html_file is not None:
        formulas = explain_each(each["id"] for each in report["obligations"])
        html_file.write_text(page(report, formulas), encoding="utf-8")
    return _exit(report)


@dataclass(frozen=True)
class _Asked:
    """What the command was asked for."""

    ids: tuple[str, ...]
    budget: int
    solver: Solver
    smt2: Path | None
    suggest: Suggest | None


def _suggest() -> Suggest:
    """Imported when asked for, and before anything is proved: it needs numpy."""
    from ..suggest import suggest

    return suggest


def _exit(report: dict[str, Any]) -> int:
    other = report["second_solver"] or {"disagreed": [], "unknown": []}
    if other["disagreed"]:
        return exits.DISAGREE
    if report["verdict"] == Verdict.REFUTED.value:
        return exits.REFUTED
    if report["vacuous"]:
        return exits.USAGE
    if report["verdict"] != Verdict.PROVED.value or other["unknown"]:
        return exits.UNDECIDED
    return exits.FAILED if report.get("mutants", {}).get("survivors") else exits.OK


def _report(asked: _Asked, *, use_cache: bool, quiet: bool) -> tuple[dict[str, Any], bool]:
    """The report, and whether it is one remembered of the very same sources."""
    cache = Cache(user_cache(), asked.budget) if use_cache else None
    key = run_key(standard(), (*asked.ids, asked.solver), asked.budget)
    if cache is not None and asked.smt2 is None and (known := cache.report(key)) is not None:
        return known, True
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True,
                  disable=quiet) as progress:  # fmt: skip
        task = progress.add_task("executing the declaration", total=None)

        def tell(done: int, total: int, what: str) -> None:
            progress.update(task, completed=done, total=total or None, description=what[:60])

        found = check(ids=asked.ids, budget=asked.budget, cache=cache, progress=tell)
        if asked.smt2 is not None:
            write(asked.smt2, (each.condition for each in found.decided))
        other = None
        if asked.solver is Solver.BOTH:
            tell(0, 0, "cvc5 decides every condition again")
            other = second(found.decided)
        examples = _counterexamples(found, tell)
        report = as_dict(found, examples, other) | details(found, examples)
        if asked.suggest is not None:
            report["suggestions"] = _suggestions(asked.suggest, found, examples, tell)
    if cache is not None and _exit(report) == exits.OK:
        cache.keep_report(key, report)
    return report, False


def _suggestions(
    suggest: Suggest, report: Report, examples: dict[str, list[Counterexample]], tell: Any
) -> list[str]:
    """Lines that the specification may lack; nothing if what is refuted can really happen."""
    shown = [each for found in examples.values() for each in found]
    if not shown:
        return []
    if any(each.script is not None for each in shown):
        return ["\nno line is suggested: a script reaches what is refuted, so the code is at fault"]
    found = suggest(report, lambda what: tell(0, 0, what))
    if found is None:
        return ["\nno line was found that makes what is refuted inductive"]
    return [
        f"\nthe invariant is too weak; of {found.tried} candidates that hold wherever was looked, "
        "these do (specs/check/invariants.py):",
        *found.as_python(),
    ]


def _counterexamples(report: Report, tell: Any) -> dict[str, list[Counterexample]]:
    """One counterexample for each refuted obligation, with a script if there is one."""
    found: dict[str, list[Counterexample]] = {}
    for finding in report.findings:
        if finding.verdict is Verdict.REFUTED:
            tell(0, 0, f"looking for a script that breaks {finding.obligation.id}")
            found[finding.obligation.id] = [_first(report, finding)]
    return found


def _first(report: Report, finding: Finding) -> Counterexample:
    """Of the first refuted condition that a script reaches, else of the first."""
    proofs = report.proofs
    assert proofs is not None
    refuted = [each for each in finding.failures if each.verdict is Verdict.REFUTED]
    first: Counterexample | None = None
    seen: set[tuple[str, str]] = set()
    for failure in refuted:
        transition = failure.condition.transition
        broken = failure.condition.words, transition.action if transition is not None else ""
        if broken in seen:
            continue
        seen.add(broken)
        example = with_script(proofs, failure, counterexample(proofs, failure))
        if example.script is not None:
            return example
        first = first or example
        if len(seen) == 4:
            break
    assert first is not None
    return first
