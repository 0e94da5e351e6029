"""The fake device shows what a real one would suffer in silence."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from kvproof.runtime.fake import FakeRunner, expected_tokens
from kvproof.runtime.protocols import StepBatch
from kvproof.runtime.sampling_params import SamplingParams

GREEDY = SamplingParams(max_tokens=4, temperature=0.0)


def batch(step: int, row: int, start: int, tokens: list[int], table: list[int]) -> StepBatch:
    def array(*values: int) -> np.ndarray:  # type: ignore[type-arg]
        return np.array(values, dtype=np.int32)

    return StepBatch(
        step, array(row), array(start), array(len(tokens)), array(*tokens),
        array(*table).reshape(1, -1), np.ones(1, dtype=np.bool_),
    )  # fmt: skip


def bound(runner: FakeRunner, row: int, tokens: list[int]) -> None:
    runner.bind(row, GREEDY, np.array(tokens, dtype=np.int32))


def test_the_output_depends_on_every_token_before_it() -> None:
    outputs = {tuple(expected_tokens(prompt, 3)) for prompt in ([1, 2, 3], [9, 2, 3], [1, 2])}
    assert len(outputs) == 3


def test_kv_is_written_when_a_step_finishes_and_not_before() -> None:
    runner = FakeRunner(4, 4, manual=True)
    bound(runner, 0, [1, 2, 3])
    runner.launch(batch(1, 0, 0, [1, 2, 3], [2]))
    assert not runner.kv.slots.any()
    assert not runner.done(1)
    runner.finish()
    assert runner.done(1)
    assert np.count_nonzero(runner.kv.slots[2]) == 3
    assert runner.collect(1).sampled.tolist() == expected_tokens([1, 2, 3], 1)


def test_a_block_that_is_given_away_too_early_shows_as_corruption() -> None:
    """Two requests write to block 0; the first one goes on reading it."""
    runner = FakeRunner(4, 4, manual=True)
    bound(runner, 0, [1, 2, 3, 4])
    bound(runner, 1, [5, 6, 7, 8])
    runner.launch(batch(1, 0, 0, [1, 2, 3, 4], [0]))
    runner.launch(batch(2, 1, 0, [5, 6, 7, 8], [0]))
    first = runner.collect(1).sampled.tolist()
    runner.collect(2)
    assert runner.corruptions == []
    runner.launch(batch(3, 0, 4, first, [0, 1]))
    wrong = runner.collect(3).sampled.tolist()
    assert wrong != expected_tokens([1, 2, 3, 4, *first], 1)
    assert (runner.corruptions[0].block, runner.corruptions[0].position) == (0, 0)


def test_a_block_that_is_read_before_it_is_written_shows_as_corruption() -> None:
    runner = FakeRunner(4, 4, manual=True)
    bound(runner, 0, [1, 2, 3, 4, 5])
    runner.launch(batch(1, 0, 4, [5], [3, 1]))
    runner.collect(1)
    assert [corruption.position for corruption in runner.corruptions] == [0, 1, 2, 3]


def test_the_token_that_the_last_step_sampled_is_known_to_the_device() -> None:
    runner = FakeRunner(4, 4, manual=True)
    bound(runner, 0, [1, 2, 3])
    runner.launch(batch(1, 0, 0, [1, 2, 3], [0]))
    runner.launch(batch(2, 0, 3, [-1], [0]))
    sampled = [runner.collect(step).sampled[0] for step in (1, 2)]
    assert sampled == expected_tokens([1, 2, 3], 2)


def test_steps_run_in_a_thread_of_their_own() -> None:
    runner = FakeRunner(4, 4)
    bound(runner, 0, [1, 2, 3])
    runner.launch(batch(1, 0, 0, [1, 2, 3], [0]))
    assert runner.collect(1, timeout=30).sampled.tolist() == expected_tokens([1, 2, 3], 1)
    with pytest.raises(TimeoutError, match="step 2"):
        runner.collect(2, timeout=0)
    runner.close()
    runner.close()
    assert "fake-runner" not in {thread.name for thread in threading.enumerate()}
