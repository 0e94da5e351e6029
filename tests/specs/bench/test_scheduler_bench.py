"""`kvproof bench scheduler`: that both sides do the work they say, and how it is put together.

What the figures are is no test's business.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from kvproof.specs.bench import compare as comparing
from kvproof.specs.bench import ours, scenarios
from kvproof.specs.bench.compare import Figure, Side, SideError, compare
from kvproof.specs.bench.scenarios import BLOCK_SIZE, SCENARIOS, Scenario, prompts
from kvproof.specs.cli import main

from .small import SMALL


@pytest.mark.parametrize("scenario", SMALL, ids=lambda scenario: scenario.title)
def test_our_side_takes_the_samples_that_it_is_asked_for(scenario: Scenario) -> None:
    seconds = ours.measure(scenario)
    assert len(seconds) == scenario.samples
    assert all(each > 0 for each in seconds)


def test_the_devices_own_work_is_no_part_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(1000))
    monkeypatch.setattr(ours.time, "thread_time", lambda: next(times))
    # A second passes from each look at the clock to the next: one of a step's three is the device.
    assert ours.measure(Scenario("decode", 2, samples=2)) == [2, 2]


def test_no_two_prompts_begin_with_the_same_block() -> None:
    most = max(scenario.requests for scenario in SCENARIOS)
    begins = {tuple(tokens[:BLOCK_SIZE]) for tokens in prompts(Scenario("admit", most), most)}
    assert len(begins) == most


def test_a_ratio_is_taken_within_a_round() -> None:
    """A round that was slow for both must not move it."""
    figure = Figure(SCENARIOS[0], {"kvproof": [1.0, 30.0, 2.0], "vllm": [10.0, 300.0, 10.0]})
    assert figure.ratio() == (0.1, 0.1, 0.2)
    assert figure.spread("kvproof") == (2.0, 1.0, 30.0)
    assert figure.as_dict()["ratio_spread"] == [0.1, 0.2]


def test_a_side_alone_has_no_ratio() -> None:
    figure = Figure(SCENARIOS[0], {"kvproof": [1.0]})
    assert figure.ratio() is None
    assert "ratio" not in figure.as_dict()


def test_the_sides_take_turns_in_going_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Recorded(Side):
        def __init__(self, name: str, python: str, module: str) -> None:
            self.name = name

        def samples(self, scenario: Scenario) -> list[float]:
            asked.append(self.name)
            return [3.0, 1.0, 2.0]

        def close(self) -> None:
            asked.append("closed")

    monkeypatch.setattr(comparing, "Side", Recorded)
    (figure,) = compare(SCENARIOS[:1], 2, Path(sys.executable))
    assert asked == ["vllm", "kvproof", "kvproof", "vllm", "closed", "closed"]
    assert figure.rounds == {"kvproof": [2.0, 2.0], "vllm": [2.0, 2.0]}


def test_a_side_that_ends_says_why() -> None:
    side = Side("vllm", sys.executable, "no_such_side")
    try:
        with pytest.raises(SideError, match=r"vllm ended:[\s\S]*no_such_side"):
            side.samples(SMALL[0])
    finally:
        side.close()


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is here")
def test_a_python_without_vllm_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scenarios, "SCENARIOS", SMALL[:1])
    assert main(["bench", "scheduler", "--vllm", sys.executable]) == 1
    assert "No module named 'vllm'" in capsys.readouterr().err


def test_the_command_prints_json_and_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scenarios, "SCENARIOS", SMALL[:2])
    monkeypatch.setenv("COLUMNS", "120")
    arguments = ["bench", "scheduler", "--rounds", "2"]
    assert main([*arguments, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [figure["scenario"] for figure in figures] == [each.title for each in SMALL[:2]]
    assert all(len(figure["rounds"]["kvproof"]) == 2 for figure in figures)
    assert main(arguments) == 0
    assert SMALL[0].title in capsys.readouterr().out
