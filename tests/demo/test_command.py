"""`kvproof demo`: its exit codes, its JSON, its table; and a server that it cannot reach."""

import contextlib
import io
import json
from pathlib import Path

import pytest
from kvproof.specs.cli import exits, main
from kvproof.specs.demo import proofs, run, scenario
from kvproof.specs.demo.client import Api
from kvproof.specs.demo.proofs import ProofReport
from kvproof.specs.demo.rows import Row
from kvproof.specs.demo.trials import control, flagged
from kvproof.specs.demo.view import View
from rich.console import Console

from ..specs.conform.traces import TraceMaker


def never_holds(bench, name):
    row = Row(name)
    row.check("the impossible", False, "nothing")
    return row


def clears(bench, name):
    """Four prompts fit on the device: without this nothing would have to be loaded."""
    row = Row(name)
    row.check("the device is cleared", bench.api.reset(forced=True).body["success"])
    return row


@pytest.fixture
def short(monkeypatch):
    """A few trials, and four prompts."""

    def make(*trials):
        parts = (scenario.Part("a part", tuple((one.__name__, one) for one in trials)),)
        monkeypatch.setattr(scenario, "PARTS", parts)
        monkeypatch.setattr(scenario, "PROMPTS", 4)

    return make


def demo(served, *options):
    return main(["demo", "fake", "--url", served.url, *options])


def test_json_says_what_every_trial_found_and_exit_0_that_all_hold(served, short, capsys):
    short(clears, flagged, control)
    assert demo(served, "--json", "--no-proofs") == exits.OK
    report = json.loads(capsys.readouterr().out)
    assert report["holds"] is True
    _, *trials = report["trials"]
    assert [trial["trial"] for trial in trials] == ["flagged", "control"]
    assert all(trial["holds"] and trial["loaded_bytes"] > 0 for trial in trials)
    assert all(len(trial["passed"]) >= 8 for trial in trials)


def test_a_row_that_fails_is_exit_1_and_is_named(served, short, capsys):
    short(never_holds)
    assert demo(served, "--no-proofs") == exits.FAILED
    said = capsys.readouterr().out
    assert "FAILS" in said
    assert "NOT: the impossible (seen: nothing)" in said
    assert "These do not hold: never_holds." in said
    assert "Every row holds" not in said


def test_proofs_that_do_not_hold_are_exit_1(served, short, monkeypatch, capsys):
    short()
    monkeypatch.setattr(run, "prove", lambda *asked: ProofReport(3, {"S2": "undecided"}))
    assert demo(served, "--json") == exits.FAILED
    report = json.loads(capsys.readouterr().out)
    assert report["holds"] is False
    assert report["proofs"]["report"] == {"S2": "undecided"}
    monkeypatch.setattr(run, "prove", lambda *asked: ProofReport(0))
    assert demo(served, "--json") == exits.OK


@pytest.mark.parametrize(
    ("left_out", "words"),
    [
        (slice(0, 0), "trace conforms to the declaration: 300 transitions of"),
        (slice(99, 100), "trace.jsonl:100: "),
        (slice(0, 300), "The server wrote no trace."),
    ],
)
def test_the_trace_of_the_server_that_it_starts_must_conform(
    served, short, monkeypatch, capsys, tmp_path, left_out, words
):
    lines = TraceMaker(seed=3).walk(300)
    del lines[left_out]

    @contextlib.contextmanager
    def started(model, options):
        Path(options[options.index("--trace") + 1]).write_text("".join(f"{x}\n" for x in lines))
        yield Api(served.url)

    short(clears)
    monkeypatch.setattr(run.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(run, "served", started)
    monkeypatch.setattr(run, "fetched", lambda *asked: None)
    holds = "conforms" in words
    assert main(["demo", "fake", "--no-proofs"]) == (exits.OK if holds else exits.FAILED)
    said = " ".join(capsys.readouterr().out.split())
    assert words in said
    assert ("Every row holds" in said) == holds
    kept = list(tmp_path.glob("*/trace.jsonl"))
    assert len(kept) == ("trace.jsonl:100" in words), "one that departs is there to be looked at"


def test_a_server_that_is_not_there_is_exit_1_and_named(capsys):
    assert main(["demo", "fake", "--url", "http://127.0.0.1:9", "--no-proofs"]) == exits.FAILED
    assert "ConnectionRefusedError" in capsys.readouterr().err


def test_trials_that_were_not_run_do_not_hold():
    report = run.Report()
    assert not report.holds
    for part in scenario.PARTS:
        for name, _ in part.trials:
            row = Row(name)
            row.check("all", True)
            report.rows.append((part.title, row))
    assert report.holds
    report.rows.pop()
    assert not report.holds


def test_the_scenario_has_the_designs_trials():
    counts = [[name.split()[0] for name, _ in part.trials] for part in scenario.PARTS]
    assert counts[0] == ["flagged"] * 3 + ["control"] * 3
    assert counts[1] == ["flagged"] * 5 + ["control"] * 5
    assert counts[2] == ["session", "wait=10"]
    options = scenario.server_options(1.0)
    for words in (
        "--device-blocks 320",
        "--block-size 16",
        "--host-tier-gb 4",
        "--dtype float32",
        "--test-connector-delay 1.0",
    ):
        assert words in " ".join(options)


def test_the_table_has_a_line_a_trial_and_fits_in_80_columns():
    console = Console(width=80, file=io.StringIO())
    view = View(console)
    rows = [
        Row("control 8", "LOAD ×112, REQUEST ×64", "streams done", "2 of 2", 80_400_000, "200 same")
        for _ in range(3)
    ]
    rows[0].check("something", True)
    rows[1].check("the impossible", False, "that")
    with console.capture() as captured:
        for row in rows:
            view.add("a part", row)
    lines = captured.get().splitlines()
    assert sum(line.endswith("holds") for line in lines) == 1
    assert sum(line.endswith("FAILS") for line in lines) == 2
    assert "    NOT: the impossible (seen: that)" in lines
    assert max(len(line) for line in lines) <= 80


def test_it_says_that_the_loads_are_delayed_by_a_test_connector():
    said = run._caption(run.Options("smollm2-135m", None, 1.0, True))
    assert "TEST CONNECTOR DELAYS each load by 1 s" in said


@pytest.mark.parametrize(
    ("said", "report"), [('{"S1": "proved"}', {"S1": "proved"}), ("no JSON", None)]
)
def test_the_proofs_are_the_check_commands_with_its_exit_code(monkeypatch, said, report):
    asked = []

    class Done:
        returncode = 2
        stdout = said

    def run_it(command, **options):
        asked.append(command[3:])
        return Done()

    monkeypatch.setattr(proofs.subprocess, "run", run_it)
    console = Console(file=io.StringIO())
    assert not proofs.prove(console).holds
    assert proofs.prove(console, as_json=True) == ProofReport(2, report)
    assert asked == [["check"], ["check", "--json"]]
