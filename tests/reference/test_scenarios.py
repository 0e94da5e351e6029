"""What the design promises, played through on the reference engine."""

from __future__ import annotations

import pytest
from kvproof.statemachine import EndsBy, EngineMode, RefusedError
from kvproof.statemachine.states import CACHE, WEIGHTS

from .driving import (
    answer,
    copies,
    engine,
    everything,
    fail,
    fence,
    finish,
    land,
    load_in_flight,
    run,
    state,
    store,
    turns,
)
from .engine import Engine
from .tier import HostTier

PROMPT = [1, 2, 3, 4, 5, 6]


def parked(e: Engine, name: str = "chat", prompt: list[int] | None = None) -> None:
    """A session whose first turn is over."""
    request = e.add(name, prompt or PROMPT, session=True)
    run(e)
    assert state(request) == "WAITING_FOR_STREAMING_REQ"


# --- plain requests -----------------------------------------------------------------------------


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


# --- letting go ---------------------------------------------------------------------------------


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
    again = None
    with pytest.raises(RefusedError):
        e.add("chat", PROMPT)
    run(e)
    again = e.add("chat", PROMPT)
    run(e)
    assert again.delivered == answer(PROMPT, 4)
    assert chat.delivered == answer(PROMPT, 4)


# --- sessions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("steps_ahead", [1, 2])
def test_a_session_answers_every_chunk_from_every_token_before(steps_ahead: int) -> None:
    e = engine(steps_ahead=steps_ahead)
    chat = e.add("chat", PROMPT, session=True)
    run(e)
    e.chunk("chat", [21, 22])
    run(e)
    e.chunk("chat", [23])
    e.close_input("chat")
    run(e)
    assert chat.delivered == turns(PROMPT, [21, 22], [23])
    assert e.requests == {}


@pytest.mark.parametrize("steps_ahead", [1, 2])
def test_chunks_that_come_early_wait_for_the_turns_end(steps_ahead: int) -> None:
    e = engine(steps_ahead=steps_ahead)
    chat = e.add("chat", PROMPT, session=True)
    e.step()
    e.chunk("chat", [21, 22])
    e.chunk("chat", [23])
    e.close_input("chat")
    run(e)
    assert chat.delivered == turns(PROMPT, [21, 22], [23])


def disturb(e: Engine, how: str) -> None:
    """Something happens to a parked session."""
    if how == "reclaimed":
        for request in e.live():
            e.fire(request, _reclaim())
    elif how == "reset":
        assert e.reset(force=True).success
    elif how == "slept":
        assert e.sleep()
        assert e.wake()
    elif how == "evicted":
        e.add("big", list(range(100, 125)), 3)
        run(e)
    elif how == "failed":
        e.add("other", [50, 51, 52, 53, 54], 2)
        run(e)
    e.check()


def _reclaim() -> object:
    from kvproof.statemachine import RequestEvent

    return RequestEvent.RECLAIM


@pytest.mark.parametrize("how", ["undisturbed", "reclaimed", "reset", "slept", "evicted", "failed"])
@pytest.mark.parametrize("steps_ahead", [1, 2])
def test_a_sessions_next_turn_is_the_same_whatever_happened_meanwhile(
    how: str, steps_ahead: int
) -> None:
    e = engine(steps_ahead=steps_ahead)
    parked(e)
    chat = e.requests["chat"]
    disturb(e, how)
    e.chunk("chat", [21, 22])
    run(e)
    assert chat.delivered == turns(PROMPT, [21, 22])


def test_a_parked_session_gives_its_blocks_to_whoever_lacks_some() -> None:
    e = engine(blocks=4)
    parked(e)
    chat = e.requests["chat"]
    assert chat.facts.covered == 3
    other = e.add("other", list(range(100, 110)), 3)
    run(e, 1)
    assert (state(chat), chat.facts.covered) == ("WAITING_FOR_STREAMING_REQ", 0)
    run(e)
    assert other.delivered == answer(range(100, 110), 3)


