"""Greedy tokens through the whole engine are those of `transformers`, whatever happens to them.

Every scenario runs on a tiny random model each day, on two prompts of SmolLM2 each day, and on
twenty prompts of it in the long run; with one step in flight and with two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from kvproof.runtime.model import zoo
from kvproof.runtime.model.export import export
from kvproof.runtime.model.load import LoadedModel
from kvproof.statemachine import RequestState

from ..model import tiny
from ..model.test_smollm2 import PROMPTS
from .driving import Driver

Tokens = list[int]


@dataclass(frozen=True)
class Subject:
    """A model, prompts, and what `transformers` answers to any sequence."""

    model: LoadedModel
    prompts: Sequence[Tokens]
    count: int
    block_size: int
    reference: Callable[[Tokens, int], Tokens]

    def expected(self) -> list[Tokens]:
        return [self.reference(prompt, self.count) for prompt in self.prompts]

    def pool(self) -> int:
        """Blocks for all of the prompts, with their outputs, at once."""
        return sum(-(-(len(p) + self.count) // self.block_size) + 1 for p in self.prompts)

    def drive(self, steps: int, blocks: int | None = None, **options: Any) -> Driver:
        return Driver(
            self.model,
            num_blocks=blocks or self.pool(),
            block_size=self.block_size,
            steps_in_flight=steps,
            **options,
        )


Scenario = Callable[[Subject, int], None]


def batching(subject: Subject, steps: int) -> None:
    driver = subject.drive(steps)
    assert driver.run(subject.prompts, subject.count) == subject.expected()
    driver.close()


def chunked_prefill(subject: Subject, steps: int) -> None:
    driver = subject.drive(steps, max_batched_tokens=3 + len(subject.prompts) // 4)
    assert driver.run(subject.prompts, subject.count) == subject.expected()
    longest = max(len(prompt) for prompt in subject.prompts)
    assert (
        driver.core.lifecycle.launched > subject.count + longest // driver.config.max_batched_tokens
    )
    driver.close()


def preemption_at_random_steps(subject: Subject, steps: int, seed: int = 1) -> None:
    driver = subject.drive(steps, disturb=0.25, seed=seed)
    assert driver.run(subject.prompts, subject.count) == subject.expected()
    assert driver.resets > 0
    assert driver.core.stats().preemptions > 0
    driver.close()


def too_few_blocks(subject: Subject, steps: int) -> None:
    longest = max(len(prompt) for prompt in subject.prompts) + subject.count
    least = -(-longest // subject.block_size) + 1
    driver = subject.drive(steps, blocks=max(least, subject.pool() * 2 // 3))
    assert driver.run(subject.prompts, subject.count) == subject.expected()
    assert driver.core.stats().preemptions > 0
    driver.close()


def prefix_hits(subject: Subject, steps: int) -> None:
    driver = subject.drive(steps, blocks=2 * subject.pool())
    expected = subject.expected()
    assert driver.run(subject.prompts, subject.count) == expected
    # What was answered is part of the prefix now: a hit on what decoding wrote.
    grown = [p + e[:-2] for p, e in zip(subject.prompts, expected, strict=True)]
    assert driver.run(grown, 2) == [tokens[-2:] for tokens in expected]
    assert driver.core.stats().prefix_hits > 0
    driver.close()


def host_tier_loads(subject: Subject, steps: int) -> None:
    driver = subject.drive(steps, tier_blocks=2 * subject.pool())
    expected = subject.expected()
    assert driver.run(subject.prompts, subject.count) == expected
    driver.settle()
    assert driver.core.reset_prefix_cache().result(0).success
    grown = [p + e[:-2] for p, e in zip(subject.prompts, expected, strict=True)]
    assert driver.run(grown, 2) == [tokens[-2:] for tokens in expected]
    assert driver.core.stats().tier_loaded_bytes > 0
    driver.close()


def sessions(subject: Subject, steps: int, reclaim: bool) -> None:
    """Two turns each; the second's input is the next prompt's beginning."""
    half = subject.count // 2
    chunks = [prompt[:3] for prompt in (*subject.prompts[1:], subject.prompts[0])]
    first = [tokens[:half] for tokens in subject.expected()]
    second = [
        subject.reference([*prompt, *answer, *chunk], half)
        for prompt, answer, chunk in zip(subject.prompts, first, chunks, strict=True)
    ]
    driver = subject.drive(steps, blocks=2 * subject.pool(), max_num_seqs=64)
    heard = [driver.add(prompt, half, resumable=True) for prompt in subject.prompts]
    driver.until(lambda: all(one.turns == 1 for _, one in heard))
    core = driver.core
    if reclaim:
        assert core.stats().holds["REQUEST"] == len(heard)
        assert core.reset_prefix_cache(reset_running_requests=True).result(0).success
        assert core.holds() == []
    for (name, one), chunk in zip(heard, chunks, strict=True):
        assert core.lifecycle.state_of(core.lifecycle.row_of(name)) == (
            RequestState.WAITING_FOR_STREAMING_REQ
        )
        assert len(one.tokens) == half
        core.add_chunk(name, chunk)
        core.close_input(name)
    driver.until(lambda: all(one.finish is not None for _, one in heard))
    assert [one.tokens for _, one in heard] == [a + b for a, b in zip(first, second, strict=True)]
    driver.close()


SCENARIOS: dict[str, Scenario] = {
    "batching": batching,
    "chunked prefill": chunked_prefill,
    "preemption at random steps": preemption_at_random_steps,
    "too few blocks": too_few_blocks,
    "prefix hits": prefix_hits,
    "host tier loads": host_tier_loads,
    "sessions": partial(sessions, reclaim=False),
    "sessions that are reclaimed": partial(sessions, reclaim=True),
}
every_scenario = pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
one_step_or_two = pytest.mark.parametrize("steps", [1, 2])


def reference_of(model: transformers.PreTrainedModel, end: int) -> Callable[[Tokens, int], Tokens]:
    """Greedy answers of `transformers`, each sequence by itself; remembered."""
    known: dict[tuple[tuple[int, ...], int], Tokens] = {}

    def answer(tokens: Tokens, count: int) -> Tokens:
        key = (tuple(tokens), count)
        if key not in known:
            ids = torch.tensor([tokens])
            with torch.inference_mode():
                out = model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=count,
                    min_new_tokens=count,
                    do_sample=False,
                    pad_token_id=end,
                )
            known[key] = out[0, len(tokens) :].tolist()
        return known[key]

    return answer


@pytest.fixture(scope="module")
def tiny_subject(tiny_model: LoadedModel) -> Subject:
    torch.set_num_threads(1)
    prompts = [tiny.tokens(length, seed=length).tolist() for length in (5, 9, 14, 23, 6)]
    prompts.append(prompts[3][:16] + prompts[0])  # shares four blocks
    return Subject(tiny_model, prompts, 16, 4, reference_of(tiny.make_model("llama"), 2))


@one_step_or_two
@every_scenario
def test_a_tiny_models_tokens_are_those_of_transformers(
    tiny_subject: Subject, scenario: Scenario, steps: int
) -> None:
    scenario(tiny_subject, steps)


@one_step_or_two
@pytest.mark.parametrize("seed", range(1, 6))
def test_preemption_changes_no_token_wherever_it_falls(
    tiny_subject: Subject, seed: int, steps: int
) -> None:
    preemption_at_random_steps(tiny_subject, steps, seed)


def test_a_wrong_block_would_be_noticed(tiny_subject: Subject) -> None:
    """The comparison can fail: one step that is given another request's blocks changes tokens."""
    driver = tiny_subject.drive(1)
    launch = driver.runner.launch

    def swapped(batch: Any) -> None:
        if batch.step == 8:
            tables = batch.tables.copy()
            tables[[0, 1], 0] = tables[[1, 0], 0]
            batch = batch._replace(tables=tables)
        launch(batch)

    driver.runner.launch = swapped  # type: ignore[method-assign]
    assert driver.run(tiny_subject.prompts, tiny_subject.count) != tiny_subject.expected()
    driver.close()


