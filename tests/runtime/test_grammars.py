"""A request that needs a grammar waits for it, holds nothing meanwhile, and not for ever."""

from __future__ import annotations

import queue

import pytest
from kvproof.runtime.api import EngineConfig, FinishReason, RequestOutput
from kvproof.runtime.engine import Engine
from kvproof.runtime.fake import FakeRunner, expected_tokens
from kvproof.runtime.sampling_params import SamplingParams

from .harness import Bench

GRAMMAR = "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR"


def ending(bench: Bench, name: str) -> tuple[FinishReason | None, str | None]:
    last = bench.clients[name].outputs[-1]
    return last.finish_reason, last.error


@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_runs_once_its_grammar_is_ready(depth: int) -> None:
    bench = Bench(steps_in_flight=depth)
    bench.add("a", 5, needs_grammar=True)
    bench.add("b", 5)
    bench.run(lambda: bench.clients["b"].finish is not None)
    assert bench.state("a") == GRAMMAR
    assert bench.core.holds() == []
    assert bench.core.grammar_ready("a")
    bench.run()
    bench.assert_undisturbed("a", [10] * 5, 4)


def test_a_grammar_that_cannot_be_compiled_is_an_error_that_says_why() -> None:
    bench = Bench()
    bench.add("a", 5, needs_grammar=True)
    assert bench.core.grammar_failed("a", "an unknown type")
    assert ending(bench, "a") == (
        FinishReason.ERROR,
        "its grammar could not be compiled: an unknown type",
    )
    assert bench.state("a") == "UNKNOWN"


def test_a_grammar_that_is_late_is_an_error_and_its_word_is_ignored() -> None:
    bench = Bench(grammar_deadline=10.0)
    bench.add("a", 5, needs_grammar=True)
    assert bench.core.next_time() == 10.0
    bench.now = 9.0
    bench.turn()
    assert bench.state("a") == GRAMMAR
    bench.now = 10.0
    bench.turn()
    assert ending(bench, "a") == (FinishReason.ERROR, "its grammar was not ready in time")
    assert not bench.core.grammar_ready("a")
    assert not bench.core.grammar_failed("a", "too late")
    ignored = bench.core.stats().ignored_signals
    assert ignored == {"request.grammar_ready": 1, "request.grammar_failed": 1}


def test_the_time_for_a_grammar_stands_still_while_the_engine_is_paused() -> None:
    bench = Bench(grammar_deadline=10.0)
    bench.add("a", 5, needs_grammar=True)
    assert bench.core.pause("keep").result(0)
    bench.turn()
    bench.now = 100.0
    bench.turn()
    assert bench.state("a") == GRAMMAR
    assert bench.core.resume()
    bench.turn()
    bench.now = 109.0
    bench.turn()
    assert bench.state("a") == GRAMMAR
    bench.now = 110.0
    bench.turn()
    assert bench.clients["a"].finish is FinishReason.ERROR


def test_a_word_for_a_request_that_waits_for_no_grammar_changes_nothing() -> None:
    bench = Bench()
    bench.add("a", 5)
    assert not bench.core.grammar_ready("a")
    assert not bench.core.grammar_failed("a", "no such grammar")
    bench.run()
    bench.assert_undisturbed("a", [10] * 5, 4)
    assert bench.clients["a"].outputs[-1].error is None


def test_a_request_that_waits_for_its_grammar_can_be_aborted() -> None:
    bench = Bench()
    bench.add("a", 5, needs_grammar=True)
    assert bench.core.abort("a")
    assert bench.clients["a"].finish is FinishReason.ABORT
    assert bench.state("a") == "UNKNOWN"


def test_a_session_whose_grammar_is_ready_takes_the_chunks_that_came_meanwhile() -> None:
    bench = Bench()
    heard = bench.add("s", [1, 2, 3], 2, needs_grammar=True, resumable=True)
    bench.core.add_chunk("s", [7, 7])
    bench.core.close_input("s")
    bench.turn()
    assert bench.state("s") == GRAMMAR
    assert bench.core.grammar_ready("s")
    bench.run()
    first = expected_tokens([1, 2, 3], 2)
    assert heard.turns == [first, expected_tokens([1, 2, 3, *first, 7, 7], 2)]


def test_a_grammar_can_be_told_of_from_any_thread() -> None:
    outputs: queue.Queue[RequestOutput] = queue.Queue()
    engine = Engine(EngineConfig(num_blocks=16, block_size=4, check=True), FakeRunner(16, 4))
    greedy = SamplingParams(max_tokens=1, temperature=0.0)
    for name in ("good", "bad"):
        engine.add_request(name, [1] * 5, greedy, on_output=outputs.put, needs_grammar=True)
    assert engine.grammar_failed("bad", "a cycle")
    assert engine.grammar_ready("good")
    heard = {output.request_id: output for output in (outputs.get(timeout=30) for _ in "12")}
    engine.shutdown()
    assert heard["good"].tokens == tuple(expected_tokens([1] * 5, 1))
    assert heard["bad"].error == "its grammar could not be compiled: a cycle"
