"""Each lane is its event's effect on the same facts; one call for an array is one for each."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kvproof.statemachine import (
    REQUEST,
    Answer,
    Ask,
    BlockFacts,
    EngineFacts,
    RequestEvent,
    RequestFacts,
    answer_of,
    lanes,
)
from kvproof.statemachine.answers import HAND_OVER, RELEASE
from kvproof.statemachine.blocks import acquire, release
from kvproof.statemachine.states import (
    ACTIVE,
    FINISHED_STOPPED,
    RUNNING,
    WAITING_FOR_STREAMING_REQ,
)

SMALL = range(6)


def engine(**facts: int) -> EngineFacts:
    return EngineFacts(
        **{
            "mode": ACTIVE,
            "weights_resident": 1,
            "cache_resident": 1,
            "block_size": 4,
            "pool_blocks": 99,
            "model_length": 999,
            **facts,
        }
    )


def test_letting_go_hands_over_exactly_when_the_lane_says_in_flight() -> None:
    for newest, processed in itertools.product(SMALL, SMALL):
        r = RequestFacts(state=RUNNING, covered=2, newest_step=newest)
        code = REQUEST.fire(RequestEvent.PREEMPT, r, engine(processed=processed), Ask(forced=1))
        in_flight = lanes.in_flight(newest, processed)
        assert bool(code & HAND_OVER) == in_flight
        assert bool(code & RELEASE) == (not in_flight)


def test_output_is_delivered_exactly_when_the_lane_says_fresh() -> None:
    for step, stale in itertools.product(range(1, 6), SMALL):
        r = RequestFacts(state=RUNNING, covered=2, newest_step=5, stale_step=stale)
        code = REQUEST.fire(RequestEvent.OUTPUT, r, engine(), Ask(step=step, tokens=1))
        assert (answer_of(code) == Answer.GO) == lanes.fresh_output(step, stale)


def test_a_step_is_launched_exactly_when_the_lane_says_that_nothing_must_grow() -> None:
    for computed, tokens, covered, size in itertools.product(SMALL, (1, 2, 5), (1, 2), (1, 2, 4)):
        r = RequestFacts(state=RUNNING, covered=covered, computed=computed)
        e = engine(launched=1, block_size=size)
        code = REQUEST.fire(RequestEvent.LAUNCH, r, e, Ask(step=1, tokens=tokens))
        grows = lanes.must_grow(computed, tokens, covered, size)
        assert (answer_of(code) == Answer.GO) == (not grows)


def test_launch_publish_and_output_advance_as_the_lane_does() -> None:
    for count, tokens in itertools.product(SMALL, (1, 2, 3)):
        r = RequestFacts(state=RUNNING, covered=9, computed=count, written=count, delivered=count)
        e = engine(launched=1)
        REQUEST.fire(RequestEvent.LAUNCH, r, e, Ask(step=1, tokens=tokens))
        assert r.computed == lanes.advance(count, tokens)
        e.processed = 1
        filled = (count + tokens) // e.block_size
        REQUEST.fire(RequestEvent.PUBLISH, r, e, Ask(step=1, tokens=tokens, blocks=filled))
        assert r.written == lanes.advance(count, tokens)
        REQUEST.fire(RequestEvent.OUTPUT, r, e, Ask(step=1, tokens=tokens))
        assert r.delivered == lanes.advance(count, tokens)


def test_a_hold_is_cut_exactly_to_what_the_lane_says_it_can_hold() -> None:
    for computed, kept, size in itertools.product(range(12), (1, 2, 3), (1, 2, 4)):
        r = RequestFacts(state=RUNNING, covered=4, computed=computed)
        code = REQUEST.fire(RequestEvent.TRIM, r, engine(block_size=size), Ask(blocks=kept))
        assert (answer_of(code) == Answer.GO) == (computed <= lanes.capacity(kept, size))


def test_a_chunk_lengthens_the_sequence_and_starts_the_turns_count_afresh() -> None:
    for prompt, delivered, tokens in itertools.product((1, 3), SMALL, (1, 2)):
        r = RequestFacts(
            state=WAITING_FOR_STREAMING_REQ,
            resumable=1,
            input_open=1,
            prompt=prompt,
            delivered=delivered,
        )
        before = lanes.length(r.prompt, r.delivered)
        REQUEST.fire(RequestEvent.CHUNK, r, engine(), Ask(tokens=tokens))
        assert lanes.length(r.prompt, r.delivered) == before + tokens
        assert lanes.turn_tokens(r.delivered, r.turn_start) == 0
        r.delivered = lanes.advance(r.delivered, 2)
        assert lanes.turn_tokens(r.delivered, r.turn_start) == 2


def test_a_count_rises_and_falls_as_the_lanes_do() -> None:
    for count in SMALL:
        b = BlockFacts(count=count)
        acquire(b)
        assert b.count == lanes.acquired(count, 1)
        release(b)
        assert b.count == lanes.released(lanes.acquired(count, 1), 1) == count


LANES: list[tuple[Callable[..., Any], int]] = [
    (lanes.in_flight, 2),
    (lanes.fresh_output, 2),
    (lanes.capacity, 2),
    (lanes.must_grow, 4),
    (lanes.advance, 2),
    (lanes.length, 2),
    (lanes.turn_tokens, 2),
    (lanes.acquired, 2),
    (lanes.released, 2),
]


@pytest.mark.parametrize(("lane", "arity"), LANES, ids=[lane.__name__ for lane, _ in LANES])
def test_a_lane_gives_for_an_array_what_it_gives_for_each_number(
    lane: Callable[..., Any], arity: int
) -> None:
    chance = random.Random(arity)
    columns = [[chance.randrange(50) for _ in range(200)] for _ in range(arity)]
    at_once = lane(*(np.array(column, dtype=np.int64) for column in columns))
    one_by_one = [lane(*row) for row in zip(*columns, strict=True)]
    assert at_once.tolist() == one_by_one


def test_every_lane_is_tested_on_arrays() -> None:
    public = [
        f for name, f in vars(lanes).items() if callable(f) and f.__module__ == lanes.__name__
    ]
    assert {f.__name__ for f in public} == {lane.__name__ for lane, _ in LANES}


def test_a_step_of_many_rows_is_the_same_by_lanes_as_by_events() -> None:
    """What the engine's steady decoding does with arrays, beside the events row by row."""
    chance = random.Random(11)
    e = engine(launched=9, processed=8)
    rows = [
        RequestFacts(
            state=RUNNING,
            covered=(covered := chance.randrange(1, 4)),
            computed=chance.randrange(covered * 4 + 1),
            newest_step=chance.choice((0, 8)),
        )
        for _ in range(300)
    ]
    column = {name: np.array([getattr(r, name) for r in rows]) for name in ("computed", "covered")}
    may = ~lanes.must_grow(column["computed"], 1, column["covered"], e.block_size)
    computed = np.where(may, lanes.advance(column["computed"], 1), column["computed"])
    newest = np.where(may, 9, [r.newest_step for r in rows])
    for r in rows:
        REQUEST.fire(RequestEvent.LAUNCH, r, e, Ask(step=9, tokens=1))
    assert [r.computed for r in rows] == computed.tolist()
    assert [r.newest_step for r in rows] == newest.tolist()
    assert 0 < may.sum() < len(rows)


def test_a_stop_makes_stale_exactly_what_the_lane_then_calls_stale() -> None:
    for newest, step in itertools.product(range(1, 5), range(1, 5)):
        r = RequestFacts(state=RUNNING, covered=1, newest_step=newest)
        REQUEST.fire(RequestEvent.STOP, r, engine(), Ask(step=1, reason=FINISHED_STOPPED))
        assert r.state == FINISHED_STOPPED
        assert lanes.fresh_output(step, r.stale_step) == (step > newest)
