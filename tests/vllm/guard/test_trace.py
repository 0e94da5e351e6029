"""Traces that the guard writes of a vLLM without known faults conform to the declaration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kvproof.specs.conform import conform
from kvproof.specs.conform.replay import read_lines
from kvproof.specs.fuzz.campaign import LENGTH
from kvproof.specs.fuzz.generation import Generator
from kvproof.specs.fuzz.run import explore
from kvproof.specs.fuzz.target import NewRequest, Settings

from ...specs.conform.mutants import judge
from ..test_targets import without_known_faults
from .targets import Observed, ObservedAsync

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]


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
