"""Our side: the engine's core on a device that takes no time."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...runtime.api import EngineConfig, RequestOutput
from ...runtime.engine import EngineCore
from ...runtime.fake import FakeKV
from ...runtime.protocols import (
    Connector,
    Int32Array,
    KVStorage,
    StepBatch,
    StepResult,
    TransferSignal,
)
from ...runtime.sampling_params import SamplingParams
from ...runtime.transfers import HostTier
from .scenarios import BLOCK_SIZE, MAX_TOKENS, MODEL_LENGTH, SAMPLED, STOP, Scenario, prompts

GREEDY, ONE_TOKEN = (
    SamplingParams(max_tokens=most, temperature=0.0, stop_token_ids=(STOP,))
    for most in (MAX_TOKENS, 1)
)


class NoStorage:
    """KV blocks that nobody reads."""

    bytes_per_block = 1

    def __init__(self, blocks: int) -> None:
        self.num_blocks = blocks

    def new_buffer(self, blocks: int) -> Any: ...
    def read(self, blocks: Int32Array, into: Any) -> None: ...
    def write(self, blocks: Int32Array, source: Any) -> None: ...
    def release(self) -> None: ...
    def restore(self) -> None: ...


class NoDevice:
    """Samples the same token for whoever asks, at once."""

    def __init__(self, kv: KVStorage) -> None:
        self.kv = kv
        self.seconds = 0.0  # spent on making answers: a device's work, not a scheduler's
        self._batches: dict[int, StepBatch] = {}

    def bind(self, row: int, params: SamplingParams, tokens: Int32Array, outputs: int = 0) -> None:
        pass

    def unbind(self, row: int) -> None:
        pass

    def launch(self, batch: StepBatch) -> None:
        self._batches[batch.step] = batch

    def done(self, step: int) -> bool:
        return True

    def collect(self, step: int, timeout: float | None = None) -> StepResult:
        start = time.thread_time()
        batch = self._batches.pop(step)
        sampled = np.where(batch.samples, np.int32(SAMPLED), np.int32(-1))
        result = StepResult(step, batch.rows, sampled)
        self.seconds += time.thread_time() - start
        return result

    def release_weights(self, level: int) -> None: ...
    def restore_weights(self) -> None: ...
    def close(self) -> None: ...


class SilentTier:
    """Has every key, so that nothing is stored, and never answers a load."""

    def lookup(self, keys: Sequence[bytes]) -> int:
        return len(keys)

    def start_load(self, transfer: int, keys: Sequence[bytes], blocks: Int32Array) -> None: ...
    def start_store(self, transfer: int, keys: Sequence[bytes], blocks: Int32Array) -> None: ...

    def poll(self) -> Sequence[TransferSignal]:
        return ()

    def cancel(self, transfer: int) -> None: ...

    def reset(self) -> bool:
        return True

    def close(self) -> None: ...


class Client:
    """Takes the outputs."""

    def __init__(self) -> None:
        self.outputs: list[RequestOutput] = []

    def __call__(self, output: RequestOutput) -> None:
        self.outputs.append(output)


class Ours:
    """One core, large enough that nothing is short."""

    def __init__(self, scenario: Scenario, running: int, blocks: int, silent: bool = False) -> None:
        config = EngineConfig(
            num_blocks=blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=running,
            max_batched_tokens=max(8192, running * (scenario.prompt + BLOCK_SIZE)),
            max_model_len=MODEL_LENGTH,
            steps_in_flight=scenario.depth,
            hash_algorithm=scenario.hash_algorithm,
            load_deadline=1e9,
            transfer_lease=1e9,
        )
        self.device = NoDevice(FakeKV(blocks, BLOCK_SIZE) if scenario.tier else NoStorage(blocks))
        kv = self.device.kv
        self.tier: Connector | None = SilentTier() if silent else None
        if scenario.tier:
            self.tier = HostTier(kv, 2 * blocks * kv.bytes_per_block)
        self.core = EngineCore(config, self.device, self.tier)
        self.client = Client()
        self.depth = scenario.depth

    def add(self, name: str, tokens: list[int], one_token: bool = False) -> None:
        """A greedy request."""
        params = ONE_TOKEN if one_token else GREEDY
        self.core.add_request(name, tokens, params, on_output=self.client)

    def step(self) -> None:
        """What the engine's loop does in one turn: what is due, a launch, the oldest result."""
        self.core.tick()
        self.core.launch_step()
        self.core.finish_step()

    def steps(self, samples: int) -> list[float]:
        """Seconds of each of so many steps; making the device's answer does not count."""
        while self.core.in_flight < self.depth - 1:
            self.core.launch_step()
        seconds = []
        for _ in range(samples):
            answers = self.device.seconds
            start = time.thread_time()
            self.step()
            seconds.append(time.thread_time() - start - (self.device.seconds - answers))
        return seconds


