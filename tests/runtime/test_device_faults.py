"""A step, a row or a launch that fails ends its own requests and no others."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest
from kvproof.runtime.api import EngineConfig, EngineFailedError, FinishReason
from kvproof.runtime.engine import Engine
from kvproof.runtime.fake import FakeRunner
from kvproof.runtime.protocols import Int32Array, RunnerError, StepResult
from kvproof.runtime.sampling_params import SamplingParams

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


# --- who cannot be bound --------------------------------------------------------------------------


class Picky(FakeRunner):
    """Cannot bind, or cannot unbind, the rows of prompts of three tokens."""

    def __init__(self, call: str, error: BaseException | None = None) -> None:
        super().__init__(16, SIZE, manual=True)
        self._call = call
        self._error = error or MemoryError("no room for its penalties")
        self._bad: set[int] = set()

    def bind(self, row: int, params: SamplingParams, tokens: Int32Array, outputs: int = 0) -> None:
        self._bad.discard(row)
        if len(tokens) == 3:
            if self._call == "bind":
                raise self._error
            self._bad.add(row)
        super().bind(row, params, tokens, outputs)

    def unbind(self, row: int) -> None:
        super().unbind(row)
        if row in self._bad:
            raise self._error


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("chunked", [4, 64])
def test_who_cannot_be_bound_fails_alone_and_is_in_no_batch(depth: int, chunked: int) -> None:
    bench = Bench(runner=Picky("bind"), steps_in_flight=depth, max_batched_tokens=chunked)
    bench.add("a", 5, 6)
    bench.turn()
    doomed = bench.add("bad", 3)
    other = bench.add("worse", 3)
    bench.add("c", 6, 6)
    rows = {bench.row("bad"), bench.row("worse")}
    bench.run(lambda: doomed.finish is not None and other.finish is not None)
    for heard in (doomed, other):
        assert heard.finish is FinishReason.ERROR
        assert heard.outputs[-1].error == "MemoryError: no room for its penalties"
    assert not rows & {row for batch in bench.runner.launched for row in batch.rows.tolist()}
    bench.run()
    bench.assert_undisturbed("a", [10] * 5, 6)
    bench.assert_undisturbed("c", [13] * 6, 6)
    bench.add("d", 4)
    bench.run()
    bench.assert_undisturbed("d", [14] * 4, 4)
    assert bench.free == 16


def test_a_step_of_which_no_row_can_be_bound_is_not_launched() -> None:
    bench = Bench(runner=Picky("bind"))
    doomed = bench.add("bad", 3)
    bench.run()
    assert doomed.outputs[-1].error == "MemoryError: no room for its penalties"
    assert bench.runner.launched == []
    assert bench.free == 16


@pytest.mark.parametrize("end", ["length", "abort"])
@pytest.mark.parametrize("error", [RuntimeError(), SystemExit()])
def test_who_cannot_be_unbound_has_ended_all_the_same(end: str, error: BaseException) -> None:
    bench = Bench(runner=Picky("unbind", error))
    heard = bench.add("bad", 3)
    bench.add("b", 5)
    bench.turn()
    if end == "abort":
        assert bench.core.abort("bad")
    bench.run()
    assert heard.finish is FinishReason(end)
    bench.assert_undisturbed("b", [11] * 5, 4)
    bench.add("c", 4)
    bench.run()
    bench.assert_undisturbed("c", [12] * 4, 4)
    assert bench.free == 16


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


@pytest.mark.parametrize("call", ["bind", "launch", "collect"])
def test_a_runner_that_would_end_the_program_ends_its_own_requests(call: str) -> None:
    bench = Bench()
    called = getattr(bench.runner, call)
    failing = [True]

    def exits(*arguments: object) -> object:
        if failing.pop() if failing else False:
            sys.exit("the device is gone")
        return called(*arguments)

    setattr(bench.runner, call, exits)
    doomed = bench.add("a", 5)
    bench.turn()
    assert doomed.outputs[-1].error == "RunnerError: SystemExit: the device is gone"
    bench.runner._results.clear()
    bench.add("b", 5)
    bench.run()
    bench.assert_undisturbed("b", [11] * 5, 4)


class Hostile(Mapping[int, object]):
    """A mapping of the runner's own class that raises once it is read."""

    def __getitem__(self, row: int) -> object:
        raise RuntimeError("unreadable")

    def __iter__(self) -> Iterator[int]:
        raise RuntimeError("unreadable")

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize("field", ["errors", "logprobs"])
def test_what_cannot_be_read_of_a_result_fails_its_step(field: str) -> None:
    bench = Bench(runner=Wrong(lambda result: result._replace(**{field: Hostile()})))
    doomed = bench.add("a", 5)
    bench.run()
    assert doomed.outputs[-1].error == "RuntimeError: unreadable"
    bench.add("b", 5)
    bench.run()
    bench.assert_undisturbed("b", [11] * 5, 4)


