"""`engine.trace(path)`: a real run's transitions conform to the declaration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kvproof.runtime.llm import LLM
from kvproof.runtime.sampling_params import SamplingParams
from kvproof.specs import cli
from kvproof.specs.cli import exits

from .conftest import MakeEngine

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
PREFIX = list(range(10, 42))


def eventful(engine: LLM) -> None:
    """Sessions, preemption, loads from the host tier, resets, a pause, both sleeps, an abort."""
    with engine.session() as session:
        session.send("hello", GREEDY).result()
        engine.generate([PREFIX, [*PREFIX, 5]], GREEDY)
        while any(holder.kind == "STORE" for holder in engine.holds()):
            pass
        assert not engine.reset_prefix_cache(), "the parked session refuses it"
        assert engine.reset_prefix_cache(reset_running_requests=True)
        engine.generate([[*PREFIX, 7]], GREEDY)
        assert engine.stats().tier_loaded_bytes > 0
        engine.generate([[n, *range(50, 70)] for n in range(10, 18)], LONG)
        session.send("he", GREEDY).result()
        for level in (1, 2):
            while not engine.sleep(level, mode="keep"):  # until the stores have ended
                pass
            assert engine.wake()
        for output in engine.stream("hello", LONG):
            assert not output.finished
            break
        running = engine.stream("well", LONG)
        assert engine.pause("keep")
        assert engine.resume()
        assert engine.reset_prefix_cache(reset_running_requests=True, wait=30)
        assert len(running.result().tokens) == 60
        session.send("o", GREEDY).result()


@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.long), 2])
def test_the_trace_of_an_eventful_run_conforms(
    make_engine: MakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int
) -> None:
    path = tmp_path / "trace.jsonl"
    engine = make_engine(
        host_tier_bytes=1 << 20, device_blocks=40, steps_in_flight=steps, check=False
    )
    engine.trace(path)
    eventful(engine)
    engine.shutdown()
    assert cli.main(["conform", "--json", str(path)]) == exits.OK
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["departure"] is None
    assert verdict["matched"] == verdict["lines"] > 200
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    events = {(line["machine"], line["event"]) for line in lines if line["answer"] == "go"}
    for event in ("preempt", "reclaim", "admit_remote", "transfer_landed", "chunk", "abort"):
        assert ("request", event) in events, event
    for event in ("sleep", "woke", "reset", "pause_reached", "resume", "shutdown", "drained"):
        assert ("engine", event) in events, event
    assert "hello" not in path.read_text(), "no prompt text"


def test_a_trace_that_was_tampered_with_departs(engine: LLM, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    engine.trace(path)
    engine.generate(["hello", "he"], GREEDY)
    engine.trace(None)
    lines = path.read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if json.loads(line)["event"] == "stop")
    path.write_text("\n".join(lines[:at] + lines[at + 1 :]) + "\n")
    assert cli.main(["conform", str(path)]) == exits.REFUTED


def test_a_trace_that_cannot_be_written_is_refused_and_the_engine_goes_on(
    engine: LLM, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="nowhere"):
        engine.trace(tmp_path / "nowhere" / "trace.jsonl")
    assert len(engine.generate("he", GREEDY)[0].tokens) == 6


def test_a_trace_goes_on_behind_the_half_line_of_a_process_that_was_killed(
    make_engine: MakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.jsonl"
    for _ in range(2):
        engine = make_engine()
        engine.trace(path)
        engine.generate(["hello"], GREEDY)
        engine.shutdown()
        whole = path.read_bytes()
        path.write_bytes(whole[:-20])
    assert cli.main(["conform", "--json", str(path)]) == exits.OK
    assert len(json.loads(capsys.readouterr().out)["cut_off"]) == 2
