"""Our side: the engine's core on a device that takes no time."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...runtime.api import EngineConfig, RequestOutput
from ...runtime.engine import EngineCore
from ...runtime.protocols import (
    Int32Array,
    StepBatch,
    StepResult,
    TransferSignal,
)
from ...runtime.sampling_params import SamplingParams
from .scenarios import BLOCK_SIZE, MODEL_LENGTH, Scenario, prompts, serve

GREEDY = SamplingParams(max_tokens=None, temperature=0.0)
EOS = 2
TOKEN = 5


class NoStorage:
    """KV blocks that nobody reads."""

    num_blocks = 1
    bytes_per_block = 1

    def new_buffer(self, blocks: int) -> Any: ...
    def read(self, blocks: Int32Array, into: Any) -> None: ...
    def write(self, blocks: Int32Array, source: Any) -> None: ...
    def release(self) -> None: ...
    def restore(self) -> None: ...


class NoDevice:
    """Samples the same token for whoever asks, at once."""

    def __init__(self) -> None:
        self.kv = NoStorage()
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
        batch = self._batches.pop(step)
        sampled = np.where(batch.samples, np.int32(TOKEN), np.int32(-1))
        return StepResult(step, batch.rows, sampled)

    def release_weights(self, level: int) -> None: ...
    def restore_weights(self) -> None: ...
    def close(self) -> None: ...


class SilentTier:
    """Has every key, and never answers a load."""

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


def engine(scenario: Scenario, running: int, blocks: int, tier: bool = False) -> EngineCore:
    """A core large enough that nothing is short, with vLLM's default hash."""
    config = EngineConfig(
        num_blocks=blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=running,
        max_batched_tokens=max(8192, running * scenario.prompt + running),
        max_model_len=MODEL_LENGTH,
        steps_in_flight=scenario.depth,
        hash_algorithm="sha256",
        load_deadline=1e9,
        transfer_lease=1e9,
    )
    return EngineCore(config, NoDevice(), SilentTier() if tier else None, eos_token_ids=(EOS,))


def add(core: EngineCore, name: str, tokens: list[int], client: Client) -> None:
    """A greedy request."""
    core.add_request(name, tokens, GREEDY, on_output=client)


def decode_steps(core: EngineCore, samples: int, depth: int) -> list[float]:
    """Seconds of each of so many steps, from planning to the clients."""
    while core.in_flight < depth - 1:
        core.launch_step()
    seconds = []
    for _ in range(samples):
        start = time.thread_time()
        core.tick()
        core.launch_step()
        core.finish_step()
        seconds.append(time.thread_time() - start)
    return seconds


def decode(scenario: Scenario) -> list[float]:
    """A step of that many running requests."""
    core, client = _running(scenario, scenario.requests)
    seconds = decode_steps(core, scenario.samples, scenario.depth)
    assert len(core.lifecycle.running) == scenario.requests
    assert len(client.outputs) >= scenario.requests * scenario.samples
    return seconds


def _running(scenario: Scenario, number: int) -> tuple[EngineCore, Client]:
    length = scenario.prompt + scenario.samples + 32
    core = engine(scenario, number, number * (length // BLOCK_SIZE + 2))
    client = Client()
    for row, tokens in enumerate(prompts(scenario, number)):
        add(core, f"r{row}", tokens, client)
    core.launch_step()
    core.finish_step()
    decode_steps(core, 16, scenario.depth)
    return core, client


def admit(scenario: Scenario) -> list[float]:
    """From a list of tokens to a launched step, for so many requests at once."""
    number = scenario.requests
    seconds = []
    for sample in range(scenario.samples):
        core = engine(scenario, number, number * (scenario.prompt // BLOCK_SIZE + 4))
        client = Client()
        given = prompts(scenario, number)
        if scenario.hit:
            for row, tokens in enumerate(given):
                core.add_request(
                    f"first{row}", [*tokens, 1], SamplingParams(max_tokens=1), on_output=client
                )
            while core.lifecycle.live:
                core.tick()
                core.launch_step()
                core.finish_step()
        start = time.thread_time()
        for row, tokens in enumerate(given):
            add(core, f"r{sample}-{row}", tokens, client)
        core.tick()
        core.launch_step()
        seconds.append(time.thread_time() - start)
        assert len(core.lifecycle.running) == number
        core.finish_step()
    return seconds


def blocked(scenario: Scenario) -> list[float]:
    """A step of eight running requests beside those that wait for their load."""
    core = engine(scenario, 9, 8 * 40 + scenario.requests * 8, tier=True)
    client = Client()
    for row in range(8):
        # Less than a block: there is nothing to load.
        add(core, f"running{row}", [10 + row] * (BLOCK_SIZE - 1), client)
    core.tick()
    core.launch_step()
    core.finish_step()
    assert core.transfers is not None
    core.transfers.connector.lookup = lambda keys: 0  # type: ignore[method-assign]
    for _ in range(2):
        core.launch_step()
        core.finish_step()
    core.transfers.connector.lookup = len  # type: ignore[method-assign, assignment]
    for row, tokens in enumerate(prompts(scenario, scenario.requests)):
        add(core, f"blocked{row}", tokens, client)
    while len(core.lifecycle.waiting):
        core.tick()
        core.launch_step()
        core.finish_step()
    assert len(core.lifecycle.loading_rows) == scenario.requests
    seconds = decode_steps(core, scenario.samples, 1)
    assert len(core.lifecycle.running) == 8
    return seconds


def reset(scenario: Scenario) -> list[float]:
    """Everybody is preempted and everything forgotten."""
    seconds = []
    for _ in range(scenario.samples):
        core, _client = _running(scenario, scenario.requests)
        start = time.thread_time()
        result = core.reset_prefix_cache(reset_running_requests=True).result(0)
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


if __name__ == "__main__":
    serve(measure)
