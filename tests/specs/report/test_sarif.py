"""`kvproof check --sarif`: what fails, at the lines of the declaration that it is about."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from kvproof.specs.check.declaration import standard
from kvproof.specs.check.obligations import OBLIGATIONS
from kvproof.specs.cli import exits, main
from kvproof.specs.report import sarif
from kvproof.specs.report.sources import Sources
from kvproof.statemachine import policy, request_effects

from ..check.faults import FAULTS, Fault
from .conftest import fault_named, report_of
from .sarif_schema import SCHEMA

ROOT = Path(__file__).resolve().parents[3]


def results_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    log = json.loads(json.dumps(sarif(report)))
    jsonschema_rs.validate(SCHEMA, log)
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    return list(run["results"])


def lines(location: dict[str, Any]) -> tuple[str, int, int]:
    physical = location["physicalLocation"]
    region = physical["region"]
    return physical["artifactLocation"]["uri"], region["startLine"], region["endLine"]


def test_a_sound_declaration_gives_no_result_and_one_rule_an_obligation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVPROOF_CACHE", str(tmp_path))
    file = tmp_path / "check.sarif"
    for _ in range(2):  # the second is remembered
        assert main(["check", "--id", "P1", "--sarif", str(file)]) == exits.OK
        log = json.loads(file.read_text())
        jsonschema_rs.validate(SCHEMA, log)
        (run,) = log["runs"]
        assert run["results"] == []
        rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
        assert rules == [*(each.id for each in OBLIGATIONS), "vacuity"]
    assert "remembered" in capsys.readouterr().out


def test_a_refuted_obligation_is_an_error_at_the_lines_of_the_function(
    faulty: dict[str, Any],
) -> None:
    results = results_of(faulty)
    assert {result["ruleId"] for result in results} == {"S2"}
    assert {result["level"] for result in results} == {"error"}
    (location,) = results[0]["locations"]
    file, first, last = lines(location)
    source, start = inspect.getsourcelines(request_effects.let_go)
    assert file == "statemachine/request_effects.py"
    assert (first, last) == (start, start + len(source) - 1)
    assert (ROOT / file).read_text().splitlines()[first - 1].startswith("def let_go(")
    assert location["logicalLocations"][0]["fullyQualifiedName"] == "request_effects.let_go"


def test_its_message_has_the_shortest_script(faulty: dict[str, Any]) -> None:
    text = results_of(faulty)[0]["message"]["text"]
    assert text.startswith("S2 consecution: what a launched step may touch has a hold")
    assert "shortest script from the start:" in text
    assert "preempt r0" in text


def test_two_results_for_the_same_reason_have_the_same_fingerprint(faulty: dict[str, Any]) -> None:
    once, again = results_of(faulty), results_of(faulty)
    prints = [result["partialFingerprints"]["kvproof/v1"] for result in once]
    assert prints == [result["partialFingerprints"]["kvproof/v1"] for result in again]
    assert len(set(prints)) == len(prints)


def test_undecided_is_a_warning_never_nothing(undecided: dict[str, Any]) -> None:
    results = results_of(undecided)
    assert results
    assert {result["level"] for result in results} == {"warning"}
    assert all("was not decided" in result["message"]["text"] for result in results)


def test_what_is_vacuous_is_an_error_at_its_row() -> None:
    number = next(number for number, _ in standard().machine("transfer").table.go_rows())
    report = {
        "failures": [], "obligations": [], "verdict": "proved", "conditions": 0, "seconds": 0.0,
        "vacuous": [f"the transfer's row {number} (start: its blocks are held) answers GO"],
    }  # fmt: skip
    (result,) = results_of(report)
    assert (result["ruleId"], result["level"]) == ("vacuity", "error")
    file, first, last = lines(result["locations"][0])
    text = (ROOT / file).read_text().splitlines()[first - 1 : last]
    assert text[0].strip().startswith("Row(E.START, (ABSENT,), QUEUED")


def test_the_lines_of_every_row_begin_with_the_row() -> None:
    sources = Sources(standard())
    for machine in ("request", "transfer", "engine"):
        table = standard().machine(machine).table
        text = (ROOT / f"statemachine/{machine}.py").read_text().splitlines()
        for number, row in enumerate(table.rows):
            place = sources.row(machine, number)
            assert text[place.first - 1].strip().startswith(f"Row(E.{row.trigger.name}, ")
            assert row.why in "\n".join(text[place.first - 1 : place.last])


def test_a_function_s_lines_are_those_that_python_says() -> None:
    place = Sources(standard()).function("policy", "ahead")
    source, start = inspect.getsourcelines(policy.ahead)
    assert place is not None
    assert (place.first, place.last) == (start, start + len(source) - 1)


# --- of every seeded fault the lines are pointed to ----------------------------------------------

EVERYDAY = (
    "a parked session gives way to its betters only",
    "a chunk for a closed session is taken",
)
#: What is changed is neither a function nor a row, but a tuple of effects that rows share.
SHARED = {"an abort leaves the transfer's list of waiters alone"}


def changed_lines(fault: Fault) -> tuple[str, int, int]:
    source = standard().sources[fault.file]
    first = source[: source.index(fault.old)].count("\n") + 1
    return f"statemachine/{fault.file}", first, first + fault.new.count("\n")


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            fault,
            id=fault.name.replace(" ", "-"),
            marks=[] if fault.name in EVERYDAY else [pytest.mark.long],
        )
        for fault in FAULTS
        if fault.name not in SHARED
    ],
)
def test_a_result_points_to_the_lines_that_were_changed(fault: Fault) -> None:
    where = changed_lines(fault)
    found = [
        lines(location)
        for result in results_of(report_of(fault, scripts=False))
        for location in (*result["locations"], *result["relatedLocations"])
    ]
    file, first, last = where
    assert any(f == file and a <= last and first <= b for f, a, b in found), (where, found)


@pytest.mark.long
def test_what_rows_share_is_pointed_to_by_a_row() -> None:
    (name,) = SHARED
    results = results_of(report_of(fault_named(name), scripts=False))
    assert "statemachine/request.py" in {lines(result["locations"][0])[0] for result in results}