# What `transformers` answers to the first two prompts; the long run holds it to that.
# fmt: off
STORED: tuple[Tokens, Tokens] = (
    [7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33, 40, 29, 32, 33,
     29, 34, 34, 216, 33, 34, 42, 33, 34, 42, 37, 35, 30, 198, 198, 504],
    [5732, 288, 1238, 351, 874, 9173, 30, 2306, 761, 253, 2066, 9256, 284, 5732, 288, 1464,
     874, 1038, 2684, 30, 1963, 1194, 28, 1041, 4041, 288, 1464, 253, 1977, 563, 253, 12833],
)
# fmt: on


def stored(prompts: Sequence[Tokens]) -> Callable[[Tokens, int], Tokens]:
    """The stored answers to these prompts, and to what was grown from them."""

    def answer(tokens: Tokens, count: int) -> Tokens:
        for prompt, output in zip(prompts, STORED, strict=True):
            if tokens[: len(prompt)] == prompt:
                at = len(tokens) - len(prompt)
                assert tokens[len(prompt) :] == output[:at]
                return output[at : at + count]
        raise AssertionError("no stored answer begins so")

    return answer


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        pytest.param("chunked prefill", 1, marks=pytest.mark.long),
        ("preemption at random steps", 2),
        ("host tier loads", 2),
    ],
)
def test_two_prompts_of_smollm2_have_the_stored_tokens(
    smollm2: LoadedModel, name: str, steps: int
) -> None:
    torch.set_num_threads(1)
    prompts = [smollm2.tokenizer.encode(prompt).tolist() for prompt in PROMPTS[:2]]
    SCENARIOS[name](Subject(smollm2, prompts, 16, 4, stored(prompts)), steps)


@pytest.fixture(scope="module")
def smollm2_subject(smollm2: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    torch.set_num_threads(1)  # two wait for each other by spinning when a core is taken
    directory: Path = tmp_path_factory.mktemp("exported") / "model"
    export(zoo.fetch("smollm2-135m"), directory)
    reference = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()
    prompts = [smollm2.tokenizer.encode(prompt).tolist() for prompt in PROMPTS]
    return Subject(smollm2, prompts, 32, 16, reference_of(reference, 2))


@pytest.mark.long
def test_the_stored_tokens_are_those_of_transformers(smollm2_subject: Subject) -> None:
    assert tuple(smollm2_subject.expected()[:2]) == STORED


@pytest.mark.long
@one_step_or_two
@every_scenario
def test_twenty_prompts_of_smollm2_are_answered_as_by_transformers(
    smollm2_subject: Subject, scenario: Scenario, steps: int
) -> None:
    torch.set_num_threads(1)
    scenario(smollm2_subject, steps)
