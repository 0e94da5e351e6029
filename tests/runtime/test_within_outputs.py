"""What a client does from within its output, and what that cannot do to the others."""

from __future__ import annotations

from kvproof.runtime.api import FinishReason, RejectedCallError, RequestOutput
from kvproof.runtime.sampling_params import SamplingParams

from .harness import Bench

GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


def test_a_client_that_fails_ends_nobody() -> None:
    bench = Bench()

    def fail(output: RequestOutput) -> None:
        raise RuntimeError("the client's own fault")

    bench.core.add_request("a", [1, 2], GREEDY, on_output=fail)
    heard = bench.add("b", 4)
    bench.run()
    assert heard.finish is FinishReason.LENGTH
    assert bench.core.stats().finished == {"length": 2}


def test_a_client_may_abort_another_from_within_its_output() -> None:
    bench = Bench()
    victim = bench.add("b", 4, 8)

    def kill(output: RequestOutput) -> None:
        bench.core.abort("b")

    bench.core.add_request("a", [1, 2], GREEDY, on_output=kill)
    bench.run()
    assert victim.finish is FinishReason.ABORT
    assert [output.finish_reason for output in victim.outputs].count(FinishReason.ABORT) == 1


def test_a_row_that_is_given_away_within_an_output_gets_nothing_of_its_predecessor() -> None:
    """The first client ends the second and sends a third, which gets the second one's row."""
    bench = Bench()
    heard: list[RequestOutput] = []

    def replace(output: RequestOutput) -> None:
        if bench.core.abort("b"):
            bench.add("c", 4, 3)

    bench.core.add_request("a", [1, 2], GREEDY, on_output=replace)
    bench.core.add_request("b", [3, 4], GREEDY, on_output=heard.append)
    row = bench.row("b")
    bench.turn()
    assert bench.row("c") == row
    bench.run()
    bench.assert_undisturbed("c", [10] * 4, 3)
    assert [output.finish_reason for output in heard] == [FinishReason.ABORT]


def test_what_would_process_a_step_cannot_be_called_from_within_an_output() -> None:
    bench = Bench(steps_in_flight=2)
    refusals: list[str] = []

    def reset(output: RequestOutput) -> None:
        try:
            bench.core.reset_prefix_cache(True)
        except RejectedCallError as error:
            refusals.append(str(error))

    bench.core.add_request("a", [1, 2], GREEDY, on_output=reset)
    bench.add("b", 5, 8)
    bench.run()
    assert len(refusals) == 8
    assert "another thread" in refusals[0]
    bench.assert_undisturbed("b", [10] * 5, 8)
