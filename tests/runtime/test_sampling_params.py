"""What a client may ask of sampling, and what is refused before a request exists."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from kvproof.runtime.sampling_params import SamplingParams, SamplingParamsError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("n", True),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", "16"),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", None),
        ("top_k", -2),
        ("top_k", 1.0),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 2.0),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("seed", 1 << 63),
        ("seed", "7"),
        ("stop", ["a", ""]),
        ("stop", [3]),
        ("stop", 3),
        ("stop", ["x"] * 65),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["a"]),
        ("stop_token_ids", 5),
        ("ignore_eos", 1),
        ("logprobs", 21),
        ("logprobs", -1),
    ],
)
def test_a_value_that_cannot_be_served_is_refused_by_its_field(field: str, value: Any) -> None:
    with pytest.raises(SamplingParamsError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field


def test_one_stop_string_and_a_list_of_them_are_the_same() -> None:
    assert SamplingParams(stop="end").stop == SamplingParams(stop=["end"]).stop == ("end",)
    assert SamplingParams(stop=None, stop_token_ids=None).stop == ()


def test_parameters_do_not_change_once_made() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().seed = 3  # type: ignore[misc]


def test_temperature_zero_is_greedy() -> None:
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams().greedy