def decode(scenario: Scenario) -> list[float]:
    """A step of that many running requests."""
    ours = _running(scenario, scenario.requests)
    seconds = ours.steps(scenario.samples)
    if isinstance(ours.tier, HostTier):
        # What was handed to the worker counts: its thread may not have run yet.
        stats = ours.tier.stats()
        assert stats.jobs or stats.stored_bytes
        ours.tier.close()
    assert len(ours.core.lifecycle.running) == scenario.requests
    assert len(ours.client.outputs) >= scenario.requests * scenario.samples
    return seconds


def _running(scenario: Scenario, number: int) -> Ours:
    length = scenario.prompt + scenario.samples + 48
    ours = Ours(scenario, number, number * (length // BLOCK_SIZE + 2))
    for row, tokens in enumerate(prompts(scenario, number)):
        ours.add(f"r{row}", tokens)
    ours.step()
    ours.steps(16)
    return ours


def admit(scenario: Scenario) -> list[float]:
    """From a list of tokens to a launched step, for so many requests at once."""
    number = scenario.requests
    seconds = []
    for sample in range(scenario.samples):
        ours = Ours(scenario, number, number * (scenario.prompt // BLOCK_SIZE + 4))
        core = ours.core
        given = prompts(scenario, number)
        if scenario.hit:
            for row, tokens in enumerate(given):
                ours.add(f"first{row}", [*tokens, 1], one_token=True)
            while core.lifecycle.live:
                ours.step()
        start = time.thread_time()
        for row, tokens in enumerate(given):
            ours.add(f"r{sample}-{row}", tokens)
        core.tick()
        core.launch_step()
        seconds.append(time.thread_time() - start)
        assert len(core.lifecycle.running) == number
        assert (core.stats().prefix_hits > 0) == scenario.hit
        core.finish_step()
    return seconds


def blocked(scenario: Scenario) -> list[float]:
    """A step of eight running requests beside those that wait for their load."""
    ours = Ours(scenario, 9, 8 * 40 + scenario.requests * 8, silent=True)
    lifecycle = ours.core.lifecycle
    for row in range(8):
        # Less than a block: there is nothing to load.
        ours.add(f"running{row}", [10 + row] * (BLOCK_SIZE - 1))
    for _ in range(3):
        ours.step()
    for row, tokens in enumerate(prompts(scenario, scenario.requests)):
        ours.add(f"blocked{row}", tokens)
    while len(lifecycle.waiting):
        ours.step()
    assert len(lifecycle.loading_rows) == scenario.requests
    seconds = ours.steps(scenario.samples)
    assert len(lifecycle.running) == 8
    return seconds


def reset(scenario: Scenario) -> list[float]:
    """Everybody is preempted and everything forgotten."""
    seconds = []
    for _ in range(scenario.samples):
        ours = _running(scenario, scenario.requests)
        start = time.thread_time()
        result = ours.core.reset_prefix_cache(reset_running_requests=True).result(0)
        seconds.append(time.thread_time() - start)
        assert result.success
    return seconds


MEASURES = {"decode": decode, "admit": admit, "blocked": blocked, "reset": reset}


def measure(scenario: Scenario) -> list[float]:
    """One round of a scenario, in seconds."""
    gc.collect()
    gc.disable()
    try:
        return MEASURES[scenario.name](scenario)
    finally:
        gc.enable()
