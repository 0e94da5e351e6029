"""vLLM's real Scheduler and AsyncScheduler as targets, in one process, on a fake device.

The scheduler, the block pool, the connector's scheduler side and the engine core's calls (pause,
sleep, reset, abort) are vLLM's own. The device is `vllm_device`, which knows no more than a real
worker does: what the scheduler's output says. The order of calls is the engine core's: with a
synchronous scheduler nothing but an abort comes between schedule and update; with an asynchronous
one a second step is scheduled while the first runs, and clients are served in between.
"""

from __future__ import annotations

import collections
import queue
from typing import Any, cast

from ..target import EOS, Feature, NewRequest, Promise, ResetAnswer, Settings, Snapshot, Target
from .vllm_device import Device, Launched
from .vllm_environment import configurations
from .vllm_observer import Hashes, Observer


class Executor:
    """What the engine core asks of its executor for pause and sleep."""

    def __init__(self, device: Device) -> None:
        self.is_sleeping = False
        self._device = device

    def sleep(self, level: int) -> None:
        self.is_sleeping = True
        self._device.kv.discard()

    def wake_up(self, tags: list[str] | None) -> None:
        self.is_sleeping = False
        self._device.kv.restore()

    def collective_rpc(self, method: str) -> None: ...

    def reset_mm_cache(self) -> None: ...

    def reset_encoder_cache(self) -> None: ...


