"""Forced resets of vLLM that are decided before anything is done, and letting go of residents.

vLLM preempts what runs and then raises when blocks are still held. Here the holders are looked at
first. Those that a forced reset lets go of are running requests, resident waiting requests and
parked sessions; blocks of a launched step are handed over to it (vLLM's `deferred_frees`), so they
need not be waited for: they lose their hash and come back when the step is processed. Anything
else is a transfer, and refuses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from vllm.v1.request import RequestStatus

from . import vllm_tier as tier

PARKED = RequestStatus.WAITING_FOR_STREAMING_REQ
LOADING = RequestStatus.WAITING_FOR_REMOTE_KVS


def blocks_of(scheduler: Any, request: Any) -> set[int]:
    """The ids of the blocks in a request's table, all groups."""
    found: set[int] = set()
    for manager in scheduler.kv_cache_manager.coordinator.single_type_managers:
        table = manager.req_to_blocks.get(request.request_id) or ()
        found.update(block.block_id for block in table if not block.is_null)
    return found


def loads_in_flight(scheduler: Any) -> list[Any]:
    """The requests whose load has not ended, as far as the scheduler was told."""
    return [
        request
        for request in scheduler.requests.values()
        if request.status == LOADING
        and request.request_id not in scheduler.finished_recving_kv_req_ids
    ]


def refusing(scheduler: Any) -> list[str]:
    """Who refuses a forced reset: requests that load, finished ones whose blocks a transfer keeps.

    The last entry speaks of blocks that nobody known holds, if there are any.
    """
    found = [request.request_id for request in loads_in_flight(scheduler)]
    released: set[int] = set()
    for request in scheduler.requests.values():
        blocks = blocks_of(scheduler, request)
        if not request.is_finished():
            released |= blocks
        elif blocks:
            found.append(request.request_id)
    released |= deferred(scheduler)
    pool = scheduler.kv_cache_manager.block_pool
    used = {b.block_id for b in pool.blocks if b.ref_cnt > 0 and not b.is_null}
    if not found and used - released:
        found.append(f"{len(used - released)} blocks of an unknown holder")
    return found


def deferred(scheduler: Any) -> set[int]:
    """The blocks that launched steps keep."""
    return {b.block_id for _, blocks in scheduler.deferred_frees for b in blocks}


@contextlib.contextmanager
def steps_keep_their_blocks(scheduler: Any) -> Iterator[None]:
    """vLLM's own reset of the block pool, with the blocks of launched steps not in its way.

    They are in nobody's table, lose their hash like all others, and are freed when the step is
    processed.
    """
    pool = scheduler.kv_cache_manager.block_pool
    count = pool.get_num_free_blocks
    pool.get_num_free_blocks = lambda: count() + len(deferred(scheduler))
    try:
        yield
    finally:
        del pool.get_num_free_blocks


def promote_landed(scheduler: Any) -> list[Any]:
    """Take loads that have ended out of the state of loading, as the next `schedule` would."""
    landed = [
        request
        for request in list(scheduler.requests.values())
        if request.status == LOADING and request.request_id in scheduler.finished_recving_kv_req_ids
    ]
    for request in landed:
        scheduler._handle_blocked_waiting_request(request)
        scheduler.deferred_waiting.discard(request)
    return landed


def resident_waiting(scheduler: Any) -> list[Any]:
    """What waits or is parked and holds blocks, in the order in which vLLM would take it."""
    found = [
        request
        for queue in (scheduler.kv_holding_waiting, scheduler.waiting)
        for request in queue
        if request.status != LOADING and blocks_of(scheduler, request)
    ]
    return list({request.request_id: request for request in found}.values())


def reclaim(scheduler: Any, request: Any) -> None:
    """Let go of a parked or waiting request's blocks: it keeps its tokens and its state."""
    tier.flush_stores(scheduler, request)
    tier.forget_blocks(scheduler, request, request.num_tokens)
    scheduler._free_request_blocks(request)
    scheduler.encoder_cache_manager.free(request)
    scheduler._inflight_prefills.discard(request)
    request.num_computed_tokens = 0
    request.spec_token_ids = []
    scheduler.kv_holding_waiting.remove_requests([request])
    scheduler.waiting.remove_requests([request])
    scheduler.waiting.prepend_request(request)
