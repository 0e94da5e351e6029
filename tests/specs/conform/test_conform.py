"""`kvproof conform` accepts what the declaration does and names the first line that departs."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from kvproof.specs.cli import exits, main
from kvproof.specs.conform import Verdict, conform
from kvproof.specs.conform.replay import LONGEST_LINE, read_lines

from .traces import TraceMaker


def replay(lines: list[str]) -> Verdict:
    return conform((Path("trace.jsonl"), number, line) for number, line in enumerate(lines, 1))


def changed(line: str, **fields: object) -> str:
    return json.dumps({**json.loads(line), **fields})


def test_a_trace_of_the_machines_conforms_and_says_which_rows_it_used() -> None:
    verdict = replay(TraceMaker(seed=1).walk(3000))
    assert verdict.departure is None
    assert verdict.matched == 3000
    used = {(name, number) for name, rows in verdict.used_rows.items() for number in rows}
    unused = {(name, number) for name, number, _ in verdict.unused_rows()}
    assert used
    assert unused
    assert not used & unused


def test_traces_of_two_engines_may_be_interleaved_in_one_file() -> None:
    one = TraceMaker(seed=2, name="a").walk(400)
    other = TraceMaker(seed=3, name="b").walk(400)
    mixed = [line for pair in zip(one, other, strict=True) for line in pair]
    assert replay(mixed).departure is None


def test_a_trace_may_begin_in_the_middle() -> None:
    assert replay(TraceMaker(seed=4).walk(800)[300:]).departure is None


def test_a_departure_names_line_legal_events_and_the_guard_that_was_false() -> None:
    lines = TraceMaker(seed=5).walk(800)
    at = next(
        number
        for number, line in enumerate(lines)
        if (raw := json.loads(line))["event"] == "admit" and raw["answer"] == "go"
    )
    raw = json.loads(lines[at])
    lines[at] = changed(lines[at], ask={**raw["ask"], "free": 0})
    departure = replay(lines).departure
    assert departure is not None
    assert departure.line == at + 1
    assert "admit" in departure.legal
    assert departure.conjunct == "not room_exists"
    assert "too few blocks are free" in departure.what


def test_memory_stays_bounded_however_many_requests_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvproof.specs.conform.replay.REMEMBERED", 100)
    path = tmp_path / "trace.jsonl"
    with path.open("w") as file:
        file.writelines(line + "\n" for line in TraceMaker(seed=11).lives(1_000))
    tracemalloc.start()
    try:
        verdict = conform(read_lines([path]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert verdict.departure is None
    assert (verdict.matched, verdict.subjects) == (3_000, 1_000)
    assert peak < path.stat().st_size / 5


@pytest.mark.long
def test_a_file_is_never_in_memory(tmp_path: Path) -> None:
    """Resident memory at most, of the command on a file of 60 MB and on one of 60 kB."""
    program = (
        "import resource, sys; from kvproof.specs.cli import main; code = main(sys.argv[1:]); "
        "print('kB', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss); sys.exit(code)"
    )
    memory = []
    for lives in (70, 70_000):
        path = tmp_path / f"{lives}.jsonl"
        with path.open("w") as file:
            file.writelines(line + "\n" for line in TraceMaker(seed=11).lives(lives))
        run = subprocess.run(
            [sys.executable, "-c", program, "conform", str(path)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        memory.append(int(run.stdout.split("kB")[-1]))
    assert path.stat().st_size > 50 * 2**20
    assert memory[1] - memory[0] < 12 * 2**10


def test_a_line_without_an_end_is_not_read_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "endless"
    path.write_text("x" * (3 * LONGEST_LINE))
    lines = read_lines([path])
    assert len(next(lines)[2]) == LONGEST_LINE
    departure = conform(read_lines([path])).departure
    assert departure is not None
    assert "not JSON" in departure.what


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"v": 99}', "schema version 99"),
        ('{"v": 1}', "missing"),
    ],
)
def test_a_line_that_is_no_transition_is_named(text: str, words: str) -> None:
    departure = replay([text]).departure
    assert departure is not None
    assert words in departure.what


def test_half_a_line_at_the_end_of_a_file_is_passed_over_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An engine that was killed leaves it, and its trace is the one to look at."""
    lines = TraceMaker(seed=9).walk(100)
    crashed, after = tmp_path / "crashed.jsonl", tmp_path / "after.jsonl"
    crashed.write_text("\n".join(lines[:60]) + "\n" + lines[60][:40])
    after.write_text("\n".join(TraceMaker(seed=10, name="again").walk(20)) + "\n")
    assert main(["conform", str(crashed), str(after)]) == exits.OK
    assert f"passed over: {crashed}:61, half a line" in capsys.readouterr().out
    assert main(["conform", str(crashed), "--json"]) == exits.OK
    assert json.loads(capsys.readouterr().out)["cut_off"] == [f"{crashed}:61"]


@pytest.mark.parametrize(
    ("follows", "passes"), [("another trace", True), ("the same trace", False), ("no line", False)]
)
def test_half_a_line_with_a_line_end_is_passed_over_only_before_another_trace(
    follows: str, passes: bool
) -> None:
    lines = TraceMaker(seed=9).walk(100)
    following = {
        "another trace": TraceMaker(seed=10, name="again").walk(20),
        "the same trace": lines[60:],
        "no line": [],
    }[follows]
    verdict = replay([*lines[:60], lines[60][:40] + "\n", *following])
    assert (verdict.departure is None) == passes
    if passes:
        assert verdict.matched == 80
        assert len(verdict.cut_off) == 1
    else:
        assert verdict.departure is not None
        assert verdict.departure.line == 61
        assert "not JSON" in verdict.departure.what


def test_unknown_machines_events_and_fields_depart() -> None:
    lines = TraceMaker(seed=8).walk(5)
    for field in ({"machine": "car"}, {"event": "fly"}, {"ask": {"wings": 2}}):
        assert replay([changed(lines[0], **field)]).departure is not None


def test_the_command_line_says_conforms_departs_or_nothing_matched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = TraceMaker(seed=9).walk(100)
    good, bad, empty = (tmp_path / name for name in ("good", "bad", "empty"))
    good.write_text("\n".join(lines))
    bad.write_text("\n".join(lines[:50] + lines[51:]))
    empty.write_text("")
    assert main(["conform", str(good)]) == exits.OK
    report = tmp_path / "junit.xml"
    assert main(["conform", str(bad), "--json", "--junit", str(report)]) == exits.REFUTED
    assert 'failures="1"' in report.read_text()
    assert main(["conform", str(empty)]) == exits.USAGE
    out = capsys.readouterr().out
    assert '"departure"' in out
    assert "nothing matched" in out
    assert main(["conform", str(tmp_path / "missing")]) == exits.USAGE


def test_what_is_printed_is_what_stands_in_the_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = TraceMaker(seed=9).walk(200)
    del lines[99]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(lines) + "\n")
    assert main(["conform", str(trace)]) == exits.REFUTED
    assert f"departs at {trace}:100: " in capsys.readouterr().out


def test_a_file_that_is_no_trace_is_said_to_be_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    text.write_text("once upon a time\n")
    assert main(["conform", str(text)]) == exits.USAGE
    told = capsys.readouterr().out
    assert f"nothing matched: {text} is no trace: line 1: not JSON" in told
    assert "departs" not in told


def test_the_walks_that_these_tests_use_visit_every_machine() -> None:
    machines = {json.loads(line)["machine"] for line in TraceMaker(seed=10).walk(300)}
    assert machines == {"request", "transfer", "engine"}
