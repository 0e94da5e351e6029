"""Calls to the engine as a whole, on a real model: reset, pause, sleep, holds, trace."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kvproof.runtime.api import RejectedCallError
from kvproof.runtime.llm import LLM
from kvproof.runtime.model.load import LoadedModel
from kvproof.runtime.sampling_params import SamplingParams
from kvproof.runtime.streams import Stream

from .conftest import MakeEngine
from .driving import engine_of

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
STATM = Path("/proc/self/statm")


def running(engine: LLM, prompt: str = "hello world") -> Stream:
    """A stream that has given its first token."""
    stream = engine.stream(prompt, LONG)
    while engine.stats().generation_tokens == 0:
        pass
    return stream


def test_a_refused_reset_is_falsy_and_names_its_holder(engine: LLM) -> None:
    stream = running(engine)
    assert engine.pause("keep")  # so that the request cannot end meanwhile
    result = engine.reset_prefix_cache()
    assert not result
    (holder,) = result.holders
    assert (holder.kind, holder.state) == ("REQUEST", "RUNNING")
    assert holder.force_would_let_go
    assert engine.resume()
    assert len(stream.result().tokens) == 100
    assert engine.reset_prefix_cache()


def test_a_waiting_reset_is_done_once_its_holder_is(engine: LLM) -> None:
    stream = running(engine)
    result = engine.reset_prefix_cache(wait=30)
    assert result
    assert result.tiers == ("device",)
    assert stream.ended


def test_a_forced_reset_changes_no_token(engine: LLM) -> None:
    (expected,) = engine.generate("hello world", LONG)
    stream = running(engine)
    assert engine.reset_prefix_cache(reset_running_requests=True)
    assert stream.result().tokens == expected.tokens


def test_after_a_reset_nothing_is_a_hit(engine: LLM) -> None:
    prompt = list(range(10, 40))
    engine.generate([prompt], GREEDY)
    assert engine.generate([prompt], GREEDY)[0].cached_tokens > 0
    assert engine.reset_prefix_cache()
    assert engine.generate([prompt], GREEDY)[0].cached_tokens == 0


@pytest.mark.parametrize("mode", ["wait", "keep"])
def test_a_pause_loses_no_token(engine: LLM, mode: str) -> None:
    (expected,) = engine.generate("hello world", LONG)
    stream = running(engine)
    assert engine.pause(mode)
    assert engine.is_paused()
    launched = engine.stats().steps_launched
    waiting = engine.stream("he", GREEDY)
    assert engine.stats().steps_launched == launched
    assert engine.resume()
    assert stream.result().tokens == expected.tokens
    assert len(waiting.result().tokens) == 6


def test_a_pause_that_aborts_names_whom_it_ended(engine: LLM) -> None:
    stream = running(engine)
    result = engine.pause("abort")
    assert list(result.ended) == [stream.result().request_id]
    assert engine.resume()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda engine: engine.pause("slowly"),
        lambda engine: engine.sleep(3),
        lambda engine: engine.weights_changed(),
        lambda engine: engine.wake(["memory"]),
    ],
)
def test_a_wrong_call_is_rejected_and_changes_nothing(engine: LLM, wrong: object) -> None:
    with pytest.raises(RejectedCallError):
        wrong(engine)  # type: ignore[operator]
    assert engine.stats().mode == "active"
    assert len(engine.generate("he", GREEDY)[0].tokens) == 6


@pytest.mark.parametrize("level", [1, 2])
def test_tokens_after_a_sleep_are_as_before(engine: LLM, level: int) -> None:
    (expected,) = engine.generate("hello world", LONG)
    stream = running(engine)
    assert engine.sleep(level, mode="keep")
    assert engine.is_sleeping()
    with pytest.raises(RejectedCallError, match="wake it first"):
        engine.resume()
    assert engine.wake()
    assert stream.result().tokens == expected.tokens


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * 4096


@pytest.mark.skipif(not STATM.exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize("level", [pytest.param(1, marks=pytest.mark.long), 2])
def test_four_fifths_of_the_real_models_bytes_are_given_back_by_a_sleep(
    smollm2: LoadedModel, level: int
) -> None:
    torch.set_num_threads(1)
    blocks = 64
    prompt = "The capital of France is"
    with engine_of(smollm2, num_blocks=blocks) as engine:
        (before,) = engine.generate(prompt, GREEDY)
        cache = blocks * engine.core.runner.kv.bytes_per_block
        engine.core.runner.kv.blocks.fill_(0)  # type: ignore[attr-defined]  # all of it resident
        awake = resident_bytes()
        assert engine.sleep(level)
        given_back = awake - resident_bytes()
        assert given_back >= (smollm2.weights.nbytes + cache) * 4 // 5
        assert engine.wake(["weights"])
        assert engine.is_sleeping()
        assert engine.wake(["cache"])
        (after,) = engine.generate(prompt, GREEDY)
        assert after.tokens == before.tokens
        assert after.cached_tokens == 0


def test_holds_are_empty_when_nothing_is_left(make_engine: MakeEngine) -> None:
    engine = make_engine(host_tier_bytes=1 << 20)
    engine.generate([list(range(10, 50)), list(range(20, 60))], GREEDY)
    while engine.holds():  # stores end by themselves
        pass
    assert engine.stats().tier_stored_bytes > 0
    assert engine.reset_prefix_cache(reset_connector=True).tiers == ("device", "connector")
