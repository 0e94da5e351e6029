"""Pause, sleep, wake, changed weights, shutdown."""

from __future__ import annotations

import pytest
from kvproof.statemachine import EngineMode, RefusedError
from kvproof.statemachine.states import CACHE, WEIGHTS

from .driving import (
    PROMPT,
    answer,
    engine,
    everything,
    land,
    load_in_flight,
    parked,
    run,
    state,
    store,
    turns,
)
from .tier import HostTier


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
