"""Requests that are no sessions: admitted, computed in chunks, preempted, and let go of."""

from __future__ import annotations

import pytest
from kvproof.statemachine import RefusedError

from .driving import PROMPT, answer, engine, parked, run, state

# --- plain requests ------------------------------------------------------------------------------


@pytest.mark.parametrize("steps_ahead", [1, 2])
def test_a_request_is_answered_and_leaves_nothing_behind(steps_ahead: int) -> None:
    e = engine(steps_ahead=steps_ahead)
    request = e.add("a", PROMPT, 5)
    run(e)
    assert request.delivered == answer(PROMPT, 5)
    assert e.requests == {}
    assert e.holds_left() == 0


def test_requests_that_share_a_prefix_share_its_blocks() -> None:
    e = engine()
    e.add("a", [*PROMPT, 7, 8, 9], 5)
    run(e, 1)
    b = e.add("b", [*PROMPT, 7, 8, 10], 5)
    run(e, 1)
    assert [e.pool.facts[block].count for block in b.table] == [2, 2, 1]
    run(e)
    assert b.delivered == answer([*PROMPT, 7, 8, 10], 5)


def test_a_block_is_no_hit_before_its_step_is_processed() -> None:
    e = engine(steps_ahead=2)
    e.add("a", PROMPT, 5)
    e.step()
    b = e.add("b", PROMPT, 5)
    e.step()
    assert b.facts.hashed == 0
    run(e)
    assert b.delivered == answer(PROMPT, 5)


def test_a_long_prompt_is_computed_in_chunks_beside_others() -> None:
    e = engine(token_budget=4)
    a, b = e.add("a", list(range(1, 15)), 3), e.add("b", PROMPT, 3)
    run(e)
    assert (a.delivered, b.delivered) == (answer(range(1, 15), 3), answer(PROMPT, 3))


def test_a_prompt_that_can_never_fit_is_ignored() -> None:
    e = engine(blocks=2)
    request = e.add("a", list(range(1, 10)))
    assert e.requests == {}
    assert request.delivered == []


def test_an_id_that_is_live_is_refused_and_one_that_is_forgotten_is_not() -> None:
    e = engine()
    e.add("a", PROMPT)
    with pytest.raises(RefusedError, match="the id is live"):
        e.add("a", PROMPT)
    run(e)
    assert e.add("a", PROMPT).delivered == []


def test_a_request_that_grows_beyond_the_pool_takes_the_youngest_ones_blocks() -> None:
    e = engine(blocks=4)
    a, b = e.add("a", PROMPT, 8), e.add("b", [11, 12, 13, 14, 15, 16], 8)
    seen = set()
    while e.step() or e.launched:
        seen |= {(r.id, state(r)) for r in e.requests.values()}
        e.finish_step()
        e.check()
    assert ("b", "PREEMPTED") in seen
    assert ("a", "PREEMPTED") not in seen
    assert a.delivered == answer(PROMPT, 8)
    assert b.delivered == answer([11, 12, 13, 14, 15, 16], 8)


def test_a_higher_priority_takes_the_blocks_of_a_lower_one() -> None:
    e = engine(blocks=4)
    low = e.add("low", PROMPT, 8, priority=5)
    high = e.add("high", [11, 12, 13, 14, 15, 16], 8, priority=1)
    run(e, 4)
    assert (state(low), state(high)) == ("PREEMPTED", "RUNNING")
    run(e)
    assert low.delivered == answer(PROMPT, 8)


def test_a_request_waits_for_its_grammar_but_not_for_ever() -> None:
    e = engine()
    names = ("ready", "failed", "late")
    requests = [e.add(name, PROMPT, grammar=True) for name in names]
    assert e.step() is None
    e.grammar("ready", True)
    e.grammar("failed", False)
    e.grammar("nobody", True)
    e.advance(e.config.client_deadline)
    run(e)
    assert [len(request.delivered) for request in requests] == [4, 0, 0]
    assert e.requests == {}


# --- letting go ----------------------------------------------------------------------------------


def test_a_request_aborted_under_a_launched_step_hands_its_blocks_over() -> None:
    e = engine()
    request = e.add("a", PROMPT)
    e.step()
    table = list(request.table)
    e.abort("a")
    e.check()
    assert [kind for kind, _, _ in e.pool.holds()] == ["STEP"]
    assert [e.pool.facts[block].count for block in table] == [1, 1]
    assert not set(table) & set(e.pool.free())
    e.finish_step()
    assert len(e.pool.free()) == e.config.blocks
    assert e.requests == {}


def test_two_steps_in_flight_are_handed_over_to_the_newest() -> None:
    e = engine(steps_ahead=2)
    e.add("a", PROMPT)
    e.step()
    e.step()
    e.abort("a")
    e.finish_step()
    assert [kind for kind, _, _ in e.pool.holds()] == ["STEP"]
    e.finish_step()
    assert len(e.pool.free()) == e.config.blocks


def test_what_a_preempted_request_had_in_flight_still_counts() -> None:
    e = engine(steps_ahead=2)
    a = e.add("a", PROMPT, 6)
    run(e, 1)
    e.step()
    e.step()
    assert e.reset(force=True).success
    e.check()
    assert state(a) == "PREEMPTED"
    assert a.delivered == answer(PROMPT, 6)[: len(a.delivered)]
    assert len(a.delivered) == 3
    run(e)
    assert a.delivered == answer(PROMPT, 6)


def test_an_output_of_the_last_life_never_meets_the_next() -> None:
    e = engine(steps_ahead=2, blocks=3)
    parked(e)
    e.chunk("chat", [9])
    chat = e.requests["chat"]
    e.step()
    e.step()
    e.abort("chat")
    with pytest.raises(RefusedError):
        e.add("chat", PROMPT)
    run(e)
    again = e.add("chat", PROMPT)
    run(e)
    assert again.delivered == answer(PROMPT, 4)
    assert chat.delivered == answer(PROMPT, 4)