def test_a_parked_session_takes_no_place_among_those_that_run() -> None:
    e = engine(max_running=1)
    parked(e)
    other = e.add("other", [50, 51], 2)
    run(e)
    assert other.delivered == answer([50, 51], 2)


def test_a_chunk_that_can_never_fit_is_refused_and_changes_nothing() -> None:
    e = engine()
    parked(e)
    before = everything(e)
    with pytest.raises(RefusedError, match="longer than the model or the pool"):
        e.chunk("chat", list(range(40)))
    assert everything(e) == before


def test_a_chunk_for_a_closed_session_is_refused() -> None:
    e = engine()
    chat = e.add("chat", PROMPT, session=True)
    e.step()
    e.close_input("chat")
    with pytest.raises(RefusedError, match="its input is closed"):
        e.chunk("chat", [1])
    run(e)
    assert chat.delivered == answer(PROMPT, 4)


def test_a_session_whose_client_is_silent_is_ended_by_its_deadline_but_not_while_paused() -> None:
    e = engine()
    parked(e)
    e.pause()
    e.advance(1000.0)
    assert "chat" in e.requests
    e.resume()
    e.advance(e.config.client_deadline - 1)
    assert "chat" in e.requests
    e.advance(1)
    assert e.requests == {}
    assert e.holds_left() == 0


def test_a_running_and_a_waiting_request_never_wait_for_each_other() -> None:
    """The session's next turn is ahead, holds blocks and lacks a place; the other lacks blocks."""
    e = engine(blocks=4, max_running=1)
    parked(e)
    chat = e.requests["chat"]
    other = e.add("other", [50, 51, 52, 53], 4)
    run(e, 1)
    e.chunk("chat", [21])
    run(e)
    assert other.delivered == answer([50, 51, 52, 53], 4)
    assert chat.delivered == turns(PROMPT, [21])


def test_a_pause_that_waits_for_all_is_not_blocked_by_a_waiting_holder() -> None:
    e = engine(blocks=4, max_running=1)
    parked(e)
    other = e.add("other", [50, 51, 52, 53], 4)
    run(e, 1)
    e.chunk("chat", [21])
    e.pause("wait")
    run(e)
    assert e.facts.mode == EngineMode.PAUSED
    assert other.delivered == answer([50, 51, 52, 53], 4)


# --- loads and stores ---------------------------------------------------------------------------


def test_a_prefix_that_left_the_device_is_loaded_back() -> None:
    e = engine(HostTier)
    request = load_in_flight(e)
    land(e)
    assert (state(request), request.facts.computed) == ("WAITING", 4)
    run(e)
    assert request.delivered == answer([7, 8, 9, 10, 11], 4)


def test_a_store_keeps_its_blocks_when_their_request_is_gone() -> None:
    e = engine(HostTier)
    e.add("a", PROMPT, 1)
    run(e)
    e.step()
    assert [kind for kind, _, _ in e.pool.holds()] == ["TRANSFER"]
    big = e.add("big", list(range(100, 128)), 1)
    run(e)
    assert big.delivered == answer(range(100, 128), 1)
    land(e)
    assert all(content == slots for slots, content in e.tier.entries())  # type: ignore[union-attr]


def test_two_requests_wait_for_one_load_and_the_first_ones_abort_does_not_hurt_the_other() -> None:
    e = engine(HostTier)
    first = load_in_flight(e)
    second = e.add("second", [7, 8, 9, 10, 12])
    e.step()
    assert second.facts.waits_for == first.facts.waits_for
    (transfer,) = e.transfers.values()
    assert transfer.facts.waiters == 2
    assert e.pool.facts[second.table[0]].count == 3
    e.abort("loading")
    e.check()
    assert transfer.facts.waiters == 1
    land(e)
    run(e)
    assert second.delivered == answer([7, 8, 9, 10, 12], 4)


