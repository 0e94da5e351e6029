"""How one request's tokens are chosen and when it ends: the fields a client may set, validated.

The names and defaults are those that the field uses (vLLM, OpenAI), so that a client's settings
carry over; what cannot be served is refused here, before a request exists.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MAX_LOGPROBS = 20
MAX_STOPS = 64


class SamplingParamsError(ValueError):
    """A sampling parameter that cannot be served. `field` names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling and stopping of one request.

    temperature: 0 is greedy. top_k: 0 or -1 keeps every token. Applied in this order: repetition
    penalty, temperature, min_p, top_k, top_p. repetition_penalty: above 1 discourages tokens
    that the prompt or the output already has. seed: fixes the request's random stream, whatever
    else is in its batch. max_tokens: None is "until the model's length". min_tokens: no stop
    token or stop string counts before. stop: strings that end the output and are cut from it.
    stop_token_ids: tokens that end it besides the model's own. logprobs: how many alternatives
    to report beside each sampled token; None reports nothing.

    Raises SamplingParamsError, which names the field.
    """

    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if _integer("n", self.n) != 1:
            raise SamplingParamsError("n", f"{self.n} outputs a prompt; only 1 is served")
        if self.max_tokens is not None and _integer("max_tokens", self.max_tokens) < 1:
            raise SamplingParamsError("max_tokens", f"{self.max_tokens} is below 1")
        if _integer("min_tokens", self.min_tokens) < 0:
            raise SamplingParamsError("min_tokens", f"{self.min_tokens} is below 0")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise SamplingParamsError(
                "min_tokens", f"{self.min_tokens} is above max_tokens {self.max_tokens}"
            )
        _number("temperature", self.temperature, 0.0, 100.0)
        if _integer("top_k", self.top_k) < -1:
            raise SamplingParamsError("top_k", f"{self.top_k} is below -1")
        if _number("top_p", self.top_p, 0.0, 1.0) == 0.0:
            raise SamplingParamsError("top_p", "0 keeps no token; use temperature 0 for greedy")
        _number("min_p", self.min_p, 0.0, 1.0)
        if _number("repetition_penalty", self.repetition_penalty, 0.0, 100.0) == 0.0:
            raise SamplingParamsError("repetition_penalty", "0 is not above 0")
        if self.seed is not None and not -(1 << 63) <= _integer("seed", self.seed) < 1 << 63:
            raise SamplingParamsError("seed", f"{self.seed} does not fit in 64 bits")
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        object.__setattr__(self, "stop_token_ids", _token_ids(self.stop_token_ids))
        if not isinstance(self.ignore_eos, bool):
            raise SamplingParamsError("ignore_eos", f"{self.ignore_eos!r} is not true or false")
        if self.logprobs is not None and not (
            0 <= _integer("logprobs", self.logprobs) <= MAX_LOGPROBS
        ):
            raise SamplingParamsError(
                "logprobs", f"{self.logprobs} is not between 0 and {MAX_LOGPROBS}"
            )

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0


def _integer(field: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise SamplingParamsError(field, f"{value!r} is not an integer")
    return value


def _number(field: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SamplingParamsError(field, f"{value!r} is not a number")
    if not math.isfinite(value) or not low <= value <= high:
        raise SamplingParamsError(field, f"{value!r} is not between {low:g} and {high:g}")
    return float(value)


def _stop_strings(value: Any) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else _items("stop", value)
    for string in strings:
        if not isinstance(string, str) or not string:
            raise SamplingParamsError("stop", f"{string!r} is not a non-empty string")
    return strings


def _token_ids(value: Any) -> tuple[int, ...]:
    tokens = _items("stop_token_ids", value)
    for token in tokens:
        if _integer("stop_token_ids", token) < 0:
            raise SamplingParamsError("stop_token_ids", f"{token} is below 0")
    return tokens


def _items(field: str, value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes)):
        raise SamplingParamsError(field, f"{value!r} is not a list")
    items = tuple(value)
    if len(items) > MAX_STOPS:
        raise SamplingParamsError(field, f"{len(items)} entries; at most {MAX_STOPS}")
    return items
