"""What is handed over by mistake: a typed error for that caller, and the engine goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kvproof.runtime.api import (
    EngineConfig,
    InvalidRequestError,
    InvalidWaitError,
    RejectedCallError,
)
from kvproof.runtime.engine import Engine
from kvproof.runtime.fake import FakeRunner
from kvproof.runtime.sampling_params import SamplingParams

FOUR = SamplingParams(max_tokens=4, temperature=0.0)


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(EngineConfig(num_blocks=16, block_size=4, max_model_len=64), FakeRunner(16, 4))
    yield made
    made.shutdown(drain=False)


def answers(engine: Engine) -> bool:
    """Whether a request is served to its end."""
    done = threading.Event()
    engine.add_request(
        "afterwards", [1, 2, 3], FOUR,
        on_output=lambda output: done.set() if output.finish_reason else None,
    )  # fmt: skip
    return done.wait(30) and engine.healthy() == (True, "")


def added(**options: Any) -> Callable[[Engine], object]:
    told = {"on_output": lambda _: None} | options
    return lambda engine: engine.add_request("r", [1, 2], FOUR, **told)


MISTAKES: list[tuple[type[Exception], str, Callable[[Any], object]]] = [
    (InvalidWaitError, "wait is '5', of type str", lambda e: e.reset_prefix_cache(wait="5")),
    (InvalidWaitError, "wait is None", lambda e: e.reset_prefix_cache(wait=None)),
    (RejectedCallError, "_requests is 'false'", lambda e: e.reset_prefix_cache("false")),
    (RejectedCallError, "reset_connector is 1", lambda e: e.reset_prefix_cache(True, 1)),
    (RejectedCallError, r"mode \[\]; known are", lambda e: e.pause(mode=[])),
    (RejectedCallError, "clear_cache is 'no'", lambda e: e.pause("keep", "no")),
    (RejectedCallError, r"mode \[\]; known are", lambda e: e.sleep(1, [])),
    (RejectedCallError, "level", lambda e: e.sleep([])),
    (RejectedCallError, "tags is 5", lambda e: e.wake(5)),
    (RejectedCallError, r"tag \[\]; known are", lambda e: e.wake([[]])),
    (RejectedCallError, "the trace's path is 5", lambda e: e.trace(5)),
    (RejectedCallError, "the timeout is 'soon'", lambda e: e.shutdown(timeout="soon")),
    (InvalidRequestError, r"id is \['a'\], of type list: it must be str", lambda e: e.abort(["a"])),
    (InvalidRequestError, "id is", lambda e: e.request_info([])),
    (InvalidRequestError, "id is", lambda e: e.close_input([])),
    (InvalidRequestError, "id is", lambda e: e.grammar_ready([])),
    (InvalidRequestError, "id is", lambda e: e.grammar_failed([], 5)),
    (InvalidRequestError, "id is", lambda e: e.add_chunk([], [1])),
    (InvalidRequestError, "priority is 'high'", added(priority="high")),
    (InvalidRequestError, "salt is 'tenant'", added(salt="tenant")),
    (InvalidRequestError, "resumable is 'yes'", added(resumable="yes")),
    (InvalidRequestError, "needs_grammar is 1", added(needs_grammar=1)),
    (InvalidRequestError, "text is 5", added(text=5)),
]  # fmt: skip


@pytest.mark.parametrize(("error", "words", "call"), MISTAKES)
def test_a_wrong_argument_is_its_callers_error_alone(
    engine: Engine, error: type[Exception], words: str, call: Callable[[Any], object]
) -> None:
    with pytest.raises(error, match=words):
        call(engine)
    assert answers(engine)


@pytest.mark.parametrize("raised", [SystemExit, asyncio.CancelledError, ZeroDivisionError])
def test_whatever_an_output_raises_ends_nobody_else(
    engine: Engine, raised: type[BaseException]
) -> None:
    def on_output(output: object) -> None:
        raise raised

    engine.add_request("raises", [4, 5, 6], FOUR, on_output=on_output)
    assert answers(engine)


@pytest.mark.parametrize("when", ["while it is written", "at its end"])
def test_a_trace_on_a_full_disk_ends_and_the_engine_goes_on(
    engine: Engine, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    engine.trace("/dev/full")
    for _ in range(400 if when == "while it is written" else 1):  # a file has a buffer
        engine.pause("keep")
        engine.resume()
    if when == "at its end":
        engine.trace(None)
    assert "cannot be written" in caplog.text
    assert answers(engine)
