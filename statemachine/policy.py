"""The choices on which progress rests, as functions of facts.

All are arithmetic on ints that also works on numpy arrays and symbols. `ahead` is the one order
of requests; everything that chooses between requests goes by it.
"""

from __future__ import annotations

from .lanes import Number, capacity


def ahead(
    priority: Number, arrival: Number, other_priority: Number, other_arrival: Number
) -> Number:
    """Whether the first request comes before the other: lower priority value, then older."""
    return (priority < other_priority) | ((priority == other_priority) & (arrival < other_arrival))


def may_be_victim(
    priority: Number, arrival: Number, for_priority: Number, for_arrival: Number
) -> Number:
    """Whether a running request may be preempted for another one that lacks blocks.

    Only for one that is ahead of it, so the first request of all is nobody's victim and two
    requests are never each other's.
    """
    return ahead(for_priority, for_arrival, priority, arrival)


def makes_way_for_waiting(
    priority: Number,
    arrival: Number,
    stalled: Number,
    for_priority: Number,
    for_arrival: Number,
) -> Number:
    """Whether a running request may be preempted for a waiting one that lacks blocks or a place.

    Of equal priority only one that is stalled, short of blocks itself: to throw away a younger
    request's work for an older one's start gains nothing.
    """
    return may_be_victim(priority, arrival, for_priority, for_arrival) & (
        stalled | (priority > for_priority)
    )


def must_reclaim_parked(free: Number, needed: Number) -> Number:
    """Whether a parked session gives its blocks up for a request that lacks some: any request."""
    return free < needed


def must_reclaim_waiting(
    free: Number,
    needed: Number,
    priority: Number,
    arrival: Number,
    for_priority: Number,
    for_arrival: Number,
) -> Number:
    """Whether a resident waiting request gives its blocks up: only for one ahead of it."""
    return (free < needed) & ahead(for_priority, for_arrival, priority, arrival)


def must_reclaim_held_back(free: Number, needed: Number) -> Number:
    """Whether a resident waiting request that the engine's mode does not admit gives way: to any.

    A pause that waits for all would otherwise wait for ever: what runs for blocks that a waiting
    request ahead of it holds, and that one for the pause to end.
    """
    return free < needed


def enough(free: Number, promised: Number, needed: Number) -> Number:
    """Whether no further victim is needed: what STEP holds will give back counts."""
    return free + promised >= needed


def leaves_room_to_grow(free: Number, needed: Number, running: Number) -> Number:
    """Whether a load may take so many blocks: each running request can still grow by one.

    Loads take no place, so there may be many of them.
    """
    return free >= needed + running


def may_load(loads_failed: Number, loads_limit: Number) -> Number:
    """Whether a load is tried once more, or the request recomputes for good."""
    return loads_failed < loads_limit


def never_fits(
    tokens: Number, pool_blocks: Number, quarantined: Number, block_size: Number
) -> Number:
    """Whether a request cannot run even alone in the pool; it gets *error*."""
    return tokens > capacity(pool_blocks - quarantined, block_size)


def cancel_unwaited(kind_is_load: Number, waiters: Number) -> Number:
    """Whether a transfer is cancelled because nobody waits for it any more."""
    return kind_is_load & (waiters == 0)
