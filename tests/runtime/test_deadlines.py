"""Deadlines: each is heard of once, the replaced ones never, and they take no room for ever."""

from __future__ import annotations

import math

import pytest
from kvproof.runtime.deadlines import Deadlines
from kvproof.runtime.sampling_params import SamplingParams
from kvproof.runtime.telling import STOP_TOKENS

from .harness import Bench


def test_the_latest_wait_of_a_row_is_due_and_no_earlier_one() -> None:
    now = [0.0]
    deadlines = Deadlines(lambda: now[0])
    deadlines.add(5.0, row=1, wait=1)
    deadlines.add(3.0, row=2, wait=2)
    deadlines.add(9.0, row=1, wait=3)
    assert deadlines.next_in() == 3.0
    now[0] = 6.0
    assert deadlines.due() == [(2, 2)]
    now[0] = 9.0
    assert deadlines.due() == [(1, 3)]
    assert deadlines.due() == []
    assert deadlines.next_in() is None


@pytest.mark.parametrize("seconds", [50.0, math.inf])
def test_there_are_never_many_more_than_rows_that_wait(seconds: float) -> None:
    now = [0.0]
    deadlines = Deadlines(lambda: now[0])
    for number in range(1000):
        deadlines.add(seconds, row=number % 10, wait=number)
        assert len(deadlines) <= 40
    now[0] = 50.0
    expected = [(number % 10, number) for number in range(990, 1000)]
    assert deadlines.due() == ([] if seconds == math.inf else expected)


def test_a_session_that_may_park_for_ever_leaves_no_deadline_for_each_turn() -> None:
    bench = Bench(session_deadline=math.inf, max_model_len=128, blocks=32)
    bench.add("s", 1, 1, resumable=True)
    for _ in range(60):
        bench.run(lambda: bool(bench.lifecycle.parked))
        bench.chunk("s", [1])
    assert len(bench.core._pausing_deadlines) <= 20


def test_requests_that_are_aborted_during_a_pause_leave_no_deadlines() -> None:
    bench = Bench(grammar_deadline=60.0)
    bench.core.pause("keep")
    for number in range(200):
        bench.add(f"g{number}", 1, needs_grammar=True)
        bench.core.abort(f"g{number}")
        bench.now += 1000.0
        bench.core.tick()
    assert len(bench.core._pausing_deadlines) <= 20
    assert bench.lifecycle.live == 0


def test_stop_tokens_of_requests_that_have_ended_are_forgotten() -> None:
    """Also while there is always some request, and each has other ones."""
    bench = Bench()
    bench.add("stays", 1, needs_grammar=True)
    for number in range(200):
        stops = tuple(range(1000 * number, 1000 * number + 64))
        params = SamplingParams(stop_token_ids=stops)
        bench.add("r", 1, params=params)
        bench.core.abort("r")
    assert len(bench.core._stop_tokens) <= STOP_TOKENS + 64