class VllmScheduler(Target):
    """`kvproof fuzz --target vllm`: vLLM's synchronous scheduler."""

    asynchronous = False
    features = frozenset(
        {
            Feature.STOPS,
            Feature.SESSIONS,
            Feature.PRIORITY,
            Feature.RESET,
            Feature.RESET_RUNNING,
            Feature.RESET_CONNECTOR,
            Feature.PAUSE,
            Feature.SLEEP,
        }
    )
    promises = frozenset(
        {
            # reset_prefix_cache: "we can make sure the reset is successful", with the one
            # exception that its error message names: transfers.
            Promise.FORCED_RESET_WAITS_FOR_TRANSFERS_ONLY,
            # reset_connector: "external connectors clear alongside local caches".
            Promise.CONNECTOR_RESET_CLEARS_TIERS,
        }
    )
    connectors = ("none", "mock", "offload", "offload-all")
    calls_when_full = frozenset({"abort", "complete", "fail", "lose", "duplicate"})

    preamble_of_tests = """import os

os.environ.update(VLLM_LOGGING_LEVEL="CRITICAL", HF_HUB_OFFLINE="1", VLLM_PLUGINS="")"""

    @classmethod
    def needed_by_tests(cls, settings: Settings) -> tuple[str, ...]:
        if settings.connector != "mock":
            return ()
        return (f"{_mock_module()}:MockConnector",)

    @classmethod
    def scheduler_class(cls) -> type[Any]:
        """The class under test."""
        if cls.asynchronous:
            from vllm.v1.core.sched.async_scheduler import AsyncScheduler

            return cast("type[Any]", AsyncScheduler)
        from vllm.v1.core.sched.scheduler import Scheduler

        return cast("type[Any]", Scheduler)

    @classmethod
    def version(cls) -> str:
        from ....runtime.integrations.vllm_drift import installed_version

        return f"vLLM {installed_version()}"

    @classmethod
    def caveat(cls) -> str:
        from ....runtime.integrations.vllm_drift import installed_drift

        found = installed_drift().difference
        return f"{found}: a finding may be this target's fault" if found else ""

    @classmethod
    def features_with(cls, connector: str) -> frozenset[Feature]:
        features = cls.features
        if connector != "none":
            features |= {Feature.LOADS, Feature.STORES, Feature.LATE_SIGNALS}
        if connector == "mock":  # the OffloadingConnector asserts that every job succeeds
            features |= {Feature.FAILURES}
        return features

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        config, kv_cache = configurations(
            settings.blocks,
            settings.block_size,
            settings.max_running,
            settings.token_budget,
            settings.max_length,
            settings.priority,
            self.asynchronous,
            settings.connector,
            settings.fail_policy,
            settings.tier_blocks,
            _mock_module(),
        )
        from vllm.sampling_params import SamplingParams
        from vllm.v1.core import kv_cache_utils
        from vllm.v1.engine.core import EngineCoreProc
        from vllm.v1.request import Request
        from vllm.v1.structured_output import StructuredOutputManager

        self._sampling, self._request_type = SamplingParams, Request
        hashes = Hashes()
        kv_cache_utils.init_none_hash(hashes)
        self._hasher = kv_cache_utils.get_request_block_hasher(settings.block_size, hashes)
        self.scheduler = self.scheduler_class()(
            config,
            kv_cache,
            StructuredOutputManager(config),
            block_size=settings.block_size,
            hash_block_size=settings.block_size,
            log_stats=False,
        )
        self.device = Device(settings)
        self.flying: collections.deque[Launched] = collections.deque()
        # The engine core without its process, sockets and model: its calls are vLLM's own.
        core = self.core = object.__new__(EngineCoreProc)
        core.scheduler = self.scheduler
        core.model_executor = Executor(self.device)
        core.batch_queue = self.flying
        core.mm_receiver_cache = None
        core.engines_running = False
        core.output_queue = queue.Queue()
        core.aborts_queue = queue.Queue()
        core._idle_state_callbacks = []
        self._futures: list[Any] = []
        self.observer = Observer(core, self.device, hashes, self.flying)
        self._seen, self._delivered = self.observer.requests, self.observer.delivered
        self._clock = 0.0

    # Clients.
    def _make(
        self, request: str, prompt: tuple[int, ...], max_tokens: int, resumable: bool, priority: int
    ) -> Any:
        self._clock += 1.0
        parameters = self._sampling(max_tokens=max_tokens, stop_token_ids=[EOS])
        return self._request_type(
            request,
            list(prompt),
            parameters,
            None,
            arrival_time=self._clock,
            priority=priority,
            block_hasher=self._hasher,
            resumable=resumable,
        )

    def add(self, request: NewRequest) -> None:
        made = self._make(
            request.id, request.prompt, request.max_tokens, request.session, request.priority
        )
        self._seen[request.id] = made
        self._delivered[request.id] = []
        self.device.stop_every[request.id] = request.stop_every
        self.device.prompts[request.id] = request.prompt
        if self.settings.connector == "mock":
            if request.remote_tokens:
                self.scheduler.connector.offers[request.id] = request.remote_tokens
            if request.send:
                self.scheduler.connector.sends.add(request.id)
        self.core.add_request(made)

    def chunk(self, request: str, tokens: tuple[int, ...], max_tokens: int) -> None:
        made = self._make(request, tokens, max_tokens, True, self._seen[request].priority)
        self.core.add_request(made)
        self._seen[request] = self.scheduler.requests.get(request, self._seen[request])

    def close_input(self, request: str) -> None:
        # As AsyncLLM does it: a last request with one dummy token that is not resumable.
        made = self._make(request, (0,), 1, False, self._seen[request].priority)
        self.core.add_request(made)
        self._seen[request] = self.scheduler.requests.get(request, self._seen[request])

    def abort(self, request: str) -> None:
        self.core.abort_requests([request])

    # Steps.
    def step(self) -> bool:
        if not self.scheduler.has_requests():
            self._when_idle()
            return False
        self.flying.append(self.device.launch(self.scheduler.schedule()))
        return True

    def finish_step(self) -> None:
        launched = self.flying.popleft()
        result = self.device.execute(launched)
        outputs = self.scheduler.update_from_output(launched.output, result)
        for output in (o for one in outputs.values() for o in one.outputs):
            self._delivered[output.request_id] += output.new_token_ids
            self.device.delivered(output.request_id, launched, output.new_token_ids)
        self._when_idle()

    def _when_idle(self) -> None:
        if not self.core.has_work():
            self.core._notify_idle_state_callbacks()
        for future in [f for f in self._futures if f.done()]:
            self._futures.remove(future)
            future.result()

    # Transfers.
    def complete(self, transfer: str) -> None:
        self.device.complete(transfer)

    def fail(self, transfer: str, valid_blocks: int) -> None:
        self.device.fail(transfer, valid_blocks)

    def lose(self, transfer: str) -> None:
        self.device.lose(transfer)

    def duplicate(self, transfer: str) -> None:
        self.device.duplicate(transfer)

    # Administration.
    def reset(self, running: bool, connector: bool) -> ResetAnswer:
        done = self.core.reset_prefix_cache(running, connector)
        if done and (connector or self.settings.connector == "none"):
            # It claims every tier: what was computed before must never be attended to again.
            self.device.kv.new_epoch()
        return ResetAnswer(done)

    def pause(self, mode: str) -> None:
        self._await(self.core.pause_scheduler(mode, clear_cache=False))

    def resume(self) -> None:
        self.core.resume_scheduler()

    def sleep(self, level: int) -> bool:
        self._await(self.core.sleep(level, "keep"))
        return True

    def wake(self) -> bool:
        return bool(self.core.wake_up(None))

    def _await(self, future: Any) -> None:
        if future is not None:
            self._futures.append(future)
            self._when_idle()

    # What is observed.
    def snapshot(self) -> Snapshot:
        return self.observer.snapshot()


class VllmAsyncScheduler(VllmScheduler):
    """`kvproof fuzz --target vllm-async`: vLLM's asynchronous scheduler, two steps in flight."""

    asynchronous = True
    features = VllmScheduler.features | {Feature.OVERLAP}


def _mock_module() -> str:
    """Where vLLM finds the mock connector: beside this module, or in it when all is one file."""
    if "MockConnector" in globals():
        return __name__
    return __name__.rpartition(".")[0] + ".vllm_mock_connector"
