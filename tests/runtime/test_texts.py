"""A request's text is made by code of its caller's: what fails in it ends that request alone."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import pytest
from kvproof.runtime.api import FinishReason, InvalidRequestError, RequestOutput
from kvproof.runtime.sampling_params import SamplingParams

from .harness import Bench, Heard

FAULTS = {
    "push raises": "RuntimeError: push raises",
    "push exits": "SystemExit: push exits",
    "push gives None": "TypeError: a text gave NoneType, not str",
    "finish raises": "RuntimeError: finish raises",
    "finish exits": "SystemExit: finish exits",
    "finish gives None": "TypeError: a text gave NoneType, not str",
    "it is none": "AttributeError: 'int' object has no attribute 'push'",
}


class Faulty:
    """One letter a token, with one fault, in the turns from `since` on."""

    def __init__(self, fault: str, since: int = 0) -> None:
        self.fault = fault
        self.turns = -since
        self.stopped_by: str | None = None

    def __call__(self, params: SamplingParams) -> Faulty:
        self.turns += 1
        if self.turns > 0 and self.fault == "the factory raises":
            raise RuntimeError(self.fault)
        if self.turns > 0 and self.fault == "it is none":
            return 5  # type: ignore[return-value]
        return self

    def push(self, tokens: Iterable[int]) -> str:
        return self._made("push")

    def finish(self) -> str:
        return self._made("finish")

    def _made(self, name: str) -> str:
        if self.turns <= 0 or not self.fault.startswith(name):
            return "x"
        if "raises" in self.fault:
            raise RuntimeError(self.fault)
        if "exits" in self.fault:
            sys.exit(self.fault)
        return None  # type: ignore[return-value]


def assert_alone(bench: Bench, fault: str, *, tokens: int) -> None:
    """The faulty request "a" has ended with its error and its tokens, and nobody else has."""
    heard = bench.clients["a"]
    assert heard.finish is FinishReason.ERROR
    assert heard.outputs[-1].error == f"its text could not be made: {fault}"
    assert len(heard.tokens) == tokens
    assert [output.finished for output in heard.outputs].count(True) == 1
    bench.assert_undisturbed("b", [11] * 5, 8)
    assert bench.lifecycle.live == 0
    assert bench.free == 16
    bench.add("a", [12] * 5, 3)
    bench.run()
    bench.assert_undisturbed("a", [12] * 5, 3)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_text_that_fails_ends_its_own_request_with_what_it_has(fault: str, depth: int) -> None:
    bench = Bench(steps_in_flight=depth)
    bench.add("a", 5, 4, text=Faulty(fault))
    bench.add("b", [11] * 5, 8)
    bench.run()
    assert_alone(bench, FAULTS[fault], tokens=4 if "finish" in fault else 1)


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_text_that_fails_in_a_sessions_later_turn_ends_that_session(
    fault: str, queued: bool
) -> None:
    bench = Bench()
    bench.add("a", 5, 4, text=Faulty(fault, since=1), resumable=True)
    bench.add("b", [11] * 5, 8)
    if queued:
        bench.chunk("a", [7])
    else:
        bench.run(lambda: bool(bench.lifecycle.parked))
        bench.chunk("a", [7])
    bench.run()
    assert_alone(bench, FAULTS[fault], tokens=8 if "finish" in fault else 5)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_text_that_fails_before_a_session_parks_leaves_nothing_parked(fault: str) -> None:
    bench = Bench()
    bench.add("a", 5, 4, text=Faulty(fault), resumable=True)
    bench.add("b", [11] * 5, 8)
    bench.run()
    assert_alone(bench, FAULTS[fault], tokens=4 if "finish" in fault else 1)


@pytest.mark.parametrize("fault", ["finish raises", "finish gives None"])
def test_a_text_that_fails_at_an_abort_is_an_abort(fault: str) -> None:
    bench = Bench()
    heard = bench.add("a", 5, 4, text=Faulty(fault))
    bench.turn()
    assert bench.core.abort("a")
    bench.run()
    assert heard.finish is FinishReason.ABORT


def test_a_text_that_cannot_be_made_leaves_no_request_behind() -> None:
    bench = Bench()
    with pytest.raises(InvalidRequestError, match="RuntimeError: the factory raises"):
        bench.add("a", 5, text=Faulty("the factory raises"))
    assert bench.lifecycle.live == 0
    assert bench.core.request_info("a") is None
    bench.add("a", [3] * 5)
    bench.run()
    bench.assert_undisturbed("a", [3] * 5, 4)


def test_a_text_that_cannot_be_made_for_a_parked_session_leaves_it_parked() -> None:
    bench = Bench()
    heard = bench.add(
        "a", 5, 4, text=(text := Faulty("the factory raises", since=1)), resumable=True
    )
    bench.run(lambda: bool(bench.lifecycle.parked))
    with pytest.raises(InvalidRequestError, match="RuntimeError: the factory raises"):
        bench.chunk("a", [7])
    text.fault = ""
    bench.chunk("a", [8])
    bench.core.close_input("a")
    bench.run()
    assert heard.finish is not FinishReason.ERROR
    assert len(heard.tokens) == 8


def test_a_text_that_cannot_be_made_for_a_chunk_that_waited_ends_its_session() -> None:
    bench = Bench()
    bench.add("a", 5, 4, text=Faulty("the factory raises", since=1), resumable=True)
    bench.add("b", [11] * 5, 8)
    bench.chunk("a", [7])
    bench.run()
    assert_alone(bench, "RuntimeError: the factory raises", tokens=4)


def test_whose_text_failed_is_not_mistaken_for_its_rows_next_tenant() -> None:
    """Another client ends it from within an output and sends a request, which gets its row."""
    bench = Bench()
    third = Heard([3] * 4)

    def replace(output: RequestOutput) -> None:
        if bench.core.abort("a"):
            bench.core.add_request(
                "c", [3] * 4, SamplingParams(max_tokens=3, temperature=0.0), on_output=third
            )

    greedy = SamplingParams(max_tokens=8, temperature=0.0)
    bench.core.add_request("b", [1, 2], greedy, on_output=replace)
    bench.add("a", 5, 4, text=Faulty("push raises"))
    row = bench.row("a")
    bench.turn()
    assert bench.row("c") == row
    bench.run()
    assert third.finish is FinishReason.LENGTH
    assert len(third.tokens) == 3
