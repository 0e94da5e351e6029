"""Traces of the engine conform: under the fuzzer, and served, through the demo's trials.

Of such traces with one line dropped, doubled, swapped or altered each is caught, or what was
altered makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kvproof.specs.conform import conform
from kvproof.specs.conform.replay import KINDS, read_lines
from kvproof.specs.demo import scenario
from kvproof.specs.demo.client import Api
from kvproof.specs.demo.sibling import sibling
from kvproof.specs.demo.trials import control, flagged, waiting
from kvproof.specs.fuzz.generation import Generator, RandomDraw, plan
from kvproof.specs.fuzz.run import explore
from kvproof.specs.fuzz.target import Settings
from kvproof.specs.fuzz.targets.runtime import RuntimeEngine
from kvproof.statemachine.trace import parse_transition

from ...runtime.server.fake_device import fake_engine
from ...runtime.server.serving import Servers
from ...runtime.server.texts import byte_tokenizer
from .mutants import judge
from .traces import TraceMaker


class TracedEngine(RuntimeEngine):
    """The fuzzer's target, and a trace of each engine in `folder`."""

    folder: Path
    made = 0

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        type(self).made += 1
        self.core.trace(self.folder / f"{self.made}.jsonl")

    def close(self) -> None:
        self.core.trace(None)
        super().close()


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Sixteen runs, every second one with lost and repeated signals."""
    TracedEngine.folder = folder = tmp_path_factory.mktemp("fuzzed")
    for seed in range(16):
        draw = RandomDraw(seed)
        generator = Generator(plan(draw, TracedEngine, faults=seed % 2 == 0), draw)
        assert explore(TracedEngine, generator, 70)[1] is None
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The demo's kinds of trial, over HTTP, with a fake device."""
    path = tmp_path_factory.mktemp("served") / "demo.jsonl"
    tokenizer, servers = byte_tokenizer(), Servers()
    engine = fake_engine(tokenizer, token_seconds=0.001, load_delay=0.1, tier_bytes=1 << 22)
    server = servers.around(engine, tokenizer, dev=True, max_model_len=2048)
    engine.trace(path)
    try:
        bench = scenario.prepare(Api(server.url))
        list(scenario.warm_up(bench))
        for trial in (flagged, control, sibling, waiting):
            trial(bench, trial.__name__)  # whether it holds is asked in tests/demo
        engine.trace(None)
        yield path
    finally:
        servers.end()


def test_traces_of_the_fuzzed_engine_conform_together(fuzzed: list[Path]) -> None:
    verdict = conform(read_lines(fuzzed))
    assert verdict.departure is None
    assert verdict.matched > 2_000
    assert sum(len(rows) for rows in verdict.used_rows.values()) > 40


def test_the_engine_writes_lines_as_the_schema_does(fuzzed: list[Path]) -> None:
    lines = fuzzed[0].read_text().splitlines()
    assert lines
    assert [parse_transition(line).to_json() for line in lines] == lines


def test_the_trace_of_the_demo_conforms(served: Path) -> None:
    verdict = conform(read_lines([served]))
    assert verdict.departure is None
    assert verdict.matched > 2_000
    used = {
        row.trigger.name
        for number, row in enumerate(KINDS["request"].machine.table.rows)
        if verdict.used_rows["request"][number]
    }
    assert {"ADMIT_REMOTE", "TRANSFER_LANDED", "PREEMPT", "CHUNK", "RECLAIM"} <= used


@pytest.mark.parametrize(
    "source", ["walk", "fuzzed", pytest.param("served", marks=pytest.mark.long)]
)
def test_of_three_hundred_mutants_each_is_caught_or_equivalent(
    source: str, request: pytest.FixtureRequest
) -> None:
    if source == "walk":
        lines = TraceMaker(seed=6).walk(1_000)
    else:
        files = request.getfixturevalue(source)
        path = max(files, key=lambda file: file.stat().st_size) if source == "fuzzed" else files
        lines = path.read_text().splitlines()
    found = judge(lines, 300, seed=7)
    missed = {kind: count for (kind, verdict), count in found.items() if verdict == "missed"}
    assert missed == {}
    assert found.total() == 300
    equivalent = {kind for kind, verdict in found if verdict == "equivalent"}
    # Nothing else in a line is without effect.
    assert equivalent <= {"alter ask", "alter event", "alter engine", "alter id"}
    assert sum(count for (_, verdict), count in found.items() if verdict == "caught") > 240
