"""What is handed over by mistake: a typed error for that caller, and the engine goes on."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kvproof.runtime.api import (
    EngineClosedError,
    EngineConfig,
    InvalidRequestError,
    InvalidWaitError,
    RejectedCallError,
)
from kvproof.runtime.engine import Engine
from kvproof.runtime.fake import FakeRunner
from kvproof.runtime.lifecycle import Lifecycle
from kvproof.runtime.sampling_params import SamplingParams
from kvproof.runtime.sessions import Text
from kvproof.statemachine.errors import RefusedError
from kvproof.statemachine.states import WAITING

FOUR = SamplingParams(max_tokens=4, temperature=0.0)


@pytest.fixture
def engine() -> Iterator[Engine]:
    config = EngineConfig(
        num_blocks=16, block_size=4, max_model_len=64, policy="priority", check=True
    )
    made = Engine(config, FakeRunner(16, 4))
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


def breaks() -> Iterator[str]:
    yield "weights"
    raise ZeroDivisionError


def no_text(params: SamplingParams) -> Text:
    raise ValueError("no")


MISTAKES: list[tuple[type[BaseException], str, Callable[[Any], object]]] = [
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
    (InvalidWaitError, "wait is True, of type bool", lambda e: e.reset_prefix_cache(wait=True)),
    (InvalidWaitError, "may wait from 0 to", lambda e: e.reset_prefix_cache(wait=10**400)),
    (RejectedCallError, "level is True, of type bool", lambda e: e.sleep(True)),
    (RejectedCallError, "level is 1.0, of type float", lambda e: e.sleep(1.0)),
    (RejectedCallError, "level is .* of type ndarray", lambda e: e.sleep(np.array([1, 2]))),
    (RejectedCallError, "cannot be read: ZeroDivisionError", lambda e: e.wake(breaks())),
    (RejectedCallError, "path is .*: embedded null", lambda e: e.trace("/tmp/a\0b")),
    (RejectedCallError, "path is .*surrogates not allowed", lambda e: e.trace("/tmp/\ud800")),
    (RejectedCallError, "timeout is nan: it must be 0", lambda e: e.shutdown(timeout=math.nan)),
    (RejectedCallError, "timeout is -1: it must be 0", lambda e: e.shutdown(timeout=-1)),
    (RejectedCallError, "it must be 0 or more", lambda e: e.shutdown(timeout=10**400)),
    (RejectedCallError, "timeout is True", lambda e: e.shutdown(timeout=True)),
    (RejectedCallError, "drain is 'no'", lambda e: e.shutdown("no", 0)),
    (InvalidRequestError, "must fit in 64 bits", added(priority=2**70)),
    (InvalidRequestError, "must fit in 64 bits", added(priority=-(2**63) - 1)),
    (InvalidRequestError, "must fit in 64 bits", added(priority=np.uint64(2**63))),
    (InvalidRequestError, "priority is True", added(priority=True)),
    (InvalidRequestError, "priority is 1.0", added(priority=1.0)),
    (InvalidRequestError, "could not be made: ValueError: no", added(text=no_text)),
    (InvalidRequestError, "could not be made: SystemExit", added(text=sys.exit)),
    (ZeroDivisionError, "division", lambda e: e.call(lambda: 1 / 0)),
    (SystemExit, "5", lambda e: e.call(lambda: sys.exit(5))),
]  # fmt: skip


@pytest.mark.parametrize(("error", "words", "call"), MISTAKES)
def test_a_wrong_argument_is_its_callers_error_alone(
    engine: Engine, error: type[BaseException], words: str, call: Callable[[Any], object]
) -> None:
    with pytest.raises(error, match=words):
        call(engine)
    assert engine.call(lambda: engine.core.lifecycle.live) == 0
    assert answers(engine)


def test_what_a_class_of_the_callers_own_raises_is_its_callers_error_alone(engine: Engine) -> None:
    """No EngineError, so that it is judged by whether anything was changed."""

    class Name(str):
        def __hash__(self) -> int:
            raise ArithmeticError("no hash")

    for call in (engine.abort, engine.close_input, engine.request_info, engine.grammar_ready):
        with pytest.raises(ArithmeticError, match="no hash"):
            call(Name("a"))
    engine.add_request(Name("a"), [1, 2], FOUR, on_output=lambda _: None)  # its letters are its id
    assert answers(engine)


def test_why_a_grammar_failed_is_a_text_or_its_request_goes_on_waiting(engine: Engine) -> None:
    engine.add_request("g", [1, 2], FOUR, on_output=lambda _: None, needs_grammar=True)
    with pytest.raises(InvalidRequestError, match="why its grammar failed is 5"):
        engine.grammar_failed("g", 5)  # type: ignore[arg-type]
    assert engine.grammar_ready("g")
    assert answers(engine)


def test_a_priority_that_no_column_holds_leaves_its_row_as_it_was() -> None:
    """At the lifecycle itself, which an engine developer may call."""
    lifecycle = Lifecycle(EngineConfig(num_blocks=16, block_size=4, max_model_len=64))
    two = np.array([1, 2], dtype=np.int32)
    with pytest.raises(RefusedError, match="64-bit"):
        lifecycle.add("a", two, priority=2**70)
    lifecycle.check()
    assert lifecycle.state_of(lifecycle.add("b", two)) == WAITING
    lifecycle.check()


def test_a_trace_into_a_pipe_that_nobody_reads_lets_its_caller_wait_alone(
    engine: Engine, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    tracing = threading.Thread(target=engine.trace, args=(pipe,))
    tracing.start()
    assert answers(engine)
    with pipe.open() as reader:
        tracing.join()
        engine.pause("keep")
        engine.trace(None)
        assert '"event":"pause"' in reader.read()


def test_a_trace_that_comes_too_late_leaves_no_file_open(tmp_path: Path) -> None:
    made = Engine(EngineConfig(num_blocks=16, block_size=4, max_model_len=64), FakeRunner(16, 4))
    made.shutdown(drain=False)
    with pytest.raises(EngineClosedError):
        made.trace(tmp_path / "trace")
    descriptors = Path("/proc/self/fd").iterdir()
    assert tmp_path / "trace" not in {descriptor.resolve() for descriptor in descriptors}


@pytest.mark.parametrize(
    "raised", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, ZeroDivisionError]
)
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
