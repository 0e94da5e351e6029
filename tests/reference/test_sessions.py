"""Sessions: their turns, chunks and deadlines, and what may happen to them while parked."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kvproof.statemachine import EngineMode, RefusedError, RequestEvent

from .driving import PROMPT, answer, engine, everything, parked, run, state, turns
from .engine import Engine


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


def reclaim(e: Engine) -> None:
    for request in e.live():
        assert e.fire(request, RequestEvent.RECLAIM)


def reset(e: Engine) -> None:
    assert e.reset(force=True).success


def sleep(e: Engine) -> None:
    assert e.sleep()
    assert e.wake()


def crowd_out(e: Engine) -> None:
    """Another request needs nearly the whole pool."""
    e.add("big", list(range(100, 125)), 3)
    run(e)


def run_another(e: Engine) -> None:
    """Another request fits beside the session."""
    e.add("other", [50, 51, 52, 53, 54], 2)
    run(e)


@pytest.mark.parametrize("disturb", [reclaim, reset, sleep, crowd_out, run_another])
@pytest.mark.parametrize("steps_ahead", [1, 2])
def test_a_sessions_next_turn_is_the_same_whatever_happened_meanwhile(
    disturb: Callable[[Engine], None], steps_ahead: int
) -> None:
    e = engine(steps_ahead=steps_ahead)
    parked(e)
    chat = e.requests["chat"]
    disturb(e)
    e.check()
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
