"""A report of `kvproof check` as SARIF 2.1.0, as GitHub code scanning and others show it.

One rule an obligation, one more for vacuity; one result for each different statement that was
refuted (an error) or that the solver did not decide (a warning: unknown is never a pass). Each
points to lines of the declaration. What is proved gives no result.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..check.conditions import Verdict
from ..check.declaration import standard
from ..check.obligations import OBLIGATIONS
from .sources import Sources

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
VERSION = "2.1.0"
VACUITY = "vacuity"

Json = dict[str, Any]


def sarif(report: Mapping[str, Any]) -> Json:
    """The SARIF log of a report with its `details`."""
    results = [_failed(report, failure) for failure in report.get("failures", ())]
    results += [_vacuous(what) for what in report["vacuous"]]
    return {
        "$schema": SCHEMA,
        "version": VERSION,
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "kvproof",
                        "semanticVersion": _semantic(importlib.metadata.version("kvproof")),
                        "rules": _rules(),
                    }
                },
                "automationDetails": {"id": "kvproof/check/"},
                "columnKind": "unicodeCodePoints",
                "invocations": [{"executionSuccessful": True}],
                "results": results,
                "properties": {
                    "verdict": report["verdict"],
                    "conditions": report["conditions"],
                    "seconds": report["seconds"],
                },
            }
        ],
    }


def _semantic(version: str) -> str:
    """A version of Python's as a semantic one: 0.1.0.dev0 is 0.1.0-dev0."""
    return re.sub(r"^(\d+\.\d+\.\d+)\.?(\w.*)$", r"\1-\2", version)


def _rules() -> list[Json]:
    rules = [
        _rule(each.id, each.statement, f"Shown by {each.method}. Its formulas: "
              f"`kvproof check --explain {each.id}`.")
        for each in OBLIGATIONS
    ]  # fmt: skip
    return [
        *rules,
        _rule(
            VACUITY,
            "nothing that is proved is said of nothing",
            "A row that can never be taken, or hypotheses that hold nowhere, make what is proved "
            "of them worthless.",
        ),
    ]


def _rule(name: str, statement: str, text: str) -> Json:
    return {
        "id": name,
        "name": name,
        "shortDescription": {"text": f"{name}: {statement}"},
        "fullDescription": {"text": statement},
        "help": {"text": text.replace("`", ""), "markdown": text},
        "defaultConfiguration": {"level": "error"},
        "properties": {
            "precision": "very-high",
            "problem.severity": "error",
            "tags": ["correctness"],
        },
    }


RULES = (*(each.id for each in OBLIGATIONS), VACUITY)


def _failed(report: Mapping[str, Any], failure: Mapping[str, Any]) -> Json:
    refuted = failure["verdict"] == Verdict.REFUTED.value
    name, words = failure["obligation"], failure["words"]
    by = failure["action"].replace("_", " ") or failure["about"]
    verb = "is broken" if refuted else f"was not decided ({failure['reason'] or 'unknown'})"
    lines = [f"{name} {failure['part']}: {words}: {verb}{f', by {by}' if by else ''}."]
    if failure["conditions"] > 1:
        lines.append(f"{failure['conditions']} conditions of this kind.")
    if refuted:
        lines += _example(report, name, f"{name} {failure['part']}: {words}", failure["action"])
    places = failure["places"]
    key = "\0".join((name, words, failure["action"] or failure["about"], places[0]["name"]))
    return {
        **_result(name, "error" if refuted else "warning", "\n".join(lines)),
        "locations": [_location(places[0])],
        "relatedLocations": [
            {"id": number, **_location(place), "message": {"text": place["name"]}}
            for number, place in enumerate(places[1:], 1)
        ],
        "partialFingerprints": {"kvproof/v1": hashlib.sha256(key.encode()).hexdigest()},
    }


def _example(report: Mapping[str, Any], name: str, first: str, action: str) -> Iterable[str]:
    """The lines of the counterexample that is printed, if it is this failure's."""
    for obligation in report["obligations"]:
        if obligation["id"] == name:
            shown = report.get("examples", {}).get(name, ())
            for lines, example in zip(obligation["counterexamples"], shown, strict=False):
                if lines[0] == first and example["action"] == action:
                    return list(lines[1:])
    return ()


def _vacuous(what: str) -> Json:
    """A row that is never taken is shown where it is written, anything else at the table."""
    sources = Sources(standard())
    row = re.search(r"the (request|transfer|engine)'s row (\d+)", what)
    place = sources.row(row[1], int(row[2])) if row else sources.table("request")
    return {
        **_result(VACUITY, "error", f"vacuous: {what}"),
        "locations": [_location(vars(place))],
        "partialFingerprints": {"kvproof/v1": hashlib.sha256(what.encode()).hexdigest()},
    }


def _result(rule: str, level: str, text: str) -> Json:
    return {
        "ruleId": rule,
        "ruleIndex": RULES.index(rule),
        "level": level,
        "message": {"text": text},
    }


def _location(place: Mapping[str, Any]) -> Json:
    found: Json = {
        "physicalLocation": {
            "artifactLocation": {"uri": place["file"], "uriBaseId": "%SRCROOT%"},
            "region": {"startLine": place["first"], "endLine": place["last"]},
        }
    }
    if place["kind"] == "function":
        found["logicalLocations"] = [{"fullyQualifiedName": place["name"], "kind": "function"}]
    return found
