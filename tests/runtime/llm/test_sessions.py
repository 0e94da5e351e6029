"""Sessions: turns over one growing sequence, the same tokens whatever happened in between."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from kvproof.runtime.api import FinishReason, InvalidRequestError, SessionError
from kvproof.runtime.llm import LLM
from kvproof.runtime.sampling_params import SamplingParams
from kvproof.runtime.streams import Completion

from .conftest import MakeEngine

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
TURNS = ("hello world", " and he", " well")


def undisturbed(engine: LLM) -> list[tuple[int, ...]]:
    """The turns' tokens, each computed at once from all that came before it."""
    sequence: list[int] = []
    answers = []
    for number, turn in enumerate(TURNS):
        sequence += engine.tokenizer.encode(turn, add_special_tokens=number == 0).tolist()
        (done,) = engine.generate([sequence], GREEDY)
        answers.append(done.tokens)
        sequence += done.tokens
    return answers


def forced_reset(engine: LLM) -> None:
    assert engine.reset_prefix_cache(reset_running_requests=True)


def sleep_and_wake(engine: LLM) -> None:
    assert engine.sleep(1, mode="keep")
    assert engine.wake()


def crowd(engine: LLM) -> None:
    """Others need every block of the pool."""
    prompts = [[10 + n, *range(20, 140)] for n in range(2)]  # 32 of 64 blocks each
    engine.generate(prompts, GREEDY)
    assert engine.stats().blocks_free == engine.stats().blocks_total, "the session was reclaimed"


@pytest.mark.parametrize("between", [lambda _: None, forced_reset, sleep_and_wake, crowd])
def test_a_turn_is_computed_from_all_that_came_before(engine: LLM, between: object) -> None:
    expected = undisturbed(engine)
    with engine.session() as session:
        for number, turn in enumerate(TURNS):
            done = session.send(turn, GREEDY).result()
            assert done.tokens == expected[number]
            assert (done.turn, done.finish_reason) == (number, FinishReason.TURN)
            between(engine)  # type: ignore[operator]
    assert session.over
    assert engine.stats().parked_sessions == 0


def test_parameters_stay_until_others_are_given(engine: LLM) -> None:
    with engine.session() as session:
        lengths = [
            len(session.send(turn, params).result().tokens)
            for turn, params in zip(TURNS, (GREEDY, None, LONG), strict=True)
        ]
    assert lengths == [6, 6, 100]


def test_turns_that_are_sent_ahead_wait_for_those_before(engine: LLM) -> None:
    expected = undisturbed(engine)
    with engine.session() as session:
        streams = [session.send(turn, GREEDY) for turn in TURNS]
        done = [stream.result() for stream in streams]
        assert [one.tokens for one in done] == expected
        assert [one.turn for one in done] == [0, 1, 2]


def test_a_parked_session_keeps_its_blocks_and_says_whose_they_are(engine: LLM) -> None:
    with engine.session() as session:
        session.send("hello world", GREEDY).result()
        (holder,) = engine.holds()
        assert (holder.kind, holder.owner) == ("REQUEST", session.id)
        assert holder.ends_by == "client"
        assert holder.force_would_let_go
    assert engine.holds() == []


def test_streams_of_sessions_can_be_read_with_async_for(engine: LLM) -> None:
    expected = undisturbed(engine)

    async def talk() -> list[tuple[int, ...]]:
        answers = []
        with engine.session() as session:
            for turn in TURNS:
                tokens: tuple[int, ...] = ()
                async for output in session.send(turn, GREEDY):
                    tokens += output.tokens
                answers.append(tokens)
        return answers

    assert asyncio.run(talk()) == expected


def test_who_stops_listening_does_not_end_the_turn(engine: LLM) -> None:
    expected = undisturbed(engine)
    with engine.session() as session:
        for _ in session.send(TURNS[0], GREEDY):
            break
        assert session.send(TURNS[1], GREEDY).result().tokens == expected[1]


@pytest.mark.parametrize("chunk", ["", [10_000], b"x", [5] * 200])
def test_a_wrong_chunk_is_refused_and_the_session_is_as_it_was(engine: LLM, chunk: object) -> None:
    expected = undisturbed(engine)
    with engine.session() as session:
        session.send(TURNS[0], GREEDY).result()
        with pytest.raises((InvalidRequestError, SessionError)):
            session.send(chunk, GREEDY)  # type: ignore[arg-type]
        done = session.send(TURNS[1], GREEDY).result()
        assert (done.tokens, done.turn) == (expected[1], 1)


def test_a_wrong_first_input_leaves_a_session_that_can_begin(engine: LLM) -> None:
    with engine.session() as session:
        with pytest.raises(InvalidRequestError):
            session.send("", GREEDY)
        assert len(session.send("hello", GREEDY).result().tokens) == 6


def test_a_closed_session_takes_nothing_and_says_so(engine: LLM) -> None:
    session = engine.session()
    session.send("hello", GREEDY).result()
    session.close()
    with pytest.raises(SessionError, match="is over"):
        session.send("more", GREEDY)


def test_leaving_a_session_in_the_middle_of_a_turn_aborts_it(engine: LLM) -> None:
    with engine.session() as session:
        stream = session.send("hello", LONG)
        first = next(iter(stream))
        assert first.turn == 0
    engine.generate("he", GREEDY)
    assert stream.ended
    assert session.over
    assert engine.holds() == []


def test_a_session_that_is_parked_for_too_long_ends_with_that_reason(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(session_deadline=0.01)
    session = engine.session()
    session.send("hello", GREEDY).result()
    while not session.over:
        engine.stats()  # the loop turns; its own clock ends the session
    with pytest.raises(SessionError, match="no chunk came in time"):
        session.send("more", GREEDY)


def test_a_shutdown_ends_every_turn_of_a_session(engine: LLM) -> None:
    session = engine.session()
    streams = [session.send("hello", LONG), session.send("more", LONG)]
    engine.shutdown(drain=False)
    results: list[Completion] = [stream.result() for stream in streams]
    assert [one.finish_reason for one in results] == [FinishReason.ABORT] * 2


def test_sessions_and_requests_share_the_engine(engine: LLM) -> None:
    expected = undisturbed(engine)
    with engine.session() as one, engine.session() as other:
        for number, turn in enumerate(TURNS):
            streams = [one.send(turn, GREEDY), other.send(turn, GREEDY)]
            engine.generate([[7, 8, 9]], GREEDY)
            answers = {stream.result().tokens for stream in streams}
            assert answers == {expected[number]}
    ids = {session.id for session in (one, other)}
    assert len(ids) == 2
    assert all(f"llm-{number}" not in ids for number in itertools.islice(itertools.count(1), 3))
