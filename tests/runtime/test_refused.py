"""Prompts and configurations that cannot be are refused, by name, before anything changes."""

from __future__ import annotations

import numpy as np
import pytest
from kvproof.runtime.api import CHOICES, EngineConfig, InvalidRequestError, RequestOutput
from kvproof.runtime.fake import expected_tokens
from kvproof.runtime.prefix import HASHES
from kvproof.runtime.sampling_params import SamplingParams

from .harness import Bench

GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


@pytest.mark.parametrize(
    "tokens",
    [[], [1, -2], [1, 1000], [1.5, 2], ["a"], [[1, 2]], np.ones((2, 2)), np.array([0.5]), None],
)
def test_a_prompt_that_is_no_list_of_tokens_is_refused(tokens: object) -> None:
    bench = Bench(core={"vocabulary": 1000})
    with pytest.raises(InvalidRequestError):
        bench.core.add_request("a", tokens, GREEDY, on_output=print)  # type: ignore[arg-type]
    assert bench.lifecycle.live == 0
    assert bench.lifecycle.row_of("a") is None


def test_a_prompt_is_copied() -> None:
    bench = Bench()
    prompt = np.array([1, 2, 3], dtype=np.int32)
    heard: list[RequestOutput] = []
    bench.core.add_request("a", prompt, GREEDY, on_output=heard.append)
    prompt[:] = 9
    bench.run()
    assert [output.tokens[0] for output in heard] == expected_tokens([1, 2, 3], 8)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("policy", "lottery", "policy 'lottery'; it is one of fcfs, priority"),
        ("load_failure_policy", "hope", "it is one of recompute, fail"),
        ("steps_in_flight", 3, "it is one of 1, 2"),
        ("num_blocks", 0, "num_blocks 0; it is an integer, 1 or more"),
        ("max_model_len", 1, "it is an integer, 2 or more"),
        ("hash_algorithm", "md5", "it is one of xxh3_128"),
        ("block_size", 16.0, "block_size 16.0; it is an integer, 1 or more"),
        ("steps_in_flight", True, "it is one of 1, 2"),
        ("cancel_lease", -1.0, "it is a number, 0 or more"),
        ("session_deadline", float("nan"), "it is a number, 0 or more"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_by_field(
    field: str, value: object, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        EngineConfig(**{field: value})  # type: ignore[arg-type]


def test_a_configuration_may_name_every_hash_that_there_is() -> None:
    assert CHOICES["hash_algorithm"] == tuple(HASHES)
