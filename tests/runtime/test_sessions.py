"""Streaming-input sessions: every turn is computed from the prompt and every delivered token."""

from __future__ import annotations

import pytest
from kvproof.runtime.api import (
    FinishReason,
    InvalidRequestError,
    RequestOutput,
    SessionError,
    TokenLogprobs,
    UnknownRequestError,
)
from kvproof.runtime.fake import FakeRunner, expected_tokens
from kvproof.runtime.sampling_params import SamplingParams
from kvproof.runtime.sessions import Request

from .harness import SIZE, Bench

PARKED = "WAITING_FOR_STREAMING_REQ"


def parked(bench: Bench, name: str = "s") -> None:
    bench.run(lambda: bench.state(name) == PARKED)


def three_turns(bench: Bench, between: str) -> list[list[int]]:
    """The tokens of three turns, with something happening while the session is parked."""
    heard = bench.add("s", [1, 2, 3, 4, 5], 4, resumable=True)
    for chunk in ([7, 7], [8]):
        parked(bench)
        if between == "reclaimed":
            bench.add(f"big{chunk}", 30, 1)
            bench.run(lambda: bench.fact("s", "covered") == 0)
        elif between == "reset":
            assert bench.core.reset_prefix_cache(True).result(0)
        elif between == "slept":
            assert bench.core.sleep(1).result(0)
            assert bench.core.wake()
        bench.chunk("s", chunk)
    bench.core.close_input("s")
    bench.run()
    return heard.turns


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("between", ["nothing", "reclaimed", "reset", "slept"])
def test_a_turn_has_the_same_tokens_whatever_happened_between(between: str, depth: int) -> None:
    bench = Bench(blocks=8, steps_in_flight=depth)
    turns = three_turns(bench, between)
    assert len(turns) == 3
    sequence = [1, 2, 3, 4, 5]
    for turn, chunk in zip(turns, ([7, 7], [8], []), strict=True):
        assert turn == expected_tokens(sequence, 4)
        sequence += turn + chunk
    assert bench.clients["s"].finish is not None
    assert bench.free == 8


@pytest.mark.parametrize("depth", [1, 2])
def test_chunks_that_come_early_wait_for_the_turns_end_in_order(depth: int) -> None:
    bench = Bench(steps_in_flight=depth)
    heard = bench.add("s", [1, 2, 3], 4, resumable=True)
    bench.core.launch_step()
    bench.core.add_chunk("s", [7, 7])
    bench.core.add_chunk("s", [8])
    bench.core.close_input("s")
    bench.run()
    sequence = [1, 2, 3]
    for turn, chunk in zip(heard.turns, ([7, 7], [8], []), strict=True):
        assert turn == expected_tokens(sequence, 4)
        sequence += turn + chunk
    reasons = [output.finish_reason for output in heard.outputs if output.finish_reason]
    assert reasons == [FinishReason.TURN, FinishReason.TURN, FinishReason.LENGTH]
    assert [output.turn for output in heard.outputs if output.finish_reason] == [0, 1, 2]


def test_what_is_in_flight_when_a_turn_ends_is_never_delivered() -> None:
    """The end token comes while the next step is under way already."""
    runner = FakeRunner(
        16, SIZE, manual=True, sample=lambda prefix, length: 2 if length == 5 else 100 + length
    )
    bench = Bench(runner=runner, steps_in_flight=2, core={"eos_token_ids": (2,)})
    heard = bench.add("s", [1, 2, 3], 20, resumable=True)
    bench.core.launch_step()
    for _ in range(2):
        bench.core.launch_step()
        bench.core.finish_step()
    bench.core.launch_step()
    assert heard.tokens == [103, 104]
    assert bench.core.in_flight == 2
    bench.core.add_chunk("s", [7, 7, 7])
    bench.core.finish_step()
    assert heard.tokens == [103, 104, 2]
    assert bench.core.in_flight == 1
    bench.core.launch_step()
    bench.core.close_input("s")
    bench.run()
    assert heard.turns[1][:3] == [109, 110, 111]
    assert bench.runner.corruptions == []


def test_a_parked_session_takes_no_place() -> None:
    bench = Bench(max_num_seqs=1)
    bench.add("s", 4, 1, resumable=True)
    parked(bench)
    bench.add("a", 4)
    bench.run(lambda: bench.clients["a"].finish is not None)
    assert bench.state("s") == PARKED


def test_a_parked_session_keeps_its_blocks_until_somebody_lacks_them() -> None:
    bench = Bench(blocks=8)
    bench.add("s", 9, 2, resumable=True)
    parked(bench)
    bench.add("a", 8, 2)
    bench.run(lambda: bench.clients["a"].finish is not None)
    assert bench.fact("s", "covered") == 3
    prefilled = len(bench.runner.launched)
    bench.chunk("s", [7])
    bench.turn()
    batch = bench.runner.launched[prefilled]
    assert batch.starts.tolist() == [10]
    assert batch.counts.tolist() == [2], "the last delivered token and the chunk"


def test_each_turn_has_its_own_limits() -> None:
    bench = Bench()
    heard = bench.add("s", 4, 3, resumable=True)
    parked(bench)
    bench.chunk("s", [7], params=SamplingParams(max_tokens=6, temperature=0.0))
    parked(bench)
    bench.chunk("s", [8])
    parked(bench)
    assert [len(turn) for turn in heard.turns] == [3, 6, 6, 0]


