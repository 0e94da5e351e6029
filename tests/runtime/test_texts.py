"""A request's text is made by code of its caller's: what fails in it ends that request alone."""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from kvproof.runtime.api import (
    EngineConfig,
    FinishReason,
    InvalidRequestError,
    RejectedCallError,
    RequestOutput,
)
from kvproof.runtime.engine import Engine
from kvproof.runtime.fake import FakeRunner
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


@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.long), 2])
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
    if not queued:
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


# --- what a text calls ----------------------------------------------------------------------------

GREEDY = SamplingParams(max_tokens=4, temperature=0.0)
CALLS: dict[str, Callable[[Any], object]] = {
    "abort itself": lambda core: core.abort("a"),
    "abort another": lambda core: core.abort("b"),
    "finish_step": lambda core: core.finish_step(),
    "launch_step": lambda core: core.launch_step(),
    "tick": lambda core: core.tick(),
    "reset": lambda core: core.reset_prefix_cache(True),
    "add_request": lambda core: core.add_request("c", [1], GREEDY, on_output=print),
    "add_chunk": lambda core: core.add_chunk("s", [1]),
    "close_input": lambda core: core.close_input("s"),
    "grammar_ready": lambda core: core.grammar_ready("g"),
    "grammar_failed": lambda core: core.grammar_failed("g", "why"),
    "pause": lambda core: core.pause(),
    "resume": lambda core: core.resume(),
    "sleep": lambda core: core.sleep(),
    "wake": lambda core: core.wake(),
    "weights_changed": lambda core: core.weights_changed(),
    "trace": lambda core: core.trace(None),
    "shutdown": lambda core: core.shutdown(drain=False),
}
REJECTED = "RejectedCallError: a text is being made: it may call nothing that changes this"


class Calling:
    """One letter a token; at one place it makes a call, which it does not keep to itself."""

    def __init__(self, place: str, call: Callable[[], object]) -> None:
        self.place = place
        self.call = call
        self.made = 0
        self.stopped_by: str | None = None

    def __call__(self, params: SamplingParams) -> Calling:
        self.made += 1
        if self.place == "a later turn" and self.made > 1:
            self.call()
        return self

    def push(self, tokens: Iterable[int]) -> str:
        if self.place == "push":
            self.call()
        return "x"

    def finish(self) -> str:
        if self.place == "finish":
            self.call()
        return ""


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "place",
    ["push", *(pytest.param(p, marks=pytest.mark.long) for p in ("finish", "a later turn"))],
)
def test_a_text_that_calls_the_engine_has_failed_and_has_changed_nothing(
    place: str, name: str
) -> None:
    bench = Bench(steps_in_flight=2)
    text = Calling(place, lambda: CALLS[name](bench.core))
    session = place == "a later turn"
    bench.add("a", 5, 4, text=text, resumable=session)
    if session:
        bench.chunk("a", [7])
    bench.add("b", [11] * 5, 8)
    bench.run()
    assert_alone(bench, REJECTED, tokens=1 if place == "push" else 4)


@pytest.mark.parametrize("name", CALLS)
def test_nor_can_it_call_when_its_request_ends_without_a_step(name: str) -> None:
    """An error is no reason to keep an abort from its client: that is told, and the other lives."""
    bench = Bench()
    called: list[str] = []

    def call() -> None:
        try:
            CALLS[name](bench.core)
        except RejectedCallError as error:
            called.append(str(error))
            raise

    heard = bench.add("a", 5, 4, text=Calling("finish", call))
    bench.add("b", [11] * 5, 8)
    bench.turn()
    assert bench.core.abort("a")
    assert len(called) == 1
    assert heard.finish is FinishReason.ABORT
    bench.run()
    bench.assert_undisturbed("b", [11] * 5, 8)
    assert bench.core.stats().finished == {"abort": 1, "length": 1}


@pytest.mark.parametrize("name", ["abort another", "pause", "reset", "add_request"])
def test_nor_from_where_it_is_made(name: str) -> None:
    bench = Bench()
    bench.add("b", [11] * 5, 8)
    bench.turn()
    with pytest.raises(InvalidRequestError, match=REJECTED):
        bench.core.add_request(
            "a", [1, 2], GREEDY, on_output=print, text=lambda params: CALLS[name](bench.core)
        )
    bench.run()
    bench.assert_undisturbed("b", [11] * 5, 8)
    assert bench.core.request_info("a") is None


def test_a_text_may_look_at_the_engine_and_keeps_what_it_is_refused_to_itself() -> None:
    bench = Bench()

    def look() -> None:
        assert bench.core.stats().running == 1
        assert bench.core.request_info("a") is not None
        with pytest.raises(RejectedCallError):
            bench.core.abort("a")

    heard = bench.add("a", 5, 4, text=Calling("push", look))
    bench.run()
    assert "".join(output.text for output in heard.outputs) == "xxxx"
    bench.assert_undisturbed("a", [10] * 5, 4)


def test_a_text_that_calls_the_engine_whose_loop_makes_it_has_failed() -> None:
    config = EngineConfig(num_blocks=16, block_size=4, max_model_len=64, check=True)
    engine = Engine(config, FakeRunner(16, 4))
    told: dict[str, queue.Queue[RequestOutput]] = {"a": queue.Queue(), "b": queue.Queue()}
    engine.pause("keep")
    engine.add_request(
        "a",
        [1, 2],
        GREEDY,
        on_output=told["a"].put,
        text=Calling("push", lambda: engine.abort("b")),
    )
    engine.add_request("b", [3, 4], GREEDY, on_output=told["b"].put)
    engine.resume()
    for name, tokens, finish in (("a", 1, FinishReason.ERROR), ("b", 4, FinishReason.LENGTH)):
        outputs = [told[name].get(timeout=30)]
        while outputs[-1].finish_reason is None:
            outputs.append(told[name].get(timeout=30))
        assert sum(len(output.tokens) for output in outputs) == tokens
        assert outputs[-1].finish_reason is finish
    assert engine.healthy() == (True, "")
    engine.shutdown()


@pytest.mark.parametrize("fault", ["", "finish raises"])
@pytest.mark.parametrize("resumable", [False, True])
def test_statistics_count_the_end_that_the_client_was_told(resumable: bool, fault: str) -> None:
    bench = Bench()
    text = Faulty("")
    heard = bench.add("a", 5, 4, text=text, resumable=resumable)
    if resumable:  # its input ends it, and no step
        bench.run(lambda: bool(bench.lifecycle.parked))
    text.fault = fault
    if resumable:
        bench.core.close_input("a")
    bench.run()
    assert heard.finish is (
        FinishReason.ERROR if fault else FinishReason.STOP if resumable else FinishReason.LENGTH
    )
    assert bench.core.stats().finished == {heard.finish.value: 1}
