"""The engine with its own loop, device thread and tier thread: in flight means in flight."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from kvproof.runtime.api import EngineConfig, RequestOutput
from kvproof.runtime.engine import Engine
from kvproof.runtime.fake import FakeRunner, expected_tokens
from kvproof.runtime.sampling_params import SamplingParams
from kvproof.runtime.transfers import Fault, FaultyConnector, HostTier

BLOCKS, SIZE = 64, 4


@dataclass
class Stream:
    """One request and what it was told; `done` is set at its end."""

    prompt: list[int]
    count: int
    tokens: list[int] = field(default_factory=list)
    first: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)

    def hear(self, output: RequestOutput) -> None:
        self.tokens += output.tokens
        if output.tokens:
            self.first.set()
        if output.finished:
            self.done.set()

    def assert_right(self) -> None:
        assert self.done.wait(60), "the stream does not end"
        assert self.tokens == expected_tokens(self.prompt, self.count)


class Served:
    """An engine over threads, whose loads begin when the test says so."""

    def __init__(self, **options: object) -> None:
        self.runner = FakeRunner(BLOCKS, SIZE)
        self.tier = HostTier(self.runner.kv, 400 * self.runner.kv.bytes_per_block)
        self.connector = FaultyConnector(self.tier, kv=self.runner.kv)
        settings: dict[str, object] = {
            "num_blocks": BLOCKS, "block_size": SIZE, "max_model_len": 200, "max_num_seqs": 8,
            "check": True,
        }  # fmt: skip
        self.engine = Engine(
            EngineConfig(**(settings | options)),  # type: ignore[arg-type]
            self.runner,
            self.connector,
        )
        self._number = 0

    def stream(self, prompt: list[int], count: int) -> Stream:
        self._number += 1
        stream = Stream(prompt, count)
        self.engine.add_request(
            f"r{self._number}",
            prompt,
            SamplingParams(max_tokens=count, temperature=0.0),
            on_output=stream.hear,
        )
        return stream

    def generate(self, prompt: list[int], count: int) -> Stream:
        stream = self.stream(prompt, count)
        assert stream.done.wait(60)
        return stream

    def loads(self) -> list[str]:
        return [holder.owner for holder in self.engine.holds() if holder.kind == "LOAD"]


@pytest.fixture
def served() -> Iterator[Served]:
    before = set(threading.enumerate())
    served = Served()
    yield served
    served.connector.release()
    served.engine.shutdown(drain=False)
    assert set(threading.enumerate()) <= before, "a thread is left"
    assert served.runner.corruptions == []


def prompts(count: int, length: int = 24) -> list[list[int]]:
    return [[100 * number + place for place in range(1, length + 1)] for number in range(count)]


def evicted(served: Served, wanted: list[list[int]]) -> None:
    """These prompts are in the tier and no longer on the device."""
    blocks = sum(len(prompt) // SIZE for prompt in wanted)
    for prompt in wanted:
        served.generate(prompt, 1)
    # A reset would forget what no store has begun on.
    while served.tier.stats().blocks < blocks:
        served.engine.stats()
    assert served.engine.reset_prefix_cache(True, wait=30.0).success


@pytest.mark.parametrize("force", [True, False])
def test_a_reset_under_a_load_names_it_and_succeeds_later(served: Served, force: bool) -> None:
    one, two = prompts(2)
    for round_ in range(3):
        evicted(served, [one])
        loaded = served.engine.stats().tier_loaded_bytes
        served.connector.next_load.append(Fault(hold=True))
        streams = [served.stream([*one, round_], 64), served.stream([*two, round_], 64)]
        assert streams[1].first.wait(60)
        refused = served.engine.reset_prefix_cache(force)
        assert not refused.success
        named = [holder.owner for holder in refused.holders if holder.kind == "LOAD"]
        assert len(named) == 1
        assert named == served.loads()
        served.connector.release()
        result = served.engine.reset_prefix_cache(force)
        while not result.success:
            assert result.retryable
            result = served.engine.reset_prefix_cache(force)
        if not force:
            assert all(stream.done.is_set() for stream in streams)
        for stream in streams:
            stream.assert_right()
        assert served.engine.stats().tier_loaded_bytes > loaded


def test_a_waiting_reset_under_a_load_succeeds_by_itself(served: Served) -> None:
    (one,) = prompts(1)
    evicted(served, [one])
    served.connector.next_load.append(Fault(hold=True))
    stream = served.stream([*one, 5], 32)
    answer = served.engine.begin_reset(True, wait=30.0)
    assert not answer.done()
    served.connector.release()
    assert answer.result(60).success
    stream.assert_right()


def test_many_streams_with_loads_stores_and_evictions_all_at_once_are_right(
    served: Served,
) -> None:
    rng = random.Random(1)
    shared = prompts(12, 40)
    running: list[Stream] = []
    for number in range(60):
        running.append(served.stream([*rng.choice(shared), 7000 + number], rng.randrange(1, 20)))
        if len(running) >= 12:
            running.pop(0).assert_right()
        if number % 20 == 19:
            served.engine.reset_prefix_cache(True)
    for stream in running:
        stream.assert_right()
    stats = served.engine.stats()
    assert stats.tier_loaded_bytes > 0
    assert stats.tier_stored_bytes > 0


def test_aborts_under_loads_leave_nothing(served: Served) -> None:
    one, two = prompts(2)
    evicted(served, [one, two])
    served.connector.next_load.extend([Fault(hold=True), Fault(hold=True)])
    for number, prompt in ((1, one), (2, two)):
        stream = served.stream([*prompt, number], 8)
        assert served.engine.abort(f"r{served._number}")
        assert stream.done.wait(60)
    assert served.engine.reset_prefix_cache(wait=30.0).success
    assert served.engine.holds() == []
    assert served.engine.stats().blocks_free == BLOCKS
