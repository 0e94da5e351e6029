"""`kvproof conform` accepts what the declaration does and names the first line that departs."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from kvproof.specs.cli import exits, main
from kvproof.specs.conform import Verdict, conform

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


def mutants(lines: list[str], count: int, seed: int) -> list[tuple[str, list[str]]]:
    """Traces with one line dropped, doubled, swapped with the next, or altered in one field."""
    chance = random.Random(seed)
    made = []
    while len(made) < count:
        at = chance.randrange(1, len(lines) - 2)
        kind = chance.choice(["drop", "double", "swap", "alter"])
        if kind == "drop":
            mutant = lines[:at] + lines[at + 1 :]
        elif kind == "double":
            mutant = [*lines[:at], lines[at], *lines[at:]]
        elif kind == "swap":
            mutant = [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]
        else:
            raw = json.loads(lines[at])
            field = chance.choice(["from", "to", "answer", "why", "facts", "ask", "commands"])
            if field in ("facts", "ask"):
                names = list(raw[field]) or ["tokens"]
                name = chance.choice(names)
                raw[field] = {**raw[field], name: raw[field].get(name, 0) + 1}
            elif field == "commands":
                raw[field] = [*raw[field], "trim" if "trim" not in raw[field] else "wait"]
            else:
                raw[field] = raw[field] + "x"
            mutant = [*lines[:at], json.dumps(raw), *lines[at + 1 :]]
            kind = f"alter {field}"
        made.append((f"{kind} at {at}", mutant))
    return made


def same_outcome(lines: list[str], mutant: list[str]) -> bool:
    """Whether an altered ask is equivalent: the line's row decides alike and has the effects."""
    differing = [pair for pair in zip(lines, mutant, strict=True) if pair[0] != pair[1]]
    assert len(differing) == 1
    before, after = (json.loads(line) for line in differing[0])
    return {**before, "ask": None} == {**after, "ask": None} and before["ask"] != after["ask"]


def test_of_three_hundred_mutated_traces_each_is_caught_or_equivalent() -> None:
    lines = TraceMaker(seed=6).walk(150)
    caught = equivalent = 0
    for name, mutant in mutants(lines, 300, seed=7):
        if replay(mutant).departure is not None:
            caught += 1
            continue
        # What is left can only be an ask that no guard and no effect of the row depends on: the
        # declaration itself, run on the altered ask, left every later record as it was.
        assert name.startswith("alter ask"), name
        assert same_outcome(lines, mutant), name
        equivalent += 1
    assert caught + equivalent == 300
    assert caught > 200


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


def test_the_walks_that_these_tests_use_visit_every_machine() -> None:
    machines = {json.loads(line)["machine"] for line in TraceMaker(seed=10).walk(300)}
    assert machines == {"request", "transfer", "engine"}
