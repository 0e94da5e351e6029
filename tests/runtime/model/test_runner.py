"""The runner: steps in order, earlier samples filled in, failures that stay where they belong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from kvproof.runtime.model.errors import (
    NonFiniteLogitsError,
    StepFailedError,
    StepInputError,
)
from kvproof.runtime.model.load import LoadedModel, load_model
from kvproof.runtime.model.runner import TorchRunner
from kvproof.runtime.protocols import PREVIOUS_SAMPLE, StepBatch
from kvproof.runtime.sampling_params import SamplingParams

from . import tiny

GREEDY = SamplingParams(temperature=0)
BLOCK = 4
TIMEOUT = 60.0
Work = tuple[int, int, list[int], list[int]]  # row, start, tokens, table


@pytest.fixture(scope="module")
def model(directories: dict[str, Path]) -> LoadedModel:
    return load_model(directories["llama"])


@pytest.fixture
def runner(model: LoadedModel) -> Iterator[TorchRunner]:
    made = TorchRunner(model, num_blocks=64, block_size=BLOCK)
    yield made
    made.close()


def batch(step: int, *work: Work, samples: bool = True) -> StepBatch:
    """A step of several requests, all of which sample or none."""
    width = max(len(table) for *_, table in work)
    tables = np.full((len(work), width), -1, np.int32)
    for at, (*_, table) in enumerate(work):
        tables[at, : len(table)] = table
    return StepBatch(
        step=step,
        rows=np.array([row for row, *_ in work], np.int32),
        starts=np.array([start for _, start, *_ in work], np.int32),
        counts=np.array([len(tokens) for _, _, tokens, _ in work], np.int32),
        tokens=np.concatenate([np.array(tokens, np.int32) for _, _, tokens, _ in work]),
        tables=tables,
        samples=np.full(len(work), samples),
    )


def reference_tokens(
    model: transformers.PreTrainedModel, prompt: np.ndarray, count: int
) -> list[int]:
    """Greedy continuation, end tokens ignored."""
    tokens = torch.from_numpy(prompt.astype(np.int64))[None]
    for _ in range(count):
        with torch.inference_mode():
            tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(-1)], dim=1)
    return tokens[0, len(prompt) :].tolist()


def test_steps_in_flight_continue_from_samples_that_nobody_has_seen(
    runner: TorchRunner, references: dict[str, transformers.PreTrainedModel]
) -> None:
    prompts = {0: tiny.tokens(9, 1), 5: tiny.tokens(14, 2)}
    tables = {0: [3, 4, 5, 6, 7, 8], 5: [20, 11, 30, 12, 13, 40]}
    for row, prompt in prompts.items():
        runner.bind(row, GREEDY, prompt)
    runner.launch(
        batch(1, *((row, 0, prompt.tolist(), tables[row]) for row, prompt in prompts.items()))
    )
    for step in range(2, 9):
        runner.launch(
            batch(
                step,
                *(
                    (row, len(prompt) + step - 2, [PREVIOUS_SAMPLE], tables[row])
                    for row, prompt in prompts.items()
                ),
            )
        )
    results = [runner.collect(step, TIMEOUT) for step in range(1, 9)]
    for at, prompt in enumerate(prompts.values()):
        sampled = [int(result.sampled[at]) for result in results]
        assert sampled == reference_tokens(references["llama"], prompt, 8)
    assert all(not result.errors for result in results)


def test_a_chunk_that_asks_for_no_token_gets_none(runner: TorchRunner) -> None:
    prompt = tiny.tokens(8)
    runner.bind(0, GREEDY, prompt)
    runner.launch(batch(1, (0, 0, prompt[:5].tolist(), [1, 2]), samples=False))
    runner.launch(batch(2, (0, 5, prompt[5:].tolist(), [1, 2])))
    assert runner.collect(1, TIMEOUT).sampled.tolist() == [-1]
    assert runner.collect(2, TIMEOUT).sampled[0] >= 0


def test_a_preempted_request_continues_its_random_stream(runner: TorchRunner) -> None:
    prompt = tiny.tokens(6)
    params = SamplingParams(seed=11, temperature=1.3, top_p=0.95, repetition_penalty=1.2)
    runner.bind(0, params, prompt)
    runner.launch(batch(1, (0, 0, prompt.tolist(), [1, 2, 3, 4])))
    for step in range(2, 8):
        runner.launch(batch(step, (0, 4 + step, [PREVIOUS_SAMPLE], [1, 2, 3, 4])))
    undisturbed = [int(runner.collect(step, TIMEOUT).sampled[0]) for step in range(1, 8)]

    runner.unbind(0)
    known = np.concatenate([prompt, np.array(undisturbed[:3], np.int32)])
    runner.bind(9, params, known, outputs=3)
    runner.launch(batch(8, (9, 0, known.tolist(), [10, 12, 14, 16])))
    for step in range(9, 12):
        runner.launch(batch(step, (9, step, [PREVIOUS_SAMPLE], [10, 12, 14, 16])))
    resumed = [int(runner.collect(step, TIMEOUT).sampled[0]) for step in range(8, 12)]
    assert resumed == undisturbed[3:]


@pytest.mark.parametrize(
    ("work", "problem"),
    [
        ((0, 0, [3, 320, 4], [1]), "vocabulary"),
        ((0, 0, [3, -7, 4], [1]), "vocabulary"),
        ((0, 0, [PREVIOUS_SAMPLE], [1]), "vocabulary"),
        ((0, 0, [3, 4, 5, 6, 7], [1]), "table"),
        ((0, 0, [3, 4, 5], [64]), "table"),
        ((0, 0, [3, 4, 5], [-1]), "table"),
        ((0, 254, [3, 4, 5], [*range(64), 1]), "context"),
        ((0, -1, [3, 4], [1]), "context"),
        ((77, 0, [3, 4], [1]), "nobody"),
    ],
)
def test_one_requests_bad_input_is_its_own_failure(
    runner: TorchRunner, work: Work, problem: str
) -> None:
    prompt = tiny.tokens(6)
    runner.bind(0, GREEDY, prompt)
    runner.bind(1, GREEDY, prompt)
    runner.launch(batch(1, (1, 0, prompt.tolist(), [40, 41])))
    expected = runner.collect(1, TIMEOUT).sampled[0]
    runner.launch(batch(2, work, (1, 0, prompt.tolist(), [40, 41])))
    result = runner.collect(2, TIMEOUT)
    assert list(result.errors) == [work[0]]
    assert isinstance(result.errors[work[0]], StepInputError)
    assert problem in str(result.errors[work[0]])
    assert result.sampled.tolist() == [-1, expected]


def test_a_device_failure_is_told_to_every_request_and_the_runner_lives_on(
    runner: TorchRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = tiny.tokens(6)
    for row in (0, 1):
        runner.bind(row, GREEDY, prompt)
    hidden = runner._decoder.hidden
    fail = threading.Event()
    fail.set()

    def failing(*arguments: object) -> torch.Tensor:
        if fail.is_set():
            raise RuntimeError("the device is on fire")
        return hidden(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(runner._decoder, "hidden", failing)
    work = [(row, 0, prompt.tolist(), [2 * row, 2 * row + 1]) for row in (0, 1)]
    runner.launch(batch(1, *work))
    runner.launch(batch(2, (0, 6, [PREVIOUS_SAMPLE], [0, 1])))  # was in flight already
    first, second = runner.collect(1, TIMEOUT), runner.collect(2, TIMEOUT)
    assert set(first.errors) == {0, 1}
    assert all(isinstance(error, StepFailedError) for error in first.errors.values())
    assert "on fire" in str(first.errors[0])
    assert set(second.errors) == {0}
    fail.clear()
    runner.launch(batch(3, *work))
    assert not runner.collect(3, TIMEOUT).errors


def test_logits_that_are_no_numbers_fail_their_request_only(
    runner: TorchRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = tiny.tokens(6)
    for row in (0, 1):
        runner.bind(row, GREEDY, prompt)
    logits = runner._decoder.logits

    def poisoned(hidden: torch.Tensor) -> torch.Tensor:
        values = logits(hidden)
        values[0] = float("nan")
        return values

    monkeypatch.setattr(runner._decoder, "logits", poisoned)
    runner.launch(batch(1, *((row, 0, prompt.tolist(), [2 * row, 2 * row + 1]) for row in (0, 1))))
    result = runner.collect(1, TIMEOUT)
    assert isinstance(result.errors[0], NonFiniteLogitsError)
    assert list(result.errors) == [0]
    assert result.sampled[1] >= 0


def test_a_bind_that_fails_is_told_by_the_rows_next_step(runner: TorchRunner) -> None:
    runner.bind(0, SamplingParams(repetition_penalty=1.5), np.array([5000], np.int32))
    runner.launch(batch(1, (0, 0, [3], [1])))
    assert list(runner.collect(1, TIMEOUT).errors) == [0]
    runner.bind(0, GREEDY, np.array([3], np.int32))
    runner.launch(batch(2, (0, 0, [3], [1])))
    assert not runner.collect(2, TIMEOUT).errors


def test_launching_returns_while_the_device_works(
    runner: TorchRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = runner._decoder.hidden
    gate = threading.Event()

    def gated(*arguments: object) -> torch.Tensor:
        assert gate.wait(TIMEOUT)
        return hidden(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(runner._decoder, "hidden", gated)
    runner.bind(0, GREEDY, tiny.tokens(3))
    for step in (1, 2):
        runner.launch(batch(step, (0, 0, [3, 4, 5], [1])))
    assert not runner.done(1)
    with pytest.raises(TimeoutError, match="step 1"):
        runner.collect(1, timeout=0.0)
    gate.set()
    assert runner.collect(1, TIMEOUT).step == 1
    assert runner.collect(2, TIMEOUT).step == 2


def test_no_step_runs_without_weights_and_tokens_after_a_sleep_are_the_same(
    directories: dict[str, Path],
) -> None:
    runner = TorchRunner(load_model(directories["llama"]), num_blocks=8, block_size=BLOCK)
    prompt = tiny.tokens(6)
    runner.bind(0, GREEDY, prompt)
    work = (0, 0, prompt.tolist(), [1, 2])
    runner.launch(batch(1, work))
    before = runner.collect(1, TIMEOUT).sampled.tolist()
    for step, level in ((2, 1), (4, 2)):
        runner.release_weights(level)
        runner.kv.release()
        runner.launch(batch(step, work))
        assert isinstance(runner.collect(step, TIMEOUT).errors[0], StepFailedError)
        runner.restore_weights()
        runner.kv.restore()
        runner.launch(batch(step + 1, work))
        assert runner.collect(step + 1, TIMEOUT).sampled.tolist() == before
    runner.close()


def test_an_error_of_a_release_comes_back_to_the_caller(runner: TorchRunner) -> None:
    with pytest.raises(ValueError, match="level 9"):
        runner.release_weights(9)
    assert runner._weights.resident


def test_closing_ends_the_thread_after_what_was_launched(model: LoadedModel) -> None:
    runner = TorchRunner(model, num_blocks=8, block_size=BLOCK)
    runner.bind(0, GREEDY, tiny.tokens(3))
    runner.launch(batch(1, (0, 0, [3, 4, 5], [1])))
    runner.close()
    runner.close()
    assert runner.done(1)
    assert "kvproof-runner" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(RuntimeError, match="closed"):
        runner.launch(batch(2, (0, 0, [3], [1])))