def test_a_load_that_nobody_waits_for_is_cancelled_and_keeps_its_hold_until_it_ends() -> None:
    e = engine(HostTier)
    request = load_in_flight(e)
    (transfer,) = e.transfers.values()
    table = list(request.table)
    e.abort("loading")
    e.check()
    assert transfer.facts.state == 3  # CANCELLING
    assert not set(table) & set(e.pool.free())
    fence(e, transfer.number)
    assert set(table) <= set(e.pool.free())
    assert e.transfers == {}
    assert e.requests == {}


def test_a_load_that_never_began_is_fenced_at_once() -> None:
    e = engine(HostTier)
    store(e, [7, 8, 9, 10])
    assert e.tier is not None
    e.tier.begins_at_once = False
    e.add("loading", [7, 8, 9, 10, 11])
    e.step()
    e.abort("loading")
    e.check()
    assert (e.transfers, e.holds_left()) == ({}, 0)


def test_others_do_not_queue_behind_a_load() -> None:
    e = engine(HostTier)
    load_in_flight(e)
    other = e.add("other", [50, 51, 52], 3)
    run(e)
    assert other.delivered == answer([50, 51, 52], 3)


@pytest.mark.parametrize("valid", [0, 1])
def test_a_failed_load_leaves_what_is_valid_and_the_answer_is_the_same(valid: int) -> None:
    e = engine(HostTier)
    prompt = [7, 8, 9, 10, 11, 12, 13, 14, 15]
    store(e, prompt[:8])
    request = e.add("loading", prompt)
    e.step()
    number = request.facts.waits_for
    fail(e, number, valid)
    assert e.tier is not None
    assert (state(request), request.facts.covered) == ("WAITING", valid)
    e.tier.stored.clear()
    run(e)
    assert request.delivered == answer(prompt, 4)


def test_a_failed_load_ends_its_request_if_the_policy_says_so() -> None:
    e = engine(HostTier, fail_policy="fail")
    request = load_in_flight(e)
    fail(e, request.facts.waits_for)
    assert (e.requests, e.holds_left(), request.delivered) == ({}, 0, [])


def test_a_load_is_not_tried_for_ever() -> None:
    e = engine(HostTier, loads_limit=2)
    request = load_in_flight(e)
    for _ in range(2):
        assert state(request) == "WAITING_FOR_REMOTE_KVS"
        fail(e, request.facts.waits_for)
        e.step()
    assert state(request) == "RUNNING"
    run(e)
    assert request.delivered == answer([7, 8, 9, 10, 11], 4)


def test_a_request_gives_up_a_load_that_takes_too_long_and_recomputes() -> None:
    e = engine(HostTier, lease=1000.0)
    request = load_in_flight(e)
    number = request.facts.waits_for
    e.advance(e.config.load_deadline)
    e.check()
    assert (state(request), request.facts.covered) == ("WAITING", 0)
    run(e)
    assert request.delivered == answer([7, 8, 9, 10, 11], 4)
    finish(e)
    assert number not in e.transfers
    assert e.holds_left() == 0


@pytest.mark.parametrize("kind", ["landed", "failed", "fenced", "unconfirmed", "begun"])
def test_late_duplicate_and_unknown_signals_are_counted_and_change_nothing(kind: str) -> None:
    e = engine(HostTier)
    request = load_in_flight(e)
    number = request.facts.waits_for
    land(e)
    run(e, 1)
    before = everything(e)
    for late in (number, number - 1, 99):
        e.signal(late, kind)
    assert everything(e) == before
    assert sum(e.ignored.values()) == 3
    run(e)
    assert request.delivered == answer([7, 8, 9, 10, 11], 4)


# --- leases and quarantine ----------------------------------------------------------------------


def lost_load(e: Engine) -> int:
    """A load whose completion is lost, and whose lease and cancellation have run out."""
    request = load_in_flight(e)
    number = request.facts.waits_for
    e.advance(e.config.lease)
    assert state(request) == "WAITING_FOR_REMOTE_KVS"
    e.advance(e.config.cancel_lease)
    e.check()
    return number


