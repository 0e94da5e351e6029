"""Loads and stores: who waits for them, how they end, leases and quarantine."""

from __future__ import annotations

import pytest
from kvproof.statemachine.states import CANCELLING

from .driving import (
    PROMPT,
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
)
from .engine import Engine
from .tier import HostTier

# --- loads and stores ----------------------------------------------------------------------------


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
    assert transfer.facts.state == CANCELLING
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


# --- leases and quarantine -----------------------------------------------------------------------


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
