"""Traces that the guard writes of vLLM conform, or show a known fault and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kvproof.specs.conform import conform
from kvproof.specs.conform.replay import read_lines
from kvproof.specs.fuzz.campaign import LENGTH
from kvproof.specs.fuzz.generation import Generator, RandomDraw, plan
from kvproof.specs.fuzz.run import explore, replay
from kvproof.specs.fuzz.target import NewRequest, Settings
from kvproof.specs.fuzz.targets import load
from kvproof.statemachine import RequestEvent, states

from ...specs.conform.mutants import judge
from ..findings import RECORDED, Recorded
from ..test_targets import without_known_faults
from .targets import Observed, ObservedAsync, departures

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

#: Part of `session-longer-than-the-model`: vLLM parks such a session, the declaration ends it.
PARKED_AT_FULL_LENGTH = (
    f"state is {states.WAITING_FOR_STREAMING_REQ}, "
    f"the lines before left it at {states.FINISHED_LENGTH_CAPPED}"
)

EVENTS = {event.name for event in RequestEvent}


class Traced(Observed):
    """Its trace is complete when it is closed."""

    def close(self) -> None:
        self.scheduler._guard_watch("close_trace")


class TracedAsync(Traced, ObservedAsync):
    """The same with two steps in flight."""


@pytest.mark.parametrize("target", [Traced, TracedAsync])
def test_traces_conform(target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.jsonl"
    monkeypatch.setenv("KVPROOF_TRACE", str(path))
    lines = 0
    for seed in range(8):
        chosen, draw = without_known_faults(seed, target)
        explore(target, Generator(chosen, draw), LENGTH)
        verdict = conform(read_lines([path]))
        assert verdict.departure is None
        lines += verdict.matched
    assert lines > 300


@pytest.mark.parametrize("name", ["vllm-guarded", "vllm-guarded-async"])
def test_traces_of_the_repairing_guard_conform_with_sessions_resets_and_pauses(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.jsonl"
    monkeypatch.setenv("KVPROOF_TRACE", str(path))
    kind, lines = load(name), 0
    target = type("Traced", (kind,), {"close": Traced.close})
    for seed in range(20):
        draw = RandomDraw(seed)
        chosen = replace(plan(draw, target, faults=False), stretch=False)
        assert explore(target, Generator(chosen, draw), LENGTH)[1] is None
        verdict = conform(read_lines([path]))
        found = verdict.departure
        assert found is None or found.what == PARKED_AT_FULL_LENGTH, found
        lines += verdict.matched
    assert lines > 1_500


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded.name)
def test_the_trace_of_a_documented_fault_departs_where_the_guard_says_so(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.jsonl"
    monkeypatch.setenv("KVPROOF_TRACE", str(path))
    departures()
    target = TracedAsync if recorded.target.endswith("async") else Traced
    assert replay(target, recorded.settings, recorded.operations) is not None
    said = [what for what in departures() if what.partition(" in ")[0].upper() in EVENTS]
    verdict = conform(read_lines([path]))
    assert verdict.matched > 0
    assert (verdict.departure is not None) == bool(said), (verdict.departure, said)


def test_of_two_hundred_mutants_of_a_trace_each_is_caught_or_equivalent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, longest = tmp_path / "trace.jsonl", ""
    monkeypatch.setenv("KVPROOF_TRACE", str(path))
    for seed in range(6):
        chosen, draw = without_known_faults(seed, TracedAsync)
        explore(TracedAsync, Generator(chosen, draw), LENGTH)
        longest = max(longest, path.read_text(), key=len)
    found = judge(longest.splitlines(), 200, seed=7)
    missed = {kind: count for (kind, verdict), count in found.items() if verdict == "missed"}
    assert missed == {}
    assert sum(count for (_, verdict), count in found.items() if verdict == "caught") > 150


def test_a_chunk_that_vllm_should_have_refused_is_in_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.jsonl"
    monkeypatch.setenv("KVPROOF_TRACE", str(path))
    target = Traced(Settings(blocks=2, max_length=8))
    target.add(NewRequest("s", (1, 2, 3, 4, 5), 1, session=True))
    target.step()
    target.finish_step()
    target.chunk("s", (60, 61, 62, 63), 1)
    target.step()
    target.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    refused = next(line for line in lines if line["event"] == "chunk")
    assert refused["answer"] == "reject"
    assert refused["why"] == "longer than the model or the pool can ever take"
    verdict = conform(read_lines([path]))
    assert verdict.departure is not None
    assert verdict.departure.line == lines.index(refused) + 2
