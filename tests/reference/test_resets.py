"""Resets: refused, forced, partial, pending."""

from __future__ import annotations

from kvproof.statemachine import EndsBy

from .driving import (
    PROMPT,
    answer,
    engine,
    everything,
    finish,
    land,
    load_in_flight,
    parked,
    run,
    state,
    store,
    turns,
)
from .tier import HostTier


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
