"""vLLM's side: its scheduler in this process, driven as its engine core does, without a model."""

from __future__ import annotations

import gc
import time
from typing import Any

from ..fuzz.targets.vllm_environment import configurations
from .scenarios import BLOCK_SIZE, MAX_TOKENS, MODEL_LENGTH, SAMPLED, STOP, Scenario, prompts

#: Our names of the block hashes -> vLLM's (`--prefix-caching-hash-algo`).
HASHES = {"sha256": "sha256", "xxh3_128": "xxhash"}


class Vllm:
    """One scheduler of vLLM's, synchronous or asynchronous, and how its steps are driven."""

    def __init__(self, scenario: Scenario, running: int, blocks: int, mock: bool = False) -> None:
        config, kv_cache = configurations(
            blocks=blocks,
            block_size=BLOCK_SIZE,
            max_running=running,
            token_budget=max(8192, running * (scenario.prompt + BLOCK_SIZE)),
            max_length=MODEL_LENGTH,
            priority=False,
            asynchronous=scenario.depth > 1,
            connector="mock" if mock else "offload-all" if scenario.tier else "none",
            fail_policy="recompute",
            tier_blocks=2 * blocks,
            module="kvproof.specs.fuzz.targets.vllm_mock_connector",
        )
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.request import Request
        from vllm.v1.structured_output import StructuredOutputManager

        block_hash = get_hash_fn_by_name(HASHES[scenario.hash_algorithm])
        init_none_hash(block_hash)
        self._hasher = get_request_block_hasher(BLOCK_SIZE, block_hash)
        self._request, self._output = Request, ModelRunnerOutput
        self._greedy, self._one_token = (
            SamplingParams(max_tokens=most, temperature=0.0, stop_token_ids=[STOP])
            for most in (MAX_TOKENS, 1)
        )
        kind = AsyncScheduler if scenario.depth > 1 else Scheduler
        self.scheduler = kind(
            config,
            kv_cache,
            StructuredOutputManager(config),
            block_size=BLOCK_SIZE,
            hash_block_size=BLOCK_SIZE,
            log_stats=False,
        )
        self.depth = scenario.depth
        self.flying: list[Any] = []
        self.delivered = 0  # outputs for clients
        self._offloads = scenario.tier
        self._copied: list[int] = []  # jobs of the tier that end with the next step
        self.stored = 0
        self._answered = 0.0  # when the device's answer was there, by the thread's time

    def add(self, name: str, tokens: list[int], one_token: bool = False) -> None:
        """A greedy request, made and hashed as its front end and core do."""
        parameters = self._one_token if one_token else self._greedy
        request = self._request(
            name, tokens, parameters, None, arrival_time=time.time(), block_hasher=self._hasher
        )
        self.scheduler.add_request(request)

    def launch(self) -> None:
        """Schedule a step."""
        self.flying.append(self.scheduler.schedule())

    def finish(self) -> None:
        """Process the oldest step's output."""
        output = self.flying.pop(0)
        names = list(output.num_scheduled_tokens)
        requests = self.scheduler.requests
        sampled = []
        for name in names:
            request = requests[name]
            # The asynchronous scheduler counts the sampled token already.
            known = request.num_tokens + (request.num_output_placeholders if self.depth > 1 else 0)
            done = request.num_computed_tokens >= known - (1 if self.depth > 1 else 0)
            sampled.append([SAMPLED] if done else [])
        result = self._output(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=sampled,
            kv_connector_output=self._copies(output) if self._offloads else None,
        )
        self._answered = time.thread_time()
        told = self.scheduler.update_from_output(output, result)
        self.delivered += sum(len(outputs.outputs) for outputs in told.values())

    def _copies(self, output: Any) -> Any:
        """What its worker reports: a copy ends with the step after the one that asked for it."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
            OffloadingWorkerMetadata,
        )
        from vllm.v1.outputs import KVConnectorOutput

        report = KVConnectorOutput()
        report.kv_connector_worker_meta = OffloadingWorkerMetadata()
        for job in self._copied:
            report.kv_connector_worker_meta.mark_completed(job)
        self.stored += len(self._copied)
        self._copied = list(output.kv_connector_metadata.store_jobs)
        return report

    def steps(self, samples: int) -> list[float]:
        """Seconds of each of so many steps; making the device's answer does not count."""
        while len(self.flying) < self.depth - 1:
            self.launch()
        seconds = []
        for _ in range(samples):
            start = time.thread_time()
            self.launch()
            launched = time.thread_time() - start
            self.finish()
            seconds.append(launched + time.thread_time() - self._answered)
        return seconds


def decode(scenario: Scenario) -> list[float]:
    """A step of that many running requests."""
    vllm = _running(scenario, scenario.requests)
    seconds = vllm.steps(scenario.samples)
    assert len(vllm.scheduler.running) == scenario.requests
    assert vllm.delivered >= scenario.requests * scenario.samples
    assert (vllm.stored > 0) == scenario.tier
    return seconds


def _running(scenario: Scenario, number: int) -> Vllm:
    length = scenario.prompt + scenario.samples + 48
    vllm = Vllm(scenario, number, number * (length // BLOCK_SIZE + 2))
    for row, tokens in enumerate(prompts(scenario, number)):
        vllm.add(f"r{row}", tokens)
    vllm.launch()
    vllm.finish()
    vllm.steps(16)
    return vllm


def admit(scenario: Scenario) -> list[float]:
    """From a list of tokens to a scheduled step, for so many requests at once."""
    number = scenario.requests
    seconds = []
    for sample in range(scenario.samples):
        vllm = Vllm(scenario, number, number * (scenario.prompt // BLOCK_SIZE + 4))
        given = prompts(scenario, number)
        if scenario.hit:
            for row, tokens in enumerate(given):
                vllm.add(f"first{row}", [*tokens, 1], one_token=True)
            while vllm.scheduler.requests:
                vllm.launch()
                vllm.finish()
        start = time.thread_time()
        for row, tokens in enumerate(given):
            vllm.add(f"r{sample}-{row}", tokens)
        vllm.launch()
        seconds.append(time.thread_time() - start)
        assert len(vllm.scheduler.running) == number
        vllm.finish()
    return seconds


def blocked(scenario: Scenario) -> list[float]:
    """A step of eight running requests beside those that wait for remote KV."""
    # Room for a ninth one, or nobody else is looked at.
    vllm = Vllm(scenario, 9, 8 * 40 + scenario.requests * 8, mock=True)
    for row in range(8):
        vllm.add(f"running{row}", [10 + row] * (BLOCK_SIZE - 1))
    for _ in range(3):
        vllm.launch()
        vllm.finish()
    scheduler = vllm.scheduler
    for row, tokens in enumerate(prompts(scenario, scenario.requests)):
        scheduler.connector.offers[f"blocked{row}"] = scenario.prompt - BLOCK_SIZE
        vllm.add(f"blocked{row}", tokens)
    while any(r.status.name == "WAITING" for r in scheduler.requests.values()):
        vllm.launch()
        vllm.finish()
    seconds = vllm.steps(scenario.samples)
    assert len(scheduler.running) == 8
    states = [request.status.name for request in scheduler.requests.values()]
    assert states.count("WAITING_FOR_REMOTE_KVS") == scenario.requests
    return seconds


def reset(scenario: Scenario) -> list[float]:
    """Everybody is preempted and everything forgotten."""
    seconds = []
    for _ in range(scenario.samples):
        vllm = _running(scenario, scenario.requests)
        start = time.thread_time()
        done = vllm.scheduler.reset_prefix_cache(reset_running_requests=True)
        seconds.append(time.thread_time() - start)
        assert done
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
