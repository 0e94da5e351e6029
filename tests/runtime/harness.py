"""An engine's core on the fake device, moved by the test: clients, steps and clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvproof.runtime.api import EngineConfig, FinishReason, RequestOutput
from kvproof.runtime.engine import EngineCore
from kvproof.runtime.fake import FakeRunner, expected_tokens
from kvproof.runtime.protocols import Connector
from kvproof.runtime.sampling_params import SamplingParams
from kvproof.statemachine import RequestState

SIZE = 4  # tokens a block


@dataclass
class Heard:
    """What a client was told, and the sequence as the client knows it."""

    sequence: list[int]
    tokens: list[int] = field(default_factory=list)
    outputs: list[RequestOutput] = field(default_factory=list)
    turns: list[list[int]] = field(default_factory=lambda: [[]])

    def __call__(self, output: RequestOutput) -> None:
        self.outputs.append(output)
        self.tokens += output.tokens
        self.sequence += output.tokens
        self.turns[-1] += output.tokens
        if output.finish_reason is FinishReason.TURN:
            self.turns.append([])

    @property
    def finish(self) -> FinishReason | None:
        last = self.outputs[-1].finish_reason if self.outputs else None
        return None if last is FinishReason.TURN else last


class Bench:
    """The core, its fake device and its clients. Every count is checked after every call."""

    def __init__(
        self,
        *,
        blocks: int = 16,
        connector: Connector | None = None,
        runner: FakeRunner | None = None,
        core: dict[str, Any] | None = None,
        **config: Any,
    ) -> None:
        self.now = 0.0
        options: dict[str, Any] = {
            "num_blocks": blocks,
            "block_size": SIZE,
            "max_model_len": 64,
            "max_num_seqs": 4,
            "max_batched_tokens": 64,
            "check": True,
        }
        self.config = EngineConfig(**(options | config))
        self.runner = runner or FakeRunner(blocks, SIZE, manual=True)
        self.core = EngineCore(
            self.config, self.runner, connector, clock=lambda: self.now, **(core or {})
        )
        self.lifecycle = self.core.lifecycle
        self.clients: dict[str, Heard] = {}

    def add(
        self,
        name: str,
        prompt: Sequence[int] | int,
        tokens: int = 4,
        params: SamplingParams | None = None,
        **options: Any,
    ) -> Heard:
        """A greedy request; a number as prompt is a prompt of that length, all its own."""
        if isinstance(prompt, int):
            prompt = [10 + len(self.clients)] * prompt
        heard = self.clients[name] = Heard(list(prompt))
        self.core.add_request(
            name,
            list(prompt),
            params or SamplingParams(max_tokens=tokens, temperature=0.0),
            on_output=heard,
            **options,
        )
        return heard

    def chunk(self, name: str, tokens: Sequence[int], **options: Any) -> None:
        self.core.add_chunk(name, list(tokens), **options)
        self.clients[name].sequence += tokens

    def turn(self, times: int = 1) -> None:
        """The loop's turn: what is due, a launch, and its result when the pipeline is full."""
        for _ in range(times):
            self.core.tick()
            launched = self.core.launch_step()
            if self.core.in_flight >= self.config.steps_in_flight or not launched:
                self.core.finish_step()
            assert self.runner.corruptions == []

    def run(self, until: Callable[[], bool] | None = None, turns: int = 400) -> None:
        """Turn until it is so, or until no request is live."""
        until = until or (lambda: not self.lifecycle.live and not self.core.in_flight)
        for _ in range(turns):
            if until():
                return
            self.turn()
        raise AssertionError(f"not reached in {turns} turns: {self.core.stats()}")

    def state(self, name: str) -> str:
        row = self.lifecycle.row_of(name)
        return "UNKNOWN" if row is None else RequestState(self.lifecycle.state_of(row)).name

    def row(self, name: str) -> int:
        row = self.lifecycle.row_of(name)
        assert row is not None
        return row

    def fact(self, name: str, fact: str) -> int:
        return int(getattr(self.lifecycle.view, fact)[self.row(name)])

    @property
    def free(self) -> int:
        return self.lifecycle.ledger.pool.free

    def assert_undisturbed(self, name: str, prompt: Sequence[int], count: int) -> None:
        """The client heard what a run on its own would have delivered."""
        assert self.clients[name].tokens == expected_tokens(list(prompt), count)
