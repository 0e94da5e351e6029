"""A step, a row or a launch that fails ends its own requests and no others."""

from __future__ import annotations

import pytest
from kvproof.runtime.api import FinishReason
from kvproof.runtime.fake import FakeRunner
from kvproof.runtime.protocols import StepResult

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
