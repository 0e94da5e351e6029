"""An output that would wait for what only its own thread can bring."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from kvproof.runtime.api import (
    EngineConfig,
    InvalidRequestError,
    RejectedCallError,
    RequestOutput,
)
from kvproof.runtime.fake import FakeRunner
from kvproof.runtime.llm import LLM
from kvproof.runtime.sampling_params import SamplingParams

GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


class NoText:
    """Makes no text."""

    stopped_by: str | None = None

    def __init__(self, params: SamplingParams) -> None:
        pass

    def push(self, tokens: Iterable[int]) -> str:
        return ""

    def finish(self) -> str:
        return ""


def test_what_generates_and_waits_cannot_be_called_from_within_an_output() -> None:
    config = EngineConfig(num_blocks=16, block_size=4, max_model_len=64)
    model: Any = SimpleNamespace(
        tokenizer=None, config=SimpleNamespace(eos_token_ids=(), vocab_size=1000)
    )
    llm = LLM(config, FakeRunner(16, 4), None, model)
    refusals: list[str] = []
    asked = threading.Event()

    def on_output(output: RequestOutput) -> None:
        try:
            llm.generate([[1, 2]])
        except RejectedCallError as error:
            refusals.append(str(error))
        asked.set()

    with pytest.raises(InvalidRequestError, match="its text could not be made"):
        llm.add_request("a", [1, 2], GREEDY, on_output=on_output)  # this model has no tokenizer
    llm.add_request("a", [1, 2], GREEDY, on_output=on_output, text=NoText)
    assert asked.wait(30)
    assert "an output cannot wait" in refusals[0]
    llm.shutdown(drain=False)
