"""vLLM's OffloadingConnector as the guard sees it: its flushes, and the blocks that it knows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


def offloading(scheduler: Any) -> Any:
    """The scheduler side of vLLM's OffloadingConnector, or None with another connector."""
    found = getattr(scheduler.connector, "connector_scheduler", None)
    return found if type(found).__name__ == "OffloadingConnectorScheduler" else None


def forget_blocks(scheduler: Any, request: Any, kept: int) -> None:
    """The request's blocks are gone, or are told anew when it is scheduled with its whole table.

    vLLM's OffloadingConnector appends that table to the one that it knows, and stores what it
    knows when the request ends: blocks under other blocks' hashes. A key beyond the `kept` tokens
    stands for a token that was dropped.
    """
    connector = offloading(scheduler)
    status = connector and connector._req_status.get(request.request_id)
    if not status:
        return
    hashes = kept // scheduler.hash_block_size
    for config, state in zip(connector.config.kv_group_configs, status.group_states, strict=True):
        state.block_ids.clear()
        valid = hashes // config.hashes_per_chunk
        del state.offload_keys[valid:]
        state.next_stored_chunk_idx = min(state.next_stored_chunk_idx, valid)


def flush_stores(scheduler: Any, request: Any) -> None:
    """Have the worker finish the stores that still read a request's blocks before they are reused.

    vLLM does it for preempted requests, and the blocks of a waiting one are safe only while they
    are counted.
    """
    connector = offloading(scheduler)
    status = connector and connector._req_status.get(request.request_id)
    if status:
        jobs = {job for job in status.transfer_jobs if connector._jobs[job].is_store}
        connector._current_batch_jobs_to_flush.update(jobs)


@contextlib.contextmanager
def jobs_to_flush_set_aside(scheduler: Any) -> Iterator[None]:
    """The OffloadingConnector's reset asserts that no flush is pending; an earlier reset left one.

    Both have to reach the worker with the next step.
    """
    connector = offloading(scheduler)
    pending = set(connector._current_batch_jobs_to_flush) if connector else set()
    if connector:
        connector._current_batch_jobs_to_flush = set()
    try:
        yield
    finally:
        if connector:
            connector._current_batch_jobs_to_flush |= pending
