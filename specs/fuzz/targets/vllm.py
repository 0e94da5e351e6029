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

from ..target import (
    EOS,
    BlockView,
    Feature,
    Hold,
    NewRequest,
    Promise,
    RequestView,
    ResetAnswer,
    Settings,
    Snapshot,
    Target,
    TierEntry,
)
from .vllm_device import Device, Launched
from .vllm_environment import configurations

_CONTAINERS = (("running", "running"), ("waiting", "waiting"), ("kv_holding_waiting", "waiting"))
_BLOCKED = (
    "WAITING_FOR_REMOTE_KVS",
    "WAITING_FOR_STREAMING_REQ",
    "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR",
)


class Hashes:
    """vLLM's block hash function, made so that a hash can be read back."""

    NONE = b"\0" * 32

    def __init__(self) -> None:
        self._ids: dict[Any, bytes] = {}
        self._inputs: dict[bytes, Any] = {}

    def __call__(self, value: Any) -> bytes:
        if not isinstance(value, tuple):
            return self.NONE
        found = self._ids.get(value)
        if found is None:
            found = self._ids[value] = (len(self._ids) + 1).to_bytes(32, "big")
            self._inputs[found] = value
        return found

    def tokens(self, value: bytes) -> tuple[int, ...]:
        """The tokens of the whole prefix that a block hash stands for."""
        parts: list[tuple[int, ...]] = []
        while value in self._inputs:
            value, tokens, _ = self._inputs[value]
            parts.append(tokens)
        return tuple(token for part in reversed(parts) for token in part)


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
        self.hashes = Hashes()
        kv_cache_utils.init_none_hash(self.hashes)
        self._hasher = kv_cache_utils.get_request_block_hasher(settings.block_size, self.hashes)
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
        self._seen: dict[str, Any] = {}
        self._delivered: dict[str, list[int]] = {}
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
        scheduler, device = self.scheduler, self.device
        manager = scheduler.kv_cache_manager
        pool = manager.block_pool
        tables = manager.coordinator.single_type_managers[0].req_to_blocks
        tables = {r: [b.block_id for b in table] for r, table in tables.items() if table}
        holds = [Hold(owner, "REQUEST", tuple(table)) for owner, table in tables.items()]
        holds += [
            Hold(f"step/{fence}", "STEP", tuple(b.block_id for b in blocks))
            for fence, blocks in scheduler.deferred_frees
        ]
        places: dict[str, list[str]] = collections.defaultdict(list)
        for attribute, name in _CONTAINERS:
            for request in getattr(scheduler, attribute):
                blocked = name == "waiting" and request.status.name in _BLOCKED
                places[request.request_id].append("blocked" if blocked else name)
        requests = tuple(
            RequestView(
                id=name,
                state=request.status.name,
                containers=tuple(places.pop(name, ())),
                blocks=tuple(tables.get(name, ())),
                computed=request.num_computed_tokens,
                tokens=tuple(request._all_token_ids),
                delivered=tuple(self._delivered[name]),
                finished=request.is_finished(),
                known=name in scheduler.requests,
            )
            for name, request in self._seen.items()
        )
        free = {block.block_id for block in pool.free_block_queue.get_all_free_blocks()}
        written = device.being_written()
        blocks = tuple(
            BlockView(
                id=block.block_id,
                count=block.ref_cnt,
                free=block.block_id in free,
                content=device.kv.content(block.block_id),
                cached_as=self._cached_as(block.block_hash),
                being_written=block.block_id in written,
            )
            for block in pool.blocks
            if not block.is_null
        )
        asleep = self.core.model_executor.is_sleeping
        paused = scheduler.pause_state.name != "UNPAUSED"
        return Snapshot(
            requests=requests,
            blocks=blocks,
            holds=tuple(holds),
            transfers=device.transfers(),
            tiers=self._tier(),
            steps_in_flight=len(self.flying),
            touched=device.touched(steps=scheduler.defer_block_free),
            misreads=tuple(device.misreads),
            counters=self._counters(),
            mode="SLEEPING" if asleep else "PAUSED" if paused else "ACTIVE",
            asleep=("weights", "cache") if asleep else (),
        )

    def _cached_as(self, block_hash: bytes | None) -> tuple[int, ...] | None:
        if block_hash is None:
            return None
        tokens = self.hashes.tokens(block_hash[:32])
        chain = self.device.kv.prefixes.chain(tokens, self.device.kv.root)
        return chain[-self.settings.block_size :]

    def _tier(self) -> tuple[TierEntry, ...]:
        if not self.settings.connector.startswith("offload"):
            return ()
        manager = self.scheduler.connector.connector_scheduler.manager
        return tuple(
            TierEntry("host", self.device.host_content(chunk.chunk_id), cached_as)
            for key, chunk in manager._policy.chunks.items()
            if chunk.is_ready and (cached_as := self._cached_as(key))
        )

    def _counters(self) -> tuple[tuple[str, int, int], ...]:
        scheduler = self.scheduler
        states = [request.status.name for request in scheduler.requests.values()]
        parked = states.count("WAITING_FOR_STREAMING_REQ")
        counters = [
            (
                "num_waiting_for_streaming_input",
                scheduler.num_waiting_for_streaming_input,
                parked,
            )
        ]
        if scheduler.pause_state.name == "UNPAUSED":
            live = sum(not name.startswith("FINISHED") for name in states)
            counters.append(
                (
                    "get_num_unfinished_requests()",
                    scheduler.get_num_unfinished_requests(),
                    live - parked,
                )
            )
        for name, request in scheduler.requests.items():
            scheduled = sum(f.output.num_scheduled_tokens.get(name, 0) for f in self.flying)
            if not request.is_finished():
                counters.append(
                    (f"num_in_flight_tokens of {name}", request.num_in_flight_tokens, scheduled)
                )
        return tuple(counters)


class VllmAsyncScheduler(VllmScheduler):
    """`kvproof fuzz --target vllm-async`: vLLM's asynchronous scheduler, two steps in flight."""

    asynchronous = True
    features = VllmScheduler.features | {Feature.OVERLAP}


def _mock_module() -> str:
    """Where vLLM finds the mock connector: beside this module, or in it when all is one file."""
    if "MockConnector" in globals():
        return __name__
    return __name__.rpartition(".")[0] + ".vllm_mock_connector"
