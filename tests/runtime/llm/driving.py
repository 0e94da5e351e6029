"""Engines over a model that is loaded already, and a core that a test drives step by step."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from kvproof.runtime.api import EngineConfig, FinishReason, RequestOutput
from kvproof.runtime.engine import EngineCore
from kvproof.runtime.llm import LLM
from kvproof.runtime.model.load import LoadedModel
from kvproof.runtime.model.runner import TorchRunner
from kvproof.runtime.protocols import TransferSignal
from kvproof.runtime.sampling_params import SamplingParams
from kvproof.runtime.transfers import HostTier


@contextmanager
def engine_of(model: LoadedModel, **config: object) -> Iterator[LLM]:
    """An engine in its own thread; fields of EngineConfig. The model stays loaded."""
    sizes = EngineConfig(**config)  # type: ignore[arg-type]
    runner = TorchRunner(model, sizes.num_blocks, sizes.block_size)
    engine = LLM(sizes, runner, None, model)
    try:
        yield engine
    finally:
        engine.shutdown(drain=False)


class _PromptTier(HostTier):
    """A host tier whose jobs have ended whenever the engine looks."""

    def __init__(self, kv: object, capacity_bytes: int) -> None:
        self._ended = threading.Event()
        super().__init__(kv, capacity_bytes)  # type: ignore[arg-type]
        self.on_signal(self._ended.set)

    def poll(self) -> Sequence[TransferSignal]:
        while self.stats().jobs:
            self._ended.wait(30)
            self._ended.clear()
        return super().poll()


@dataclass
class Heard:
    """What a client was told."""

    tokens: list[int] = field(default_factory=list)
    turns: int = 0
    finish: FinishReason | None = None
    cached: int = 0

    def hear(self, output: RequestOutput) -> None:
        self.tokens += output.tokens
        self.cached = max(self.cached, output.cached_tokens)
        if output.finish_reason is FinishReason.TURN:
            self.turns += 1
        elif output.finish_reason is not None:
            assert output.error is None, output.error
            self.finish = output.finish_reason


class Driver:
    """An engine's core on the real model, driven in one thread: a seed fixes all that happens.

    disturb: with which probability a forced reset comes before a turn, which preempts whatever
    runs and forgets every prefix.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        disturb: float = 0.0,
        tier_blocks: int = 0,
        seed: int = 0,
        **config: object,
    ) -> None:
        self.config = EngineConfig(check=True, **config)  # type: ignore[arg-type]
        self.runner = TorchRunner(model, self.config.num_blocks, self.config.block_size)
        kv = self.runner.kv
        tier = _PromptTier(kv, tier_blocks * kv.bytes_per_block) if tier_blocks else None
        self.core = EngineCore(self.config, self.runner, tier, vocabulary=model.config.vocab_size)
        self.resets = 0
        self._disturb = disturb
        self._random = random.Random(seed)
        self._numbers = 0

    def add(self, tokens: Sequence[int], count: int, resumable: bool = False) -> tuple[str, Heard]:
        """A greedy request for that many tokens, or a session whose turns have as many."""
        self._numbers += 1
        name, heard = f"r{self._numbers}", Heard()
        self.core.add_request(
            name, tokens, greedy(count), on_output=heard.hear, resumable=resumable
        )
        return name, heard

    def turn(self) -> None:
        """Launch as many steps as may be in flight, process one."""
        if self._random.random() < self._disturb:
            self.resets += self.core.reset_prefix_cache(True).result(0).success
        self.core.tick()
        while self.core.launch_step() and self.core.in_flight < self.config.steps_in_flight:
            pass
        self.core.finish_step(300)

    def run(self, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
        """All of them together, to their ends."""
        heard = [self.add(prompt, count)[1] for prompt in prompts]
        self.until(lambda: all(one.finish is not None for one in heard))
        return [one.tokens for one in heard]

    def until(self, condition: object, turns: int = 20_000) -> None:
        """Turn until it is so."""
        for _ in range(turns):
            if condition():  # type: ignore[operator]
                return
            self.turn()
        raise AssertionError(f"not reached in {turns} turns; held: {self.core.holds()}")

    def settle(self) -> None:
        """Turn until no transfer is open and nothing waits to be stored."""
        transfers = self.core.transfers
        assert transfers is not None
        lifecycle = self.core.lifecycle
        self.until(lambda: not (lifecycle.open_transfers() or transfers.waiting_to_store))

    def close(self) -> None:
        """End it, whatever is left."""
        self.runner.close()
        if self.core.transfers is not None:
            self.core.transfers.close()


def greedy(count: int) -> SamplingParams:
    """So many tokens, the end token forbidden: as `min_new_tokens` of transformers."""
    return SamplingParams(temperature=0, max_tokens=count, min_tokens=count)