class MuteError(RuntimeError):
    """It cannot be put into words."""

    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize("row", [0.0, np.int64(0), False])
def test_a_rows_error_may_be_of_any_kind_and_under_any_name_of_the_row(row: object) -> None:
    def told(result: StepResult) -> StepResult:
        return result._replace(errors={row: MuteError()})  # type: ignore[dict-item]

    bench = Bench(runner=Wrong(told))
    doomed = bench.add("a", 5)
    bench.add("b", 5)
    assert bench.row("a") == 0
    bench.run()
    assert doomed.outputs[-1].error == "MuteError, which cannot be put into words"
    bench.assert_undisturbed("b", [11] * 5, 4)


def test_a_device_that_times_out_though_nobody_gave_it_a_time_has_failed_its_step() -> None:
    class Impatient(FakeRunner):
        def collect(self, step: int, timeout: float | None = None) -> StepResult:
            if step == 2:
                self.finish()
                raise TimeoutError("the device's own")
            return super().collect(step, timeout)

    bench = Bench(runner=Impatient(16, SIZE, manual=True))
    doomed = bench.add("a", 5)
    bench.turn()
    bench.core.launch_step()
    assert bench.core.reset_prefix_cache().result(0).success
    assert doomed.outputs[-1].error == "TimeoutError: the device's own"
    bench.add("b", 5)
    bench.run()
    bench.assert_undisturbed("b", [11] * 5, 4)


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


# --- a device that never answers, and a shutdown ------------------------------------------------


class Deaf(FakeRunner):
    """Never ends a step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.asked = threading.Event()

    def collect(self, step: int, timeout: float | None = None) -> StepResult:
        self.asked.set()
        raise TimeoutError


@pytest.mark.parametrize("drain", [True, False])
def test_a_shutdown_gives_up_a_device_that_never_answers(drain: bool) -> None:
    bench = Bench(runner=Deaf(16, SIZE, manual=True), watchdog=60.0)
    heard = bench.add("a", 5)
    bench.core.launch_step()
    stopped = bench.core.shutdown(drain, 0.5)
    bench.now = 0.6
    bench.core.tick()
    assert heard.finish is FinishReason.ABORT
    bench.now = 60.0
    bench.core.tick()
    assert not stopped.done()
    assert bench.core.next_time() == pytest.approx(0.6 if drain else 0.0)
    bench.now = 60.7
    with pytest.raises(EngineFailedError, match=r"has not answered step 1 for 6[01] s"):
        bench.core.tick()
    with pytest.raises(EngineFailedError, match="has not answered step 1"):
        stopped.result(0)
    assert bench.free < 16, "who knows whether it still writes"


def test_a_slow_device_is_not_given_up_while_it_answers() -> None:
    """Silence is counted from its last answer, not from the end of the requests."""
    bench = Bench(steps_in_flight=2, watchdog=60.0)
    bench.add("a", 5)
    assert bench.core.launch_step()
    assert bench.core.launch_step()
    stopped = bench.core.shutdown(drain=False)
    bench.core.tick()
    bench.now = 40.0
    assert bench.core.finish_step(), "the first of the two is answered"
    bench.core.tick()
    bench.now = 80.0
    bench.core.tick()
    assert bench.core.next_time() == pytest.approx(20.0)
    assert bench.core.finish_step()
    bench.core.tick()
    assert stopped.result(0) is None


def test_an_engine_whose_device_never_answers_can_be_shut_down() -> None:
    runner = Deaf(16, SIZE)
    config = EngineConfig(num_blocks=16, block_size=SIZE, max_model_len=64, watchdog=0.05)
    engine = Engine(config, runner)
    params = SamplingParams(max_tokens=4, temperature=0.0)
    engine.add_request("a", [1, 2, 3], params, on_output=lambda _: None)
    assert runner.asked.wait(30), "its first step is launched"
    with pytest.raises(EngineFailedError, match="has not answered step 1"):
        engine.shutdown(timeout=0.0)
    engine.shutdown()  # once more: it has failed already, and that is no error
    assert not engine.healthy()[0]