def test_a_lost_load_ends_in_quarantine_and_its_waiter_recomputes_elsewhere() -> None:
    e = engine(HostTier)
    number = lost_load(e)
    assert e.facts.quarantined == 1
    request = e.requests["loading"]
    quarantined = e.transfers[number].blocks
    while run(e, 1) or copies(e):
        assert not set(quarantined) & set(request.table)
        land(e)
    assert request.delivered == answer([7, 8, 9, 10, 11], 4)
    assert not set(quarantined) & set(e.pool.free())


def test_quarantine_ends_when_the_confirmation_comes_after_all() -> None:
    e = engine(HostTier)
    number = lost_load(e)
    finish(e)
    e.signal(number, "landed")
    assert e.facts.quarantined == 1
    fence(e, number)
    assert (e.facts.quarantined, len(e.pool.free())) == (0, e.config.blocks)


def test_quarantine_refuses_no_reset_but_sleep() -> None:
    e = engine(HostTier)
    lost_load(e)
    finish(e)
    assert e.reset().success
    assert e.reset(force=True).success
    before = everything(e)
    assert not e.sleep()
    assert everything(e) == before


def test_a_request_that_quarantine_leaves_no_room_for_gets_an_error() -> None:
    e = engine(HostTier, blocks=2)
    load_in_flight(e)
    waiting = e.add("waiting", [20, 21, 22, 23, 24], 2)
    e.advance(e.config.lease)
    e.abort("loading")
    e.advance(e.config.cancel_lease)
    assert e.facts.quarantined == 1
    run(e)
    assert waiting.delivered == []
    assert list(e.requests) == ["loading"]  # remembered while a transfer of it is left
    small = e.add("small", [20, 21, 22], 2)
    run(e)
    assert small.delivered == answer([20, 21, 22], 2)


# --- reset --------------------------------------------------------------------------------------


def test_a_forced_reset_with_a_load_in_flight_is_refused_and_nothing_changed() -> None:
    e = engine(HostTier)
    request = load_in_flight(e)
    e.add("other", [50, 51, 52])
    run(e, 1)
    before = everything(e)
    result = e.reset(force=True, connector=True)
    assert not result.success
    assert everything(e) == before
    named = {(h.kind, h.owner, h.ends_by, h.force_would_let_go) for h in result.holders}
    assert named == {
        ("REQUEST", "loading", EndsBy.ITSELF, False),
        ("LOAD", f"load {request.facts.waits_for}", EndsBy.ITSELF, False),
    }
    land(e)
    assert e.reset(force=True).success
    finish(e)
    assert request.delivered == answer([7, 8, 9, 10, 11], 4)


def test_a_forced_reset_reclaims_a_parked_session_at_once() -> None:
    e = engine()
    parked(e)
    chat = e.requests["chat"]
    plain = e.reset()
    assert [(h.owner, h.ends_by, h.force_would_let_go) for h in plain.holders] == [
        ("chat", EndsBy.CLIENT, True)
    ]
    assert e.reset(force=True).success
    e.check()
    assert (state(chat), chat.facts.covered, e.holds_left()) == ("WAITING_FOR_STREAMING_REQ", 0, 0)
    e.chunk("chat", [21])
    run(e)
    assert chat.delivered == turns(PROMPT, [21])


def test_a_forced_reset_preempts_a_running_request_after_its_step_is_processed() -> None:
    e = engine()
    request = e.add("a", PROMPT)
    run(e, 1)
    e.step()
    delivered = len(request.delivered)
    assert e.reset(force=True).success
    e.check()
    assert (state(request), e.launched, e.holds_left()) == ("PREEMPTED", [], 0)
    assert len(request.delivered) == delivered + 1
    run(e)
    assert request.delivered == answer(PROMPT, 4)


