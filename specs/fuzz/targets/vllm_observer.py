"""What the fuzzer sees of the vLLM targets: the scheduler's own records as a `Snapshot`."""

from __future__ import annotations

import collections
from typing import Any

from ..target import BlockView, Hold, RequestView, Snapshot, TierEntry
from .vllm_device import Device, Launched

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


class Observer:
    """Sees one scheduler and its device, from the first request on."""

    def __init__(
        self, core: Any, device: Device, hashes: Hashes, flying: collections.deque[Launched]
    ) -> None:
        self.core = core
        self.scheduler = core.scheduler
        self.device = device
        self.hashes = hashes
        self.flying = flying
        self.requests: dict[str, Any] = {}  # all so far, by id
        self.delivered: dict[str, list[int]] = {}

    def snapshot(self) -> Snapshot:
        """The state now."""
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
                delivered=tuple(self.delivered[name]),
                finished=request.is_finished(),
                known=name in scheduler.requests,
            )
            for name, request in self.requests.items()
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
        return chain[-self.device.settings.block_size :]

    def _tier(self) -> tuple[TierEntry, ...]:
        if not self.device.settings.connector.startswith("offload"):
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
