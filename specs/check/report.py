"""What `kvproof check` prints and writes: obligations, assumptions, what is open.

A report is turned into plain data first, so that a remembered run prints as a fresh one does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .conditions import Condition, Verdict
from .contracts import CONTRACTS
from .counterexample import Counterexample
from .fairness import FAIRNESS
from .run import Report
from .second import Second

#: What the proofs do not speak of.
NOT_PROVED = (
    "the order in which the engine's loops call the declaration: explored and fuzzed",
    "the array code that does in bulk what the block functions do one by one: compared with them "
    "as it runs, in check mode",
    "the model and the kernels: compared with a reference",
    "that a sum over blocks or requests follows from its differences: the one step on paper "
    "(docs/proofs.md), cross-checked by enumeration",
    "bounds in seconds: progress says that something happens, not when",
    "that hashes of different prefixes differ: assumed",
)

#: What the numbers of a line count.
_COLUMNS = (
    "conditions: start, its invariants hold at first; event, each way in which an event goes keeps "
    "them; own, the statement itself. All words and formulas: --explain ID"
)

_COLOURS = {
    Verdict.PROVED.value: "green",
    Verdict.REFUTED.value: "bold red",
    Verdict.UNKNOWN.value: "yellow",
    Verdict.RESTS.value: "yellow",
}


def as_dict(
    report: Report,
    counterexamples: Mapping[str, Sequence[Counterexample]],
    second: Second | None = None,
) -> dict[str, Any]:
    """The report as plain data; `second` is what the other solver said, if it was asked."""
    kept = _consecution_by_action(report)
    return {
        "second_solver": _second(second),
        "verdict": report.verdict.value,
        "seconds": round(report.seconds, 2),
        "conditions": sum(finding.conditions for finding in report.findings),
        "by_frame": sum(finding.framed for finding in report.findings),
        "moves": report.moves,
        "rows": report.rows,
        "vacuous": [each.what for each in report.vacuous],
        "obligations": [
            {
                "id": finding.obligation.id,
                "short": finding.obligation.short,
                "statement": finding.obligation.statement,
                "method": finding.obligation.method,
                "verdict": finding.verdict.value,
                "conditions": finding.conditions,
                "by_frame": finding.framed,
                "parts": finding.parts,
                "consecution_by_action": dict(sorted(kept[finding.obligation.id].items())),
                "seconds": round(finding.seconds, 2),
                "rests_on": list(finding.rests_on),
                "unknown": [
                    f"{each.condition.part}: {each.condition.words} ({each.condition.about}): "
                    f"{each.reason}"
                    for each in finding.failures
                    if each.verdict is Verdict.UNKNOWN
                ],
                "refuted": len(
                    [each for each in finding.failures if each.verdict is Verdict.REFUTED]
                ),
                "counterexamples": [
                    example.lines() for example in counterexamples.get(finding.obligation.id, ())
                ],
            }
            for finding in report.findings
        ],
        "assumptions": [
            {
                "name": each.name,
                "words": each.words,
                "owner": each.owner,
                "checked": each.checked,
                "for": list(each.for_whom),
            }
            for each in FAIRNESS
        ],
        "contracts": [
            {"name": each.name, "words": each.words, "owner": each.owner, "checked": each.checked}
            for each in CONTRACTS
        ],
        "not_proved": list(NOT_PROVED),
    }


def _consecution_by_action(report: Report) -> dict[str, Counter[str]]:
    """For each obligation: how many of its consecution conditions are of which action."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for each in report.decided:
        condition = each.condition
        if condition.part == "consecution" and condition.transition is not None:
            found[condition.obligation][condition.transition.action] += 1
    return found


def _second(second: Second | None) -> dict[str, Any] | None:
    if second is None:
        return None

    def named(conditions: Sequence[Condition]) -> list[str]:
        return [
            f"{each.obligation or 'vacuity'} {each.part}: {each.words} ({each.about})"
            for each in conditions
        ]

    return {
        "agreed": second.agreed,
        "unknown": named(second.unknown),
        "disagreed": named(second.disagreed),
    }


def print_report(console: Console, report: Mapping[str, Any], *, remembered: bool = False) -> None:
    """One line an obligation, then the assumptions, then what is not proved."""
    console.print(_table(report["obligations"], console.width))
    console.print(f"\n{_COLUMNS}")
    since = " (remembered: nothing has changed since)" if remembered else ""
    console.print(
        f"\n{report['conditions']} conditions over {report['moves']} ways in which actions go, and "
        f"{report['by_frame']} more by frame (nothing that they mention is written); "
        f"{report['rows']} rows that go; {report['seconds']:.1f} s{since}"
    )
    for each in report["obligations"]:
        if each["verdict"] == Verdict.RESTS.value:
            line = f"\n{each['id']} {each['verdict']}: {', '.join(each['rests_on'])}"
            console.print(Text(line, style="yellow"))
        for lines in each["counterexamples"]:
            console.print()
            for number, line in enumerate(lines):
                console.print(Text(line, style="bold red" if number == 0 else ""))
        more = each["refuted"] - len(each["counterexamples"])
        if more > 0:
            console.print(f"  and {more} more conditions of {each['id']} that are refuted")
        for line in each["unknown"]:
            console.print(Text(f"\n{each['id']} unknown: {line}", style="yellow"))
    other = report["second_solver"]
    if other is not None:
        console.print(f"\ncvc5 agrees on {other['agreed']} conditions")
        for what, style in (("unknown", "yellow"), ("disagreed", "bold red")):
            for line in other[what]:
                console.print(Text(f"  {what}: {line}", style=style))
    for what in report["vacuous"]:
        console.print(Text(f"\nvacuous: {what}", style="bold red"))
    _print_assumptions(console, report)


