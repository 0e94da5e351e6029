"""`kvproof table`, `kvproof diagram` and docs/lifecycle.md show the declaration as it is."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from kvproof.specs.cli import exits, main
from kvproof.specs.diagrams import DRAW, edges
from kvproof.specs.listing import MACHINES, forced_reset, reset_table, rows, states_in_words
from kvproof.specs.page import page
from kvproof.statemachine import RequestState
from kvproof.statemachine.answers import GO
from kvproof.statemachine.states import FINISHED, LIVE, WAITING_FOR_STREAMING_REQ

ROOT = Path(__file__).resolve().parents[2]
every_machine = pytest.mark.parametrize("machine", list(MACHINES))


def printed(capsys: pytest.CaptureFixture[str], *typed: str) -> str:
    assert main(list(typed)) == exits.OK
    return capsys.readouterr().out


# --- the table ----------------------------------------------------------------------------------


@every_machine
def test_the_table_as_json_has_every_row(machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(printed(capsys, "table", "--machine", machine, "--json"))
    table = MACHINES[machine].table
    assert [row["row"] for row in listed] == list(range(len(table.rows)))
    for row, said in zip(table.rows, listed, strict=True):
        assert said["why"] == row.why
        assert said["event"] == row.trigger.name.lower()
        assert said["from"] == [table.states(state).name for state in row.source]
        assert len(said["conditions"] + said["unless"]) == len(row.conditions + row.unless)
        assert (said["answer"] == "go") == (row.answer == GO)


@every_machine
def test_the_table_prints_every_event(machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "table", "--machine", machine)
    assert [e for e in MACHINES[machine].table.events if e.name.lower() not in out] == []


def test_a_filter_leaves_the_rows_that_can_decide_refusals_included(
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed = ("table", "--json", "--state", "running", "--event", "GROW", "--event", "admit")
    listed = json.loads(printed(capsys, *typed))
    assert {row["event"] for row in listed} == {"grow", "admit"}
    assert all("RUNNING" in row["from"] for row in listed)
    assert {row["answer"] for row in listed} == {"go", "not_now", "reject"}


def test_refusals_are_shown_when_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "a reset is pending" not in printed(capsys, "table")
    assert "a reset is pending" in printed(capsys, "table", "--all")
    assert "not now" in printed(capsys, "table", "--event", "admit")


@pytest.mark.parametrize(("option", "name"), [("--state", "nowhere"), ("--event", "explode")])
def test_a_state_or_event_that_there_is_not_is_a_usage_error_that_names_those_there_are(
    option: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["table", option, name]) == exits.USAGE
    told = capsys.readouterr().err
    assert name in told
    assert "PREEMPTED" in told or "preempt" in told


def test_a_set_of_states_is_said_in_few_words() -> None:
    said = {
        states_in_words("request", LIVE): "live",
        states_in_words("request", FINISHED): "finished",
        states_in_words("request", tuple(RequestState)): "any",
        states_in_words("request", [s for s in LIVE if s != WAITING_FOR_STREAMING_REQ]): (
            "live but WAITING_FOR_STREAMING_REQ"
        ),
        states_in_words("request", [s for s in RequestState if s != 0]): "live, finished",
        states_in_words("engine", [1, 2]): "ACTIVE, PAUSING",
    }
    assert list(said) == list(said.values())


# --- the reset ----------------------------------------------------------------------------------


def test_a_reader_sees_what_a_forced_reset_does_to_each_holder(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = {f.holder: f for f in forced_reset()}
    parked = done["parked session"]
    assert (parked.event, parked.after) == ("reclaim", "WAITING_FOR_STREAMING_REQ")
    assert parked.said == "it keeps 10 of 10 tokens and 0 of 3 blocks, and recomputes from token 0"
    running = done["running request, a step in flight"]
    assert (running.event, running.after, running.commands) == ("preempt", "PREEMPTED", "release")
    assert running.said.startswith("its step's token is delivered; it keeps 10 of 10 tokens")
    loading = done["loading request"]
    assert (loading.event, loading.after, loading.commands) == ("", loading.before, "kept")
    assert "refused, and nothing changed" in loading.said
    out = printed(capsys, "table")
    assert [holder for holder in done if holder.split(",")[0] not in out] == []


def test_the_reset_table_is_on_the_page() -> None:
    for cells in reset_table():
        assert f"| {' | '.join(cells)} |" in page()


# --- the page -----------------------------------------------------------------------------------


def test_the_manuals_page_is_what_the_declaration_says() -> None:
    """If this fails: `kvproof table --page docs/lifecycle.md`, and look at what has changed."""
    assert (ROOT / "docs" / "lifecycle.md").read_text(encoding="utf-8") == page()


def test_the_page_has_every_row_of_every_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(capsys, "table", "--page", str(tmp_path / "page.md"))
    lines = (tmp_path / "page.md").read_text(encoding="utf-8").splitlines()
    for machine in MACHINES:
        for listed in rows(machine):
            row = listed.row
            found = [
                line
                for line in lines
                if line.startswith(f"| {row.trigger.name.lower()} |")
                and line.endswith(f"| {row.why} |")
            ]
            assert found, (machine, row)


# --- the diagrams -------------------------------------------------------------------------------


@every_machine
def test_every_change_of_state_is_an_arrow(machine: str) -> None:
    table = MACHINES[machine].table
    drawn = {(e.source, e.dest, event) for e in edges(machine) for event in e.events}
    groups = {"live": LIVE, "finished": FINISHED} if machine == "request" else {}
    for listed in rows(machine):
        row = listed.row
        if row.answer != GO or row.dest is None:
            continue
        for state in row.source:
            names = [table.states(state).name, *(n for n, g in groups.items() if state in g)]
            dest, event = table.states(row.dest).name, row.trigger.name.lower()
            assert any((name, dest, event) in drawn for name in names), (state, row)


@every_machine
@pytest.mark.parametrize("form", list(DRAW))
def test_a_diagram_names_every_state(
    machine: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = printed(capsys, "diagram", "--machine", machine, "--format", form)
    states = [state.name for state in MACHINES[machine].table.states]
    assert [name for name in states if not re.search(rf"\b{name}\b", drawn)] == []


@every_machine
def test_the_mermaid_diagram_is_one_of_states(machine: str) -> None:
    head, *lines = DRAW["mermaid"](machine).splitlines()
    assert head == "stateDiagram-v2"
    word = r"[A-Za-z_]+"
    known = (
        rf"    state {word} {{|        {word}|    }}|    {word}|    {word} --> {word} : [a-z_, ]+"
    )
    assert [line for line in lines if not re.fullmatch(known, line)] == []


@every_machine
def test_the_dot_diagram_is_balanced_and_has_its_arrows(machine: str) -> None:
    drawn = DRAW["dot"](machine)
    assert drawn.startswith(f"digraph {machine} {{")
    assert drawn.count("{") == drawn.count("}")
    assert drawn.count(" -> ") == len(edges(machine))


@every_machine
def test_the_svg_chart_is_well_formed_and_has_a_line_for_every_row_that_goes(machine: str) -> None:
    root = ElementTree.fromstring(DRAW["svg"](machine))
    space = {"s": "http://www.w3.org/2000/svg"}
    going = [listed.row for listed in rows(machine) if listed.row.answer == GO]
    titles = [title.text or "" for title in root.findall("s:g/s:title", space)]
    assert [title.partition(" (if")[0] for title in titles] == [row.why for row in going]
    dots = root.findall("s:g/s:circle[@r='4']", space)
    assert len(dots) == sum(len(row.source) for row in going)
    arrows = root.findall("s:g/s:path", space)
    assert len(arrows) >= sum(row.dest is not None for row in going)


def test_a_diagram_is_written_to_a_file_or_given_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "engine.svg"
    assert (
        printed(capsys, "diagram", "--machine", "engine", "--format", "svg", "--out", str(path))
        == ""
    )
    assert path.read_text(encoding="utf-8") == DRAW["svg"]("engine")
    arrows = json.loads(printed(capsys, "diagram", "--machine", "engine", "--json"))
    assert {"from": "PAUSED", "to": "SLEEPING", "events": ["sleep"]} in arrows
