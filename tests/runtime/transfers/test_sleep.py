"""Sleep gives memory back to the system, as one action, and nothing runs or is served stale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from kvproof.runtime.fake import FakeKV, FakeRunner
from kvproof.runtime.model.memory import HostArena
from kvproof.statemachine import EngineMode

from .engine_harness import SIZE, EngineHarness
from .torch_blocks import random_blocks, shape

STATM = Path("/proc/self/statm")
MEGABYTE = 1 << 20
WEIGHT_BYTES = 96 * MEGABYTE
CACHE_BLOCKS = 1024
PROMPT = list(range(10, 22))

Engine = Callable[..., EngineHarness]


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * 4096


class RealKV(FakeKV):
    """The fake device's prefixes, and beside them a cache of a real model's size."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.real = random_blocks(CACHE_BLOCKS, torch.device("cpu"), shape(12, 2, 32))
        self.fail_release = self.fail_restore = False

    @property
    def real_bytes(self) -> int:
        return self.real.num_blocks * self.real.bytes_per_block

    def release(self) -> None:
        if self.fail_release:
            raise RuntimeError("the device refuses")
        super().release()
        self.real.release()

    def restore(self) -> None:
        if self.fail_restore:
            raise MemoryError("taken meanwhile")
        super().restore()
        self.real.restore()


class RealRunner(FakeRunner):
    """A fake device with memory that can be measured: weights in an arena, and a real cache."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kv: RealKV = RealKV(self.num_blocks, self.block_size)
        self.arena = HostArena(WEIGHT_BYTES)
        self.arena.bytes.fill_(7)

    def release_weights(self, level: int) -> None:
        super().release_weights(level)
        self.arena.release()

    def restore_weights(self) -> None:
        super().restore_weights()
        self.arena.restore()
        self.arena.bytes.fill_(7)


@pytest.fixture
def h(monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineHarness]:
    monkeypatch.setattr("tests.runtime.transfers.engine_harness.FakeRunner", RealRunner)
    harness = EngineHarness()
    yield harness
    harness.close()


def device(h: EngineHarness) -> RealRunner:
    assert isinstance(h.runner, RealRunner)
    return h.runner


@pytest.mark.skipif(not STATM.exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize("level", [1, 2])
def test_resident_memory_falls_by_what_was_given_back(h: EngineHarness, level: int) -> None:
    h.add("first", PROMPT, 2)
    h.finish("first")
    h.settle()
    cache = device(h).kv.real_bytes
    awake = resident_bytes()
    assert h.core.sleep(level).result(0).success
    asleep = resident_bytes()
    assert awake - asleep >= (cache + WEIGHT_BYTES) * 4 // 5
    assert h.core.wake(["weights"]).success
    with_weights = resident_bytes()
    assert with_weights - asleep >= WEIGHT_BYTES * 4 // 5
    assert awake - with_weights >= cache * 4 // 5, "the cache sleeps on"
    assert h.core.wake(["cache"]).success
    h.add("second", PROMPT, 3)
    h.finish("second")
    assert h.told["second"].tokens == h.expected("second", 3)


@pytest.mark.parametrize("first", ["weights", "cache"])
def test_no_step_runs_before_both_are_back(h: EngineHarness, first: str) -> None:
    h.add("before", PROMPT, 2)
    h.finish("before")
    h.settle()
    assert h.core.sleep().result(0).success
    launched = len(h.runner.launched)
    h.add("meanwhile", [*PROMPT, 5], 3)
    for _ in range(3):
        h.turn()
    assert h.core.wake([first]).success
    assert h.core.is_sleeping()
    for _ in range(3):
        h.turn()
    assert len(h.runner.launched) == launched
    assert not h.loads, "no load into a cache that sleeps"
    assert h.core.wake().success
    assert h.core.lifecycle.mode == EngineMode.ACTIVE
    h.finish("meanwhile")
    assert h.told["meanwhile"].tokens == h.expected("meanwhile", 3)


def test_a_sleep_that_fails_leaves_everything_as_it_was(h: EngineHarness) -> None:
    h.add("first", PROMPT, 2)
    h.finish("first")
    h.settle()
    session = h.add("session", range(100, 106), 2, resumable=True)
    h.run(lambda: session.turns == 1)
    h.settle_transfers()
    before = (h.core.holds(), h.core.stats().blocks_cached)
    device(h).kv.fail_release = True
    result = h.core.sleep().result(0)
    assert (result.success, result.mode) == (False, "active")
    assert (h.core.holds(), h.core.stats().blocks_cached) == before
    assert h.runner.weights_resident
    assert h.runner.kv.resident
    h.add("second", [*PROMPT, 5], 3)
    h.finish("second")
    assert h.told["second"].tokens == h.expected("second", 3)
    assert h.core.stats().prefix_hits > 0


def test_a_wake_that_fails_sleeps_on_and_can_be_tried_again(h: EngineHarness) -> None:
    assert h.core.sleep().result(0).success
    device(h).kv.fail_restore = True
    result = h.core.wake()
    assert (result.success, result.mode, result.retryable) == (False, "sleeping", True)
    assert not h.runner.weights_resident
    device(h).kv.fail_restore = False
    assert h.core.wake().success
    h.add("first", PROMPT, 2)
    h.finish("first")
    assert h.told["first"].tokens == h.expected("first", 2)


def test_sleep_lets_go_of_all_and_sessions_go_on_with_the_same_tokens(h: EngineHarness) -> None:
    session = h.add("session", PROMPT, 4, resumable=True)
    h.run(lambda: session.turns == 1)
    running = h.add("running", range(100, 110), 12)
    h.run(lambda: len(running.tokens) >= 3)
    h.settle_transfers()
    assert h.core.sleep(1, "keep").result(0).success
    assert h.core.holds() == []
    assert h.core.wake().success
    h.core.add_chunk("session", [50, 51])
    h.finish("running")
    h.run(lambda: session.turns == 2)
    assert running.tokens == h.expected("running", 12)
    h.add("undisturbed", [*PROMPT, *session.tokens[:4], 50, 51], 4)
    assert session.tokens[4:] == h.expected("undisturbed", 4)


def test_after_new_weights_no_tier_serves_what_the_old_ones_computed(h: EngineHarness) -> None:
    h.add("first", PROMPT, 2)
    h.finish("first")
    h.settle()
    stored = h.tier.stats().blocks
    assert stored
    assert h.core.sleep(2).result(0).success
    assert h.core.weights_changed().success
    assert h.core.wake().success
    h.add("second", PROMPT, 2)
    h.finish("second")
    h.settle()
    stats = h.core.stats()
    assert (stats.prefix_hits, stats.tier_loaded_bytes) == (0, 0)
    assert h.tier.stats().blocks > stored, "the same prefix is stored again, under another key"
    assert stats.tier_stored_bytes == 2 * stored * SIZE * 8
