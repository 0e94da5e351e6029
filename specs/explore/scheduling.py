"""What a scheduler asks before it decides: lengths, hits, room, and whose turn it is.

Without `Feature.POLICY` the scheduler is free: whatever the events allow may be tried at any
time. With it, requests are served in the order of the declared policy, and room is made only as
the policy says; that is the scheduler of which progress can be asked.
"""

from __future__ import annotations

from typing import Any

from ...statemachine.states import PREEMPTED, RUNNING, WAITING, WAITING_FOR_STREAMING_REQ
from . import expressions as ex
from .expressions import Value
from .instance import Feature
from .joint import free_blocks
from .world import World


def known_tokens(r: Any) -> Value:
    """The length of the sequence as far as the client knows it."""
    return ex.add(r.prompt, r.delivered)


def expected_tokens(w: World, r: int) -> Value:
    """The same with the tokens that launched steps will sample and that are not stale."""
    s = w.state
    request, work = s.requests[r], s.work[r]
    coming = ex.total(
        ex.both(work.samples(step), request.stale_step < s.e.processed + step)
        for step in range(1, w.instance.steps_ahead + 1)
    )
    return known_tokens(request) + coming


def hit_blocks(w: World, hits: Value) -> dict[int, Value]:
    """Which blocks are the hits for the first `hits` prefixes, by the index."""
    s = w.state
    may = w.declaration.function("blocks", "may_hit")
    return {
        number: ex.both(
            w.value(may, b=block),
            block.hashed_as >= 1,
            block.hashed_as <= hits,
            s.more[number].epoch == s.e.epoch,
        )
        for number, block in enumerate(s.blocks)
    }


def require_hits(w: World, hit: dict[int, Value], hits: int) -> None:
    """Each of the first prefixes has a hit."""
    for prefix in range(1, hits + 1):
        found = (ex.both(hit[n], b.hashed_as == prefix) for n, b in enumerate(w.state.blocks))
        w.require(ex.either(*found))


def require_fresh(w: World, block: int, hit: dict[int, Value]) -> None:
    """The block can be handed out, and is not about to be a hit of the same event."""
    may = w.declaration.function("blocks", "may_hand_out")
    w.require(w.value(may, b=w.state.blocks[block]), ex.no(hit[block]))


def leaves_pool(w: World, hit: dict[int, Value]) -> Value:
    """How many of the hits nobody holds: they leave the free pool as well."""
    return ex.total(ex.both(hit[n], b.count == 0) for n, b in enumerate(w.state.blocks))


def admissible(r: Any) -> Value:
    """It waits for admission: the cells say the same; asked first, it saves work."""
    return ex.either(r.state == WAITING, r.state == PREEMPTED)


# --- the policy ---------------------------------------------------------------------------------


def ahead(w: World, one: Any, other: Any) -> Value:
    """Whether a request comes before another."""
    return w.value(
        w.declaration.function("policy", "ahead"),
        priority=one.priority,
        arrival=one.arrival,
        other_priority=other.priority,
        other_arrival=other.arrival,
    )


def lacks_blocks(w: World, r: int) -> Value:
    """It runs, and its table is too short for what the next step has to compute."""
    request, size = w.state.requests[r], w.instance.block_size
    left = expected_tokens(w, r) > request.computed
    more = request.computed < w.instance.kv_tokens
    needed = request.computed + 1
    if not w.instance.has(Feature.CHUNKED):
        needed = ex.minimum(expected_tokens(w, r), w.instance.kv_tokens)
    return ex.both(request.state == RUNNING, request.covered * size < needed, left, more)


def wants_blocks(w: World, r: int) -> Value:
    """It waits for an admission that the engine's mode allows, or for a block to go on."""
    s = w.state
    starts = w.value(w.declaration.function("gates", "starts_work"), e=s.e)
    finishes = w.value(w.declaration.function("gates", "finishes_work"), e=s.e)
    return ex.either(
        ex.both(s.requests[r].state == WAITING, starts),
        ex.both(s.requests[r].state == PREEMPTED, finishes),
        lacks_blocks(w, r),
    )


def require_turn(w: World, r: int) -> None:
    """Nobody ahead of it is waiting for a block."""
    if not w.instance.has(Feature.POLICY):
        return
    s = w.state
    for other, request in enumerate(s.requests):
        if other != r:
            w.require(ex.no(ex.both(wants_blocks(w, other), ahead(w, request, s.requests[r]))))


def _room(w: World, r: int) -> tuple[Value, Value]:
    """Blocks free for a request, and those that STEP holds will give back by themselves."""
    s = w.state
    promised = ex.total(
        ex.both(
            block.count > 0,
            block.count == ex.total(ex.truth(pairs[n].by_step) for pairs in s.held),
        )
        for n, block in enumerate(s.blocks)
    )
    return free_blocks(w, r), promised


def may_be_victim(w: World, r: int) -> Value:
    """Whether the policy lets a running request be preempted: for one that lacks a block."""
    if not w.instance.has(Feature.POLICY):
        return True
    s = w.state
    may = w.declaration.function("policy", "may_be_victim")
    enough = w.declaration.function("policy", "enough")
    me = s.requests[r]
    reasons = []
    for other, request in enumerate(s.requests):
        if other != r:
            free, promised = _room(w, other)
            reasons.append(
                ex.both(
                    wants_blocks(w, other),
                    ex.no(w.value(enough, free=free, promised=promised, needed=1)),
                    w.value(
                        may,
                        priority=me.priority,
                        arrival=me.arrival,
                        for_priority=request.priority,
                        for_arrival=request.arrival,
                    ),
                )
            )
    return ex.either(*reasons)


def may_be_reclaimed(w: World, r: int) -> Value:
    """Whether the policy takes the blocks of a request that does not run."""
    if not w.instance.has(Feature.POLICY):
        return True
    return ex.either(
        *(
            ex.both(wants_blocks(w, other), must_give_way(w, r, other))
            for other in range(len(w.state.requests))
            if other != r
        )
    )


def must_give_way(w: World, r: int, other: int) -> Value:
    """Whether a parked or waiting request gives its blocks up for another that lacks one."""
    s = w.state
    me, request = s.requests[r], s.requests[other]
    free, _ = _room(w, other)
    parked = w.declaration.function("policy", "must_reclaim_parked")
    waiting = w.declaration.function("policy", "must_reclaim_waiting")
    held_back = w.declaration.function("policy", "must_reclaim_held_back")
    admits = w.declaration.function("gates", "starts_work")
    return ex.either(
        ex.both(me.state == WAITING_FOR_STREAMING_REQ, w.value(parked, free=free, needed=1)),
        ex.both(
            me.state == WAITING,
            ex.either(
                w.value(
                    waiting,
                    free=free,
                    needed=1,
                    priority=me.priority,
                    arrival=me.arrival,
                    for_priority=request.priority,
                    for_arrival=request.arrival,
                ),
                ex.both(ex.no(w.value(admits, e=s.e)), w.value(held_back, free=free, needed=1)),
            ),
        ),
    )