def test_a_plain_reset_is_refused_by_whoever_holds_blocks_and_done_when_nobody_does() -> None:
    e = engine()
    e.add("a", PROMPT)
    run(e, 1)
    result = e.reset()
    assert [(h.owner, h.ends_by) for h in result.holders] == [("a", EndsBy.ITSELF)]
    run(e)
    assert e.reset().success
    assert e.pool.hits(e.slots(e.add("b", PROMPT), 1)) == []


def test_a_reset_that_fails_on_the_tier_is_partial_and_can_be_asked_again() -> None:
    e = engine(HostTier)
    e.add("a", PROMPT)
    run(e)
    e.step()
    land(e)
    assert e.tier is not None
    e.tier.broken = True
    partial = e.reset(connector=True)
    assert (partial.success, partial.tiers, partial.holders) == (False, ("device",), ())
    e.tier.broken = False
    done = e.reset(connector=True)
    assert (done.success, done.tiers) == (True, ("device", "connector"))
    assert e.tier.stored == {}


def test_a_reset_without_the_connector_leaves_the_tier_alone() -> None:
    e = engine(HostTier)
    store(e, [7, 8, 9, 10])
    assert e.tier is not None
    assert len(e.tier.stored) == 1


def test_a_waiting_reset_succeeds_by_itself_and_nothing_starts_that_would_delay_it() -> None:
    e = engine(HostTier)
    request = load_in_flight(e)
    running = e.add("running", [50, 51, 52], 8)
    run(e, 1)
    assert e.reset(force=True, wait=5.0).pending
    pending = e.pending
    assert pending is not None
    late = e.add("late", [7, 8, 9, 10, 13])
    run(e, 2)
    e.check()
    assert (state(late), late.facts.covered) == ("WAITING", 0)
    assert state(running) == "RUNNING"
    assert len(e.transfers) == 1
    land(e, request.facts.waits_for)
    assert pending.answer.success
    assert not e.facts.pending_reset
    finish(e)
    assert running.delivered == answer([50, 51, 52], 8)
    assert late.delivered == answer([7, 8, 9, 10, 13], 4)


def test_a_waiting_reset_that_is_not_done_in_time_is_refused() -> None:
    e = engine(HostTier)
    load_in_flight(e)
    e.reset(force=True, wait=5.0)
    pending = e.pending
    assert pending is not None
    e.advance(5.0)
    assert (e.pending, e.facts.pending_reset) == (None, False)
    assert not pending.answer.success
    assert pending.answer.holders


def test_a_reset_does_not_wait_for_a_client() -> None:
    e = engine()
    parked(e)
    assert not e.reset(wait=5.0).pending
    assert not e.facts.pending_reset


# --- pause, sleep, wake, weights, the end -------------------------------------------------------


def test_a_pause_that_keeps_all_freezes_and_goes_on_with_the_same_tokens() -> None:
    e = engine()
    request = e.add("a", PROMPT)
    run(e, 1)
    e.step()
    e.pause("keep")
    assert e.facts.mode == EngineMode.PAUSING
    e.finish_step()
    assert e.facts.mode == EngineMode.PAUSED
    assert e.step() is None
    e.resume()
    run(e)
    assert request.delivered == answer(PROMPT, 4)


def test_a_pause_that_waits_lets_what_runs_end_and_admits_nothing_new() -> None:
    e = engine()
    first = e.add("first", PROMPT)
    run(e, 1)
    second = e.add("second", [50, 51])
    e.pause("wait")
    run(e)
    assert e.facts.mode == EngineMode.PAUSED
    assert (first.delivered, second.delivered) == (answer(PROMPT, 4), [])
    e.resume()
    run(e)
    assert second.delivered == answer([50, 51], 4)


def test_a_pause_that_aborts_ends_what_runs() -> None:
    e = engine()
    request = e.add("a", PROMPT)
    e.step()
    e.pause("abort")
    e.finish_step()
    assert e.facts.mode == EngineMode.PAUSED
    assert (e.requests, request.delivered, e.holds_left()) == ({}, [], 0)