def test_a_session_that_is_silent_for_too_long_is_ended() -> None:
    bench = Bench(session_deadline=100.0)
    heard = bench.add("s", 4, 1, resumable=True)
    parked(bench)
    bench.now = 99.0
    bench.turn()
    bench.chunk("s", [7])
    parked(bench)
    bench.now = 150.0
    bench.turn()
    assert heard.finish is None, "the wait began anew"
    bench.now = 200.0
    bench.turn()
    assert heard.finish is FinishReason.ABORT
    assert heard.outputs[-1].error == "no chunk came in time"
    bench.turn()
    assert bench.free == 16


def test_a_sessions_clock_stands_still_while_the_engine_is_paused() -> None:
    bench = Bench(session_deadline=100.0)
    heard = bench.add("s", 4, 1, resumable=True)
    parked(bench)
    bench.turn()
    bench.core.pause("keep")
    bench.turn()
    bench.now = 500.0
    bench.turn()
    assert heard.finish is None
    bench.core.resume()
    bench.turn()
    bench.now = 590.0
    bench.turn()
    assert heard.finish is None
    bench.now = 601.0
    bench.turn()
    assert heard.finish is FinishReason.ABORT


def test_closing_ends_a_parked_session_at_once_and_a_running_one_after_its_turn() -> None:
    bench = Bench()
    first = bench.add("a", 4, 3, resumable=True)
    parked(bench, "a")
    assert bench.core.close_input("a")
    assert first.finish is FinishReason.STOP
    second = bench.add("b", 4, 3, resumable=True)
    bench.turn()
    assert bench.core.close_input("b")
    assert not bench.core.close_input("b"), "closed already"
    bench.run()
    assert second.finish is FinishReason.LENGTH
    assert len(second.tokens) == 3
    assert not bench.core.close_input("z"), "unknown"


def test_a_session_that_reaches_the_models_length_is_finished() -> None:
    bench = Bench(max_model_len=12)
    heard = bench.add("s", 6, 20, resumable=True)
    bench.run()
    assert len(heard.tokens) == 6
    assert heard.finish is FinishReason.LENGTH


def test_a_chunk_that_does_not_fit_is_refused_when_it_is_sent() -> None:
    bench = Bench(max_model_len=16)
    bench.add("s", 6, 3, resumable=True)
    parked(bench)
    with pytest.raises(SessionError, match="longer than the model"):
        bench.core.add_chunk("s", [7] * 7)
    bench.core.add_chunk("s", [7] * 6)
    bench.run()
    assert bench.clients["s"].finish is FinishReason.LENGTH


def test_a_queued_chunk_that_no_longer_fits_ends_the_session() -> None:
    bench = Bench(max_model_len=16)
    heard = bench.add("s", 4, 8, resumable=True)
    bench.turn()
    bench.core.add_chunk("s", [7] * 8)
    bench.run()
    assert heard.finish is FinishReason.LENGTH
    assert len(heard.tokens) == 8


def test_wrong_calls_are_refused_with_what_would_be_right() -> None:
    bench = Bench()
    bench.add("a", 4)
    bench.add("s", 4, 2, resumable=True)
    with pytest.raises(SessionError, match="it is not a session"):
        bench.core.add_chunk("a", [1])
    with pytest.raises(SessionError, match="it is not a session"):
        bench.core.close_input("a")
    with pytest.raises(UnknownRequestError):
        bench.core.add_chunk("z", [1])
    with pytest.raises(InvalidRequestError, match="empty"):
        bench.core.add_chunk("s", [])
    bench.core.close_input("s")
    with pytest.raises(SessionError, match="its input is closed"):
        bench.core.add_chunk("s", [1])
    bench.run()
    with pytest.raises(UnknownRequestError):
        bench.core.add_chunk("s", [1])


def test_two_sessions_that_hold_the_pool_both_go_on() -> None:
    """Neither waits for the other: the one that is first takes from the one that is not."""
    bench = Bench(blocks=6)
    for name in "ab":
        bench.add(name, 8, 4, resumable=True)
    for name in "ab":
        parked(bench, name)
    assert bench.free == 0
    for name in "ab":
        bench.chunk(name, [7] * 4)
    for name in "ab":
        bench.core.close_input(name)
    bench.run()
    for number, name in enumerate("ab"):
        first, second = bench.clients[name].turns
        assert second == expected_tokens([10 + number] * 8 + first + [7] * 4, 4)


def test_an_output_names_each_of_its_fields_rightly() -> None:
    """It is made by position, past the constructor that would count them."""
    told: list[RequestOutput] = []
    request = Request("id", 3, SamplingParams(), told.append, None, frozenset({7}))
    request.begin_turn(None, 10, 2, 100)
    request.cached_tokens, request.error, request.stop_reason, request.turn = 4, "why", 7, 5
    logprobs = (TokenLogprobs(7, -0.5),)
    output = request.output((7,), 13, FinishReason.STOP, logprobs)
    assert output == RequestOutput(
        request_id="id",
        tokens=(7,),
        text="",
        finish_reason=FinishReason.STOP,
        stop_reason=7,
        error="why",
        prompt_tokens=10,
        output_tokens=3,
        cached_tokens=4,
        logprobs=logprobs,
        turn=5,
    )
    assert isinstance(output, RequestOutput)
    assert output._fields == tuple(RequestOutput.__annotations__)
