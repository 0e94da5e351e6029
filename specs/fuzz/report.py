"""What a search found, for people, for programs and for CI."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rich.table import Table

from .bundle import CannotBundleError
from .campaign import Report
from .findings import Finding
from .pytest_writer import file_name, write
from .rules import RULES


def write_tests(report: Report, folder: Path, command: str) -> dict[str, Path]:
    """Write a pytest for each finding; their paths, by the finding's slug.

    A finding whose target cannot be copied into one file is left out.
    """
    paths: dict[str, Path] = {}
    if report.findings:
        folder.mkdir(parents=True, exist_ok=True)
    for finding in report.findings:
        path = folder / file_name(finding)
        try:
            path.write_text(write(finding, command), encoding="utf-8")
        except CannotBundleError:
            continue
        paths[finding.slug] = path
    return paths


def table(report: Report) -> Table:
    """The findings, one a row."""
    found = Table(title=f"{report.target.version()}: {len(report.findings)} findings")
    found.add_column("#", justify="right")
    found.add_column("finding", ratio=1, overflow="fold")
    found.add_column("needs", overflow="fold")
    found.add_column("calls", justify="right")
    found.add_column("met", justify="right")
    for number, finding in enumerate(report.findings, 1):
        failure = finding.failure
        needs = [] if failure.settings.connector == "none" else [failure.settings.connector]
        needs += [] if finding.legal else ["injected faults"]
        found.add_row(
            str(number),
            f"[bold]{finding.title}[/]\n{failure.violation.message}",
            "\n".join(needs),
            str(len(failure.operations)),
            str(finding.count),
        )
    return found


def as_dict(report: Report, paths: dict[str, Path]) -> dict[str, Any]:
    """The report as plain data."""
    return {
        "engine": report.target.version(),
        "caveat": report.target.caveat() or None,
        "seed": report.seed,
        "runs": report.runs,
        "operations": report.operations,
        "seconds": round(report.seconds, 3),
        "operations_by_name": dict(sorted(report.by_operation.items())),
        "findings": [_finding(finding, paths.get(finding.slug)) for finding in report.findings],
    }


def _finding(finding: Finding, path: Path | None) -> dict[str, Any]:
    failure = finding.failure
    return {
        "name": finding.slug,
        "title": finding.title,
        "rule": failure.violation.rule,
        "rule_in_words": RULES[failure.violation.rule],
        "message": failure.violation.message,
        "place": failure.place or None,
        "legal": finding.legal,
        "met": finding.count,
        "seed": finding.seed,
        "found_after_operations": finding.operations,
        "settings": asdict(failure.settings),
        "operations": [operation.to_json() for operation in failure.operations],
        "test": str(path) if path else None,
    }


def write_junit(report: Report, path: Path) -> None:
    """A JUnit file: one failed case a finding; one passed case when there is none."""
    findings = report.findings
    suite = ElementTree.Element(
        "testsuite",
        name=f"kvproof fuzz {report.target.version()}",
        tests=str(max(1, len(findings))),
        failures=str(len(findings)),
        time=f"{report.seconds:.3f}",
    )
    for finding in findings:
        case = ElementTree.SubElement(suite, "testcase", name=finding.slug)
        failed = ElementTree.SubElement(case, "failure", message=finding.title)
        steps = "\n".join(str(operation) for operation in finding.failure.operations)
        failed.text = f"{finding.failure.violation.message}\n\n{steps}\n"
    if not findings:
        ElementTree.SubElement(suite, "testcase", name="no rule was broken")
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
