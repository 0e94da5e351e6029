"""How a request ends: by a token, a text, a length, or its client's wish."""

from __future__ import annotations

from collections.abc import Iterable

from kvproof.runtime.api import FinishReason
from kvproof.runtime.fake import FakeRunner
from kvproof.runtime.sampling_params import SamplingParams

from .harness import SIZE, Bench

GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


def stop_at(wanted: int) -> FakeRunner:
    """A device that samples `wanted` as the fourth token after a prompt of five."""
    return FakeRunner(
        16, SIZE, manual=True, sample=lambda prefix, length: wanted if length == 8 else 500 + length
    )


def test_the_models_end_token_stops() -> None:
    bench = Bench(runner=stop_at(2), core={"eos_token_ids": (2,)})
    heard = bench.add("a", 5, params=GREEDY)
    bench.run()
    assert heard.tokens == [505, 506, 507, 2]
    assert heard.finish is FinishReason.STOP
    assert heard.outputs[-1].stop_reason is None


def test_the_end_token_can_be_ignored() -> None:
    bench = Bench(runner=stop_at(2), core={"eos_token_ids": (2,)})
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    heard = bench.add("a", 5, params=params)
    bench.run()
    assert len(heard.tokens) == 8
    assert heard.finish is FinishReason.LENGTH


def test_a_stop_token_of_the_request_stops_and_is_named() -> None:
    bench = Bench(runner=stop_at(77))
    params = SamplingParams(max_tokens=8, temperature=0.0, stop_token_ids=(77,))
    heard = bench.add("a", 5, params=params)
    other = bench.add("b", 5, params=GREEDY)
    bench.run()
    assert heard.outputs[-1].stop_reason == 77
    assert heard.finish is FinishReason.STOP
    assert len(other.tokens) == 8


def test_a_stop_token_does_not_count_before_the_least_number_of_tokens() -> None:
    params = SamplingParams(max_tokens=8, min_tokens=5, temperature=0.0)
    bench = Bench(runner=stop_at(2), core={"eos_token_ids": (2,)})
    heard = bench.add("a", 5, params=params)
    bench.run()
    assert len(heard.tokens) == 8
    exact = SamplingParams(max_tokens=8, min_tokens=4, temperature=0.0)
    bench = Bench(runner=stop_at(2), core={"eos_token_ids": (2,)})
    heard = bench.add("a", 5, params=exact)
    bench.run()
    assert len(heard.tokens) == 4


def test_the_models_length_ends_a_request() -> None:
    bench = Bench(max_model_len=12)
    heard = bench.add("a", 5, params=SamplingParams(max_tokens=None, temperature=0.0))
    bench.run()
    assert len(heard.tokens) == 7
    assert heard.finish is FinishReason.LENGTH


class Letters:
    """Text in which each token is a letter; it ends at a "d"."""

    def __init__(self, params: SamplingParams) -> None:
        self.stopped_by: str | None = None
        self.held = ""

    def push(self, tokens: Iterable[int]) -> str:
        text, self.held = self.held, ""
        for token in tokens:
            letter = chr(ord("a") + token % 100)
            if letter == "d":
                self.stopped_by = "d"
                return text
            if letter == "h":
                raise RuntimeError("the text broke")
            self.held = letter
        return text

    def finish(self) -> str:
        return "" if self.stopped_by else self.held


def test_a_stop_string_ends_a_request_and_held_back_text_comes_with_the_end() -> None:
    runner = FakeRunner(16, SIZE, manual=True, sample=lambda prefix, length: length - 5)
    bench = Bench(runner=runner, core={"text": Letters})
    heard = bench.add("a", 5, params=GREEDY)
    bench.run()
    assert heard.tokens == [0, 1, 2, 3]
    assert "".join(output.text for output in heard.outputs) == "abc"[:2] + "c"
    assert heard.outputs[-1].stop_reason == "d"
    bench.add("b", 5, params=SamplingParams(max_tokens=2, temperature=0.0))
    bench.run()
    assert "".join(output.text for output in bench.clients["b"].outputs) == "ab"


def test_a_text_that_fails_ends_its_own_request_only() -> None:
    runner = FakeRunner(16, SIZE, manual=True, sample=lambda prefix, length: length)
    bench = Bench(runner=runner)
    heard = bench.add("a", 4, params=GREEDY, text=Letters)
    other = bench.add("b", 4, params=GREEDY)
    bench.run()
    assert heard.finish is FinishReason.ERROR
    assert "the text broke" in str(heard.outputs[-1].error)
    assert other.finish is FinishReason.LENGTH


def test_an_abort_ends_a_request_in_every_state() -> None:
    bench = Bench(blocks=6, max_num_seqs=1)
    running, waiting = bench.add("a", 5, 9), bench.add("b", 5)
    parked = bench.add("s", 3, 1, resumable=True)
    bench.core.abort("b")
    assert waiting.finish is FinishReason.ABORT
    bench.turn()
    assert bench.core.abort("a")
    assert running.finish is FinishReason.ABORT
    bench.run(lambda: bench.state("s") == "WAITING_FOR_STREAMING_REQ")
    assert bench.core.abort("s")
    assert parked.finish is FinishReason.ABORT
    bench.core.tick()
    assert bench.free == 6
    assert not bench.core.abort("a"), "finished"
    assert not bench.core.abort("z"), "unknown"
