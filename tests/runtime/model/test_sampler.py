"""The sampler: what each parameter does, and that a row's draw is its own affair."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kvproof.runtime.model.sampler import Sampler, uniforms
from kvproof.runtime.sampling_params import SamplingParams

VOCABULARY = 600
EOS = 7
CPU = torch.device("cpu")


def make(*params: SamplingParams, history: tuple[int, ...] = (), outputs: int = 0) -> Sampler:
    sampler = Sampler(VOCABULARY, (EOS,), CPU)
    for row, each in enumerate(params):
        sampler.bind(row, each, history, outputs)
    return sampler


def draw(sampler: Sampler, logits: torch.Tensor, rows: Any, lengths: Any) -> list[int]:
    sampled = sampler.sample(logits.clone(), np.array(rows), np.array(lengths))
    assert sampled.finite.all()
    return sampled.tokens.tolist()


def logits_of(rows: int, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * scale


def draws(params: SamplingParams, logits: torch.Tensor, count: int = 1500) -> np.ndarray:
    """Tokens drawn from one row of logits at many positions."""
    sampler = make(params)
    rows = np.zeros(count, np.int64)
    many = logits.expand(count, -1).clone()
    return sampler.sample(many, rows, np.arange(count)).tokens


def test_greedy_takes_the_likeliest() -> None:
    logits = logits_of(5)
    sampler = make(*[SamplingParams(temperature=0)] * 5)
    assert draw(sampler, logits, range(5), [1] * 5) == logits.argmax(-1).tolist()


def test_draws_follow_the_distribution() -> None:
    logits = torch.full((1, VOCABULARY), -20.0)
    logits[0, [3, 50, 590]] = torch.tensor([0.5, 0.3, 0.2]).log()
    tokens = draws(SamplingParams(temperature=1.0, seed=1), logits, 8000)
    shares = [(tokens == token).mean() for token in (3, 50, 590)]
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.2], atol=0.025)


def test_temperature_sharpens() -> None:
    logits = torch.full((1, VOCABULARY), -50.0)
    logits[0, [3, 50]] = torch.tensor([0.6, 0.4]).log()
    tokens = draws(SamplingParams(temperature=0.5, seed=1), logits, 8000)
    assert (tokens == 3).mean() == pytest.approx(0.36 / (0.36 + 0.16), abs=0.025)


def test_a_temperature_near_zero_is_greedy_and_no_overflow() -> None:
    logits = logits_of(1, scale=50.0)
    assert set(draws(SamplingParams(temperature=1e-30, seed=1), logits, 50)) == {
        int(logits.argmax())
    }


@pytest.mark.parametrize("top_k", [1, 3, 520])
def test_top_k_keeps_the_k_likeliest(top_k: int) -> None:
    logits = logits_of(1, scale=0.1)
    kept = set(logits[0].topk(top_k).indices.tolist())
    tokens = set(draws(SamplingParams(top_k=top_k, seed=3), logits, 3000).tolist())
    assert tokens <= kept
    assert len(tokens) > 0.9 * len(kept)


@pytest.mark.parametrize(("top_p", "scale"), [(0.5, 2.0), (0.9, 2.0), (0.9, 0.01), (0.999, 2.0)])
def test_top_p_keeps_the_smallest_set_with_that_mass(top_p: float, scale: float) -> None:
    logits = logits_of(1, scale=scale)  # flat logits need more than the candidates
    order = logits[0].softmax(-1).sort(descending=True)
    size = int((order.values.cumsum(-1) < top_p).sum()) + 1
    kept = set(order.indices[:size].tolist())
    tokens = set(draws(SamplingParams(top_p=top_p, seed=3), logits).tolist())
    assert tokens <= kept
    assert len(tokens & set(order.indices[: size // 2].tolist())) > 0.4 * (size // 2)


def test_top_p_counts_the_mass_that_top_k_left() -> None:
    logits = torch.full((1, VOCABULARY), -50.0)
    logits[0, :4] = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    both = SamplingParams(top_k=2, top_p=0.5, seed=2)  # of 0.7, 0.4 is more than half
    assert set(draws(both, logits).tolist()) == {0}
    assert set(draws(SamplingParams(top_p=0.5, seed=2), logits).tolist()) == {0, 1}


def test_min_p_keeps_what_is_near_the_likeliest() -> None:
    logits = torch.full((1, VOCABULARY), -50.0)
    logits[0, :4] = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert set(draws(SamplingParams(min_p=0.25, seed=2), logits).tolist()) == {0, 1, 2}


def test_a_draw_does_not_depend_on_its_neighbours() -> None:
    params = [
        SamplingParams(temperature=0),
        SamplingParams(seed=5, top_p=0.8),
        SamplingParams(seed=6, top_k=550),
        SamplingParams(seed=7, min_p=0.1, temperature=1.5),
        SamplingParams(seed=8, repetition_penalty=1.4),
        SamplingParams(seed=9),
    ]
    sampler = make(*params, history=tuple(range(0, VOCABULARY, 3)))
    logits = logits_of(6)
    together = draw(sampler, logits, range(6), [10] * 6)
    alone = [draw(sampler, logits[row : row + 1], [row], [10])[0] for row in range(6)]
    shuffled = [4, 2, 0, 5, 1, 3]
    assert alone == together
    assert draw(sampler, logits[shuffled], shuffled, [10] * 6) == [together[i] for i in shuffled]


def test_a_seed_and_a_position_fix_the_draw_in_any_row() -> None:
    logits = logits_of(1)
    params = SamplingParams(seed=42)
    sampler = make(params, SamplingParams(seed=43), params)
    walk = [[draw(sampler, logits, [row], [at])[0] for at in range(30)] for row in range(3)]
    assert walk[0] == walk[2] != walk[1]


def test_requests_without_a_seed_differ() -> None:
    logits = logits_of(1)
    sampler = make(SamplingParams(), SamplingParams())
    walks = [[draw(sampler, logits, [row], [at])[0] for at in range(30)] for row in range(2)]
    assert walks[0] != walks[1]


def test_the_random_stream_is_uniform_and_never_one() -> None:
    seeds = np.arange(200, dtype=np.uint64).repeat(500)
    values = uniforms(seeds, np.tile(np.arange(500), 200))
    assert values.min() >= 0.0
    assert values.max() < 1.0
    counts = np.histogram(values, bins=50, range=(0, 1))[0]
    assert np.abs(counts - 2000).max() < 250
    grid = values.reshape(200, 500)
    assert abs(np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.02


def test_a_repetition_penalty_weakens_what_was_seen() -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, :4] = torch.tensor([2.0, 1.5, -0.1, -0.2])
    penalised = SamplingParams(temperature=0, repetition_penalty=2.0)
    assert draw(make(penalised), logits, [0], [5]) == [0]
    assert draw(make(penalised, history=(0,)), logits, [0], [5]) == [1]
    sampler = make(penalised, history=(0,))
    sampler.saw(np.array([0]), np.array([1]))  # fed since
    assert draw(sampler, logits, [0], [5]) == [0]  # 1.0 against 0.75
    sampler.bind(0, penalised, (1,), 0)  # a new tenant has its own history
    assert draw(sampler, logits, [0], [5]) == [0]
    logits[0, 0] = -3.0
    sampler.bind(0, penalised, tuple(range(1, VOCABULARY)), 0)
    assert draw(sampler, logits, [0], [5]) == [1]


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_no_stop_token_comes_before_min_tokens(ignore_eos: bool) -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, [EOS, 20, 30]] = torch.tensor([5.0, 4.0, 3.0])
    params = SamplingParams(
        temperature=0, min_tokens=3, stop_token_ids=(20,), ignore_eos=ignore_eos
    )
    sampler = make(params, history=(1, 2, 3, 4), outputs=0)
    early = EOS if ignore_eos else 30  # an end token that ends nothing is a token
    assert draw(sampler, logits, [0], [4]) == [early]
    assert draw(sampler, logits, [0], [6]) == [early]
    assert draw(sampler, logits, [0], [7]) == [EOS]
    sampler.bind(0, params, (1, 2, 3, 4, 5, 6), 2)  # computed again after two outputs
    assert draw(sampler, logits, [0], [6]) == [early]
    assert draw(sampler, logits, [0], [7]) == [EOS]


def test_logprobs_are_the_models_own() -> None:
    logits = logits_of(3)
    params = [
        SamplingParams(seed=1, logprobs=2, temperature=0.1, repetition_penalty=3.0),
        SamplingParams(seed=1),
        SamplingParams(seed=1, logprobs=0),
    ]
    sampler = make(*params, history=tuple(range(500)))
    sampled = sampler.sample(logits.clone(), np.arange(3), np.array([5, 5, 5]))
    expected = logits.log_softmax(-1)
    assert set(sampled.logprobs) == {0, 2}
    for index, report in sampled.logprobs.items():
        assert report.token == sampled.tokens[index]
        assert report.logprob == pytest.approx(float(expected[index, report.token]), abs=1e-5)
    top = sampled.logprobs[0].top
    assert [token for token, _ in top] == expected[0].topk(2).indices.tolist()
    assert sampled.logprobs[2].top == ()


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_told_and_spoil_no_other_row(poison: float) -> None:
    logits = logits_of(3)
    sampler = make(*[SamplingParams(seed=3)] * 3)
    expected = draw(sampler, logits[[0, 2]], [0, 2], [5, 5])
    logits[1, 10] = poison
    sampled = sampler.sample(logits, np.arange(3), np.array([5, 5, 5]))
    assert sampled.finite.tolist() == [True, False, True]
    assert sampled.tokens[[0, 2]].tolist() == expected