def _table(obligations: Sequence[Mapping[str, Any]], width: int) -> Table:
    """One line an obligation: its whole statement if that fits, otherwise the short one."""
    head = ("id", "obligation", "method", "start", "event", "own", "s", "verdict")
    rows = [_cells(each) for each in obligations]
    others = [
        max(len(row[column]) for row in [head, *rows])
        for column in range(len(head))
        if head[column] != "obligation"
    ]
    left = width - sum(others) - len(others)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in head:
        numbers = name in ("start", "event", "own", "s")
        ratio = 1 if name == "obligation" else None
        table.add_column(name, justify="right" if numbers else "left", no_wrap=True, ratio=ratio)
    for row, each in zip(rows, obligations, strict=True):
        name, _, *more, verdict = row
        words = each["statement"] if len(each["statement"]) <= left else each["short"]
        table.add_row(name, words, *more, Text(verdict, style=_COLOURS[each["verdict"]]))
    return table


def _cells(obligation: Mapping[str, Any]) -> tuple[str, ...]:
    """A line's cells; of the conditions: initiation, consecution, the statement's own."""
    parts = obligation["parts"]
    start, event = parts.get("initiation", 0), parts.get("consecution", 0)
    rests = obligation["verdict"] == Verdict.RESTS.value
    return (
        obligation["id"],
        "",
        obligation["method"],
        str(start),
        str(event),
        str(obligation["conditions"] - start - event),
        f"{obligation['seconds']:.1f}",
        "rests" if rests else obligation["verdict"],
    )


def _print_assumptions(console: Console, report: Mapping[str, Any]) -> None:
    console.print("\n[bold]Assumed of the world[/] (owner; where a breach is noticed)")
    for each in report["assumptions"]:
        console.print(
            Text(
                f"  {each['name']} ({each['owner']}; {each['checked']}) "
                f"for {', '.join(each['for'])}"
            )
        )
    console.print("[bold]Assumed of what events are told[/]")
    for each in report["contracts"]:
        console.print(Text(f"  {each['name']} ({each['owner']}; {each['checked']})"))
    console.print("[bold]Not proved[/]")
    for each in report["not_proved"]:
        console.print(Text(f"  {each}"))


def junit(report: Mapping[str, Any]) -> bytes:
    """The report as a JUnit file: one case an obligation, and one for vacuity."""
    obligations = report["obligations"]
    failures = sum(each["verdict"] == Verdict.REFUTED.value for each in obligations)
    errors = sum(
        each["verdict"] in (Verdict.UNKNOWN.value, Verdict.RESTS.value) for each in obligations
    ) + bool(report["vacuous"])
    mutants = report.get("mutants")
    suite = ElementTree.Element(
        "testsuite",
        name="kvproof check",
        tests=str(len(obligations) + 1 + (mutants is not None)),
        failures=str(failures + bool(mutants and mutants["survivors"])),
        errors=str(errors),
        time=str(report["seconds"]),
    )
    for each in obligations:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname="kvproof.check",
            name=f"{each['id']}: {each['statement']}",
            time=str(each["seconds"]),
        )
        text = "\n\n".join("\n".join(lines) for lines in each["counterexamples"])
        if each["verdict"] == Verdict.REFUTED.value:
            ElementTree.SubElement(case, "failure", message="refuted").text = text
        elif each["verdict"] != Verdict.PROVED.value:
            ElementTree.SubElement(case, "error", message=each["verdict"]).text = "\n".join(
                each["unknown"] or each["rests_on"]
            )
    case = ElementTree.SubElement(
        suite, "testcase", classname="kvproof.check", name="nothing is vacuous"
    )
    if report["vacuous"]:
        ElementTree.SubElement(case, "error", message="vacuous").text = "\n".join(report["vacuous"])
    if mutants is not None:
        words = f"no mutant of {mutants['looked_at']} survives"
        case = ElementTree.SubElement(suite, "testcase", classname="kvproof.check", name=words)
        if mutants["survivors"]:
            changes = "\n\n".join(each["change"] for each in mutants["survivors"])
            ElementTree.SubElement(case, "failure", message="survivors").text = changes
    found: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return found
