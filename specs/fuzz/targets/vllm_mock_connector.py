"""A remote KV store for vLLM that answers when the fuzzer says so: loads in, sends out.

It offers what `offers` says: whole blocks whenever it is asked, as a store does, and a prompt
that ends within a block once, as a prefill instance does. It starts a load for every allocation,
and sends the KV of the requests in `sends` when they finish. The bookkeeping is the least that
vLLM's connector interface asks for.
This module imports vLLM; it is imported by vLLM's own factory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)


@dataclass
class MockMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """What a step tells the worker: transfers to start, as (request, first position, blocks)."""

    loads: list[tuple[str, int, int, list[int]]] = field(default_factory=list)
    sends: list[tuple[str, list[int]]] = field(default_factory=list)


class MockConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """The scheduler's side of the mock; the worker's side is the target's fake device."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.block_size: int = vllm_config.cache_config.block_size
        self.offers: dict[str, int] = {}  # request -> tokens that the remote side has
        self.sends: set[str] = set()
        self._local: dict[str, int] = {}
        self._pending = MockMetadata()

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        offered = min(self.offers.get(request.request_id, 0), request.num_tokens)
        self._local[request.request_id] = num_computed_tokens
        more = offered - num_computed_tokens
        return (more, True) if more > 0 else (0, False)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens == 0:
            return
        start = self._local[request.request_id]
        end = start + num_external_tokens
        self.offers[request.request_id] -= end % self.block_size
        table = blocks.get_block_ids()[0]
        first, last = start // self.block_size, -(-end // self.block_size)
        self._pending.loads.append((request.request_id, start, end, table[first:last]))

    def queued(self) -> bool:
        """Whether the next step starts a transfer."""
        return bool(self._pending.loads or self._pending.sends)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        pending, self._pending = self._pending, MockMetadata()
        return pending

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        done = request.status.name in ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED")
        if not (done and request.request_id in self.sends and block_ids):
            return False, None
        self._pending.sends.append((request.request_id, list(block_ids)))
        return True, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, None]:
        return self.request_finished(request, block_ids[0])

    def reset_cache(self) -> bool:
        self.offers.clear()
        return True

    # The worker's side is never used.
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...
