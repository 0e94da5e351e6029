"""Streaming-input sessions of vLLM: their length, their queue, their blocks in the offload tier."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from .vllm_reset import PARKED, blocks_of

#: How many ended sessions are remembered, so that a late chunk is not taken for a new request.
REMEMBERED = 4096


def kept_tokens(session: Any) -> int:
    """Tokens that the next turn starts from: vLLM drops a turn's last sampled token.

    A session that let go of its blocks (preempted when its turn ended, or reclaimed) has no
    computed tokens; by them vLLM would drop every token of its earlier turns.
    """
    if session.num_computed_tokens:
        return int(session.num_computed_tokens)
    return int(session.num_tokens) - (1 if session.num_output_tokens else 0)


@contextlib.contextmanager
def tokens_kept(session: Any) -> Iterator[None]:
    """While a turn begins: a session without blocks keeps its tokens."""
    if session.num_computed_tokens:
        yield
        return
    session.num_computed_tokens = kept_tokens(session)
    try:
        yield
    finally:
        session.num_computed_tokens = 0


def fits(session: Any, tokens: int, scheduler: Any) -> bool:
    """Whether the session and that many tokens more leave room for one sampled token."""
    total = kept_tokens(session) + tokens
    pool = scheduler.kv_cache_manager.block_pool
    return bool(
        total < scheduler.max_model_len
        and total <= (pool.num_gpu_blocks - 1) * scheduler.block_size
    )


def in_no_queue(scheduler: Any, request: Any) -> bool:
    """Whether a live request is found nowhere."""
    return not (
        request.is_finished()
        or request in scheduler.running
        or request in scheduler.waiting
        or request in scheduler.kv_holding_waiting
    )


def parked_without_blocks(scheduler: Any) -> int:
    """Parked sessions in the queue of those that hold nothing."""
    return sum(request.status == PARKED for request in scheduler.waiting)


def victim(scheduler: Any) -> Any:
    """Whose blocks are reclaimed when nothing runs though work waits: None if nobody's.

    Parked sessions first, then the last in line; never the first in line, which gets the room.
    """
    resident = [
        request
        for queue in (scheduler.kv_holding_waiting, scheduler.waiting)
        for request in queue
        if blocks_of(scheduler, request)
    ]
    parked = [request for request in resident if request.status == PARKED]
    if parked:
        return parked[-1]
    waiting = [*scheduler.kv_holding_waiting, *scheduler.waiting]
    first = next((request for request in waiting if request.status != PARKED), None)
    behind = [request for request in resident if request is not first]
    return behind[-1] if behind else None


class Ended:
    """The ids of sessions that the engine ended while their client could still send."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._ids

    def add(self, request_id: str) -> None:
        """Remember one more, and forget the oldest beyond the limit."""
        self._ids[request_id] = None
        if len(self._ids) > REMEMBERED:
            self._ids.popitem(last=False)
