"""A step, a row or a launch that fails ends its own requests and no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kvproof.runtime.api import FinishReason
from kvproof.runtime.fake import FakeRunner
from kvproof.runtime.protocols import RunnerError, StepResult

from .harness import SIZE, Bench


@pytest.mark.parametrize("depth", [1, 2])
def test_a_step_that_fails_ends_its_own_requests_only(depth: int) -> None:
    bench = Bench(steps_in_flight=depth)
    bench.runner.failing.add(2)
    doomed = bench.add("a", 5, 9)
    bench.run(lambda: doomed.finish is not None)
    assert doomed.finish is FinishReason.ERROR
    assert "the device failed" in str(doomed.outputs[-1].error)
    bench.add("b", 5)
    bench.run()
    bench.assert_undisturbed("b", [11] * 5, 4)
    assert bench.free == 16


@pytest.mark.parametrize("depth", [1, 2])
def test_a_row_that_fails_ends_its_own_request_only(depth: int) -> None:
    bench = Bench(steps_in_flight=depth)
    bench.add("a", 5)
    bench.add("b", 5)
    bench.core.launch_step()
    bench.runner.failing_rows.add((2, bench.row("a")))
    bench.run()
    assert bench.clients["a"].finish is FinishReason.ERROR
    assert bench.clients["b"].finish is FinishReason.LENGTH
    bench.assert_undisturbed("b", [11] * 5, 4)


def test_a_launch_that_fails_ends_the_requests_of_that_step() -> None:
    bench = Bench()
    launch, failing = bench.runner.launch, [True]

    def sometimes(batch: object) -> None:
        if failing.pop() if failing else False:
            raise RuntimeError("no device")
        launch(batch)  # type: ignore[arg-type]

    bench.runner.launch = sometimes  # type: ignore[method-assign, assignment]
    heard = bench.add("a", 5)
    bench.turn()
    assert heard.finish is FinishReason.ERROR
    bench.add("b", 5)
    bench.run()
    bench.assert_undisturbed("b", [11] * 5, 4)


def test_tokens_are_delivered_by_row_whatever_the_order_of_the_result() -> None:
    class Shuffled(FakeRunner):
        def collect(self, step: int, timeout: float | None = None) -> StepResult:
            result = super().collect(step, timeout)
            return result._replace(rows=result.rows[::-1], sampled=result.sampled[::-1])

    bench = Bench(runner=Shuffled(16, SIZE, manual=True))
    for name in "abc":
        bench.add(name, 4)
    bench.run()
    for number, name in enumerate("abc"):
        bench.assert_undisturbed(name, [10 + number] * 4, 4)


def test_a_row_that_the_result_lacks_has_failed() -> None:
    class Forgetful(FakeRunner):
        def collect(self, step: int, timeout: float | None = None) -> StepResult:
            result = super().collect(step, timeout)
            return result._replace(rows=result.rows[:1], sampled=result.sampled[:1])

    bench = Bench(runner=Forgetful(16, SIZE, manual=True))
    bench.add("a", 4)
    lost = bench.add("b", 4)
    bench.run()
    bench.assert_undisturbed("a", [10] * 4, 4)
    assert lost.finish is FinishReason.ERROR
    assert "lacks it" in str(lost.outputs[-1].error)


# --- a runner that breaks its protocol ----------------------------------------------------------


class Wrong(FakeRunner):
    """Gives what `told` makes of the results of one step."""

    def __init__(self, told: Callable[[StepResult], object], step: int = 2) -> None:
        super().__init__(16, SIZE, manual=True)
        self._told, self._step = told, step

    def collect(self, step: int, timeout: float | None = None) -> StepResult:
        result = super().collect(step, timeout)
        return self._told(result) if step == self._step else result  # type: ignore[return-value]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("told", "why"),
    [
        (lambda result: None, "collect gave NoneType, not a StepResult"),
        (lambda result: result._replace(step=4), "the result is of step 4"),
        (
            lambda result: result._replace(sampled=result.sampled + 0.5),
            "sampled is float64 [2], not int32 [n]",
        ),
        (
            lambda result: result._replace(sampled=result.sampled[:, None]),
            "sampled is int32 [2, 1], not int32 [n]",
        ),
        (
            lambda result: result._replace(sampled=result.sampled.tolist()),
            "sampled is list, not an int32 array",
        ),
        (lambda result: result._replace(sampled=result.sampled[:1]), "1 sampled tokens for 2 rows"),
        (lambda result: result._replace(rows=None), "rows is NoneType, not an int32 array"),
        (lambda result: result._replace(rows=result.rows * 0), "a row is in the result twice"),
        (lambda result: result._replace(errors=None), "errors is NoneType, not a mapping"),
        (
            lambda result: result._replace(errors={99: RuntimeError("no such row")}),
            "an error of row 99, which the step does not have",
        ),
        (lambda result: result._replace(logprobs=5), "logprobs is int, not a mapping"),
    ],
)
def test_what_is_no_result_fails_its_step_and_says_why(
    told: Callable[[StepResult], object], why: str, depth: int
) -> None:
    bench = Bench(runner=Wrong(told), steps_in_flight=depth)
    doomed = bench.add("a", 5), bench.add("b", 5)
    bench.run()
    for heard in doomed:
        assert heard.finish is FinishReason.ERROR
        assert heard.outputs[-1].error == f"RunnerError: step 2: {why}"
    bench.add("c", 5)
    bench.run()
    bench.assert_undisturbed("c", [12] * 5, 4)
    assert bench.free == 16


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("token", [-1, -5])
def test_a_row_that_should_have_sampled_and_did_not_fails_alone(token: int, depth: int) -> None:
    def told(result: StepResult) -> StepResult:
        result.sampled[0] = token
        return result

    bench = Bench(runner=Wrong(told), steps_in_flight=depth)
    doomed = bench.add("a", 5)
    bench.add("b", 5)
    bench.run()
    assert doomed.finish is FinishReason.ERROR
    assert doomed.outputs[-1].error == f"RunnerError: step 2: {token} is no token"
    bench.assert_undisturbed("b", [11] * 5, 4)


def test_a_prefill_that_goes_on_needs_no_token() -> None:
    bench = Bench(max_batched_tokens=4)
    bench.add("a", 10)
    bench.turn()
    assert not bench.runner.launched[0].samples.any()
    bench.run()
    bench.assert_undisturbed("a", [10] * 10, 4)


def test_a_request_that_was_ended_meanwhile_needs_no_token() -> None:
    def told(result: StepResult) -> StepResult:
        result.sampled[0] = -1
        return result

    bench = Bench(runner=Wrong(told))
    ended = bench.add("a", 5)
    bench.add("b", 5)
    bench.turn()
    bench.core.launch_step()
    assert bench.core.abort("a")
    bench.run()
    assert ended.finish is FinishReason.ABORT
    assert ended.outputs[-1].error is None
    bench.assert_undisturbed("b", [11] * 5, 4)


def test_a_core_is_not_made_for_a_device_with_fewer_blocks() -> None:
    with pytest.raises(RunnerError, match=r"num_blocks is 17, .* has 16 \(kv\.num_blocks\)"):
        Bench(blocks=17, runner=FakeRunner(16, SIZE, manual=True))
    bench = Bench(blocks=15, runner=FakeRunner(16, SIZE, manual=True))
    assert bench.free == 15