def test_chunks_are_taken_in_while_paused_and_start_nothing() -> None:
    e = engine()
    parked(e)
    chat = e.requests["chat"]
    e.pause()
    e.chunk("chat", [21])
    assert e.step() is None
    assert state(chat) == "WAITING"
    e.resume()
    run(e)
    assert chat.delivered == turns(PROMPT, [21])


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
@pytest.mark.parametrize("level", [1, 2])
def test_what_survives_a_sleep_is_answered_as_if_there_had_been_none(mode: str, level: int) -> None:
    e = engine()
    parked(e)
    chat, waiting = e.requests["chat"], e.add("waiting", [50, 51])
    run(e, 1)
    e.step()
    assert e.sleep(level, mode)
    e.check()
    assert e.facts.mode == EngineMode.SLEEPING
    assert e.holds_left() == 0
    assert e.step() is None
    e.chunk("chat", [21])
    assert e.wake(WEIGHTS)
    assert e.facts.mode == EngineMode.SLEEPING
    assert e.step() is None
    assert e.wake(CACHE)
    assert e.facts.mode == EngineMode.ACTIVE
    run(e)
    assert chat.delivered == turns(PROMPT, [21])
    assert waiting.delivered == answer([50, 51], 4)[: len(waiting.delivered)]
    assert mode == "abort" or len(waiting.delivered) == 4


def test_sleep_is_refused_while_a_transfer_is_open_and_the_engine_goes_on() -> None:
    e = engine(HostTier)
    request = load_in_flight(e)
    before = everything(e)
    assert not e.sleep(1, "keep")
    assert everything(e) == before
    land(e)
    run(e)
    assert request.delivered == answer([7, 8, 9, 10, 11], 4)


def test_a_sleep_after_a_pause_wakes_into_the_pause() -> None:
    e = engine()
    e.pause()
    assert e.sleep()
    with pytest.raises(RefusedError, match="wake it first"):
        e.resume()
    e.wake()
    assert e.facts.mode == EngineMode.PAUSED


def test_after_a_change_of_weights_nothing_older_is_a_hit_in_any_tier() -> None:
    e = engine(HostTier)
    store(e, [7, 8, 9, 10])
    with pytest.raises(RefusedError, match="pause first"):
        e.weights_changed()
    e.pause()
    assert e.weights_changed()
    e.resume()
    assert e.tier is not None
    assert e.tier.stored
    request = e.add("a", [7, 8, 9, 10, 11])
    e.step()
    assert (state(request), request.facts.hashed) == ("RUNNING", 0)
    run(e)
    assert request.delivered == answer([7, 8, 9, 10, 11], 4)


def test_weights_do_not_change_while_a_kept_request_holds_blocks() -> None:
    e = engine()
    e.add("a", PROMPT)
    run(e, 1)
    e.pause("keep")
    assert not e.weights_changed()
    assert e.reset(force=True).success
    assert e.weights_changed()


def test_a_shutdown_finishes_what_is_there_and_takes_nothing_new() -> None:
    e = engine(HostTier)
    parked(e)
    request = e.add("a", [50, 51, 52, 53, 54])
    e.step()
    e.shutdown()
    with pytest.raises(RefusedError, match="shutting down"):
        e.add("b", PROMPT)
    with pytest.raises(RefusedError, match="shutting down"):
        e.chunk("chat", [1])
    run(e)
    land(e)
    assert request.delivered == answer([50, 51, 52, 53, 54], 4)
    assert e.facts.mode == EngineMode.STOPPED
    e.signal(1, "landed")
    assert e.step() is None


def test_a_shutdown_while_asleep_ends_what_can_never_run_again() -> None:
    e = engine()
    parked(e)
    e.add("waiting", PROMPT)
    assert e.sleep(1, "keep")
    e.shutdown()
    assert (e.facts.mode, e.requests) == (EngineMode.STOPPED, {})


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
