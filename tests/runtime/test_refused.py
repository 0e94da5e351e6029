"""Prompts and configurations that cannot be are refused, by name, before anything changes."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator

import numpy as np
import pytest
from kvproof.runtime.api import CHOICES, EngineConfig, InvalidRequestError, RequestOutput
from kvproof.runtime.fake import expected_tokens
from kvproof.runtime.prefix import HASHES
from kvproof.runtime.sampling_params import SamplingParams

from .harness import Bench


class Breaking:
    """Tokens of a caller's own class that raise."""

    def __init__(self, at: str) -> None:
        self.at = at

    def __len__(self) -> int:
        if self.at == "len":
            raise RuntimeError("len")
        return 2

    def __iter__(self) -> Iterator[int]:
        if self.at == "iter":
            raise RuntimeError("iter")
        return iter((1, 1))


GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


@pytest.mark.parametrize(
    "tokens",
    [
        [], [1, -2], [1, 1000], [1.5, 2], ["a"], [[1, 2]], [True, False], [7, True], [None],
        b"ab", bytearray(b"ab"), memoryview(b"ab"), "ab", {1: 2}, {1, 2}, frozenset((1,)), 5, None,
        np.ones((2, 2)), np.ones((2, 2), dtype=np.int32), np.array([0.5]), np.array([1.0, 2.0]),
        np.array([True]), np.array([1, 2], dtype=object), np.array(["1", "2"]), np.array(3),
        np.array([1 << 63], dtype=np.uint64), np.array([1 << 32], dtype=np.int64),
        np.array([1 + 2j]), np.array(["2020"], dtype="datetime64[Y]"), (token for token in [1]),
        Breaking("len"), Breaking("iter"),
    ],
)  # fmt: skip
def test_a_prompt_that_is_no_list_of_tokens_is_refused(tokens: object) -> None:
    bench = Bench(core={"vocabulary": 1000})
    with pytest.raises(InvalidRequestError):
        bench.core.add_request("a", tokens, GREEDY, on_output=print)  # type: ignore[arg-type]
    assert bench.lifecycle.live == 0
    assert bench.lifecycle.row_of("a") is None


@pytest.mark.parametrize(
    "tokens",
    [
        [0, 1, 2], (0, 1, 2), range(3), array("i", [0, 1, 2]), deque([0, 1, 2]),
        np.arange(3), np.arange(3, dtype=np.uint8), list(np.arange(3)),
        {"a": 0, "b": 1, "c": 2}.values(),
    ],
)  # fmt: skip
def test_every_sequence_of_integers_is_a_prompt(tokens: object) -> None:
    bench = Bench()
    heard: list[RequestOutput] = []
    bench.core.add_request("a", tokens, GREEDY, on_output=heard.append)  # type: ignore[arg-type]
    bench.run()
    assert [output.tokens[0] for output in heard] == expected_tokens([0, 1, 2], 8)


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
        ("session_deadline", 10**400, "it is a number, 0 or more"),
        ("watchdog", "60", "it is a number, 0.001 or more"),
        (
            "num_blocks",
            np.int64(4),
            r"num_blocks np.int64\(4\); it is an integer, 1 or more, as an int",
        ),
        ("num_blocks", 1 << 31, "1 or more and 2147483647 or less"),
        ("max_batched_tokens", 1 << 70, "1 or more and 2147483647 or less"),
        ("host_tier_bytes", 1 << 63, "0 or more and 9223372036854775807 or less"),
        ("steps_in_flight", 1.0, "steps_in_flight 1.0; it is one of 1, 2"),
        ("policy", np.array(["fcfs", "priority"]), "it is one of fcfs, priority"),
        ("hash_algorithm", [], "it is one of xxh3_128"),
        ("check", "no", "check 'no'; it is a bool"),
        ("check", 1, "check 1; it is a bool"),
        ("dtype", 5, "dtype 5; it is a str"),
        ("model_digest", None, "model_digest None; it is a str"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_by_field(
    field: str, value: object, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        EngineConfig(**{field: value})  # type: ignore[arg-type]


def test_a_configuration_may_name_every_hash_that_there_is() -> None:
    assert CHOICES["hash_algorithm"] == tuple(HASHES)
