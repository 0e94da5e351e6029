"""What a report needs beside its verdicts, as plain data: where each failure is, and scripts.

Made while the proofs are at hand; a remembered report has no failures, so that it needs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..check.conditions import Verdict
from ..check.counterexample import Counterexample
from ..check.pretty import value_name
from ..check.run import Report
from .places import Blame
from .sources import Place


def details(
    report: Report, counterexamples: Mapping[str, Sequence[Counterexample]]
) -> dict[str, Any]:
    """`failures`: each different statement that was not proved, with the places that it is about.

    `examples`: of each obligation its counterexamples, for pictures.
    """
    return {
        "failures": _failures(report),
        "examples": {
            name: [_example(each) for each in examples]
            for name, examples in counterexamples.items()
        },
    }


def _failures(report: Report) -> list[dict[str, Any]]:
    if report.proofs is None:
        return []
    blame = Blame(report.proofs)
    found: dict[tuple[str, str, str, Place], dict[str, Any]] = {}
    for finding in report.findings:
        for failure in finding.failures:
            if failure.verdict not in (Verdict.REFUTED, Verdict.UNKNOWN):
                continue
            places = blame.places(failure)
            condition = failure.condition
            transition = condition.transition
            key = (condition.obligation, condition.words, failure.verdict.value, places[0])
            known = found.setdefault(
                key,
                {
                    "obligation": condition.obligation,
                    "verdict": failure.verdict.value,
                    "part": condition.part,
                    "words": condition.words,
                    "about": condition.about if transition is None else transition.label,
                    "action": "" if transition is None else transition.action,
                    "reason": failure.reason,
                    "places": [asdict(place) for place in places],
                    "conditions": 0,
                },
            )
            known["conditions"] += 1
    return list(found.values())


def _example(example: Counterexample) -> dict[str, Any]:
    changed = example.changed()
    return {
        "part": example.part,
        "broken": example.broken,
        "formula": example.formula,
        "action": example.action,
        "events": [str(event) for event in example.events],
        "script": None if example.script is None else list(example.script),
        "searched": example.searched,
        "told": {name: value_name(name, value) for name, value in example.told.items() if value},
        "facts": {
            name: [value_name(name, value), value_name(name, example.after[name])]
            for name, value in example.before.items()
            if value or name in changed
        },
    }
