"""An engine over a fake device and a host tier, driven step by step by a test.

The device and the clock move only when the test says so, and the tier's worker has always ended
what it was given before it is looked at: a run is the same every time. The KV is that of
`runtime.fake`: whatever is attended to must be the request's own prefix, or the device reports a
corruption and the tokens differ.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kvproof.runtime.api import EngineConfig, FinishReason, RequestOutput
from kvproof.runtime.engine import EngineCore
from kvproof.runtime.fake import FakeRunner, expected_tokens
from kvproof.runtime.protocols import TransferSignal
from kvproof.runtime.sampling_params import SamplingParams
from kvproof.runtime.transfers import FaultyConnector, HostTier
from kvproof.runtime.transfers.testing import Chooser
from kvproof.statemachine import RequestState, TransferState

SIZE = 4  # tokens a block


class PromptTier(HostTier):
    """A host tier whose jobs have ended whenever the engine looks for signals."""

    def __init__(self, kv: object, capacity_bytes: int) -> None:
        self._ended = threading.Event()
        super().__init__(kv, capacity_bytes)  # type: ignore[arg-type]
        self.on_signal(self._ended.set)

    def poll(self) -> Sequence[TransferSignal]:
        self.wait()
        return super().poll()

    def wait(self) -> None:
        while self.stats().jobs:
            self._ended.wait(30)
            self._ended.clear()


@dataclass
class Told:
    """What a client was told."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    error: str | None = None
    turns: int = 0

    def hear(self, output: RequestOutput) -> None:
        self.tokens += output.tokens
        if output.finish_reason is FinishReason.TURN:
            self.turns += 1
        elif output.finish_reason is not None:
            self.finish = output.finish_reason
            self.error = output.error


class EngineHarness:
    """The engine with its parts at hand."""

    def __init__(
        self,
        *,
        blocks: int = 12,
        tier_blocks: int = 64,
        choose: Chooser | None = None,
        rng: random.Random | None = None,
        **config: object,
    ) -> None:
        self.now = 0.0
        options: dict[str, object] = {
            "num_blocks": blocks,
            "block_size": SIZE,
            "max_model_len": 64,
            "max_num_seqs": 4,
            "transfer_lease": 60.0,
            "cancel_lease": 10.0,
            "load_deadline": 600.0,
            "max_reset_wait": 1000.0,
            "check": True,
        }
        self.config = EngineConfig(**(options | config))  # type: ignore[arg-type]
        self.runner = FakeRunner(blocks, SIZE, manual=True)
        self.tier = PromptTier(self.runner.kv, tier_blocks * self.runner.kv.bytes_per_block)
        self.connector = FaultyConnector(
            self.tier, choose, kv=self.runner.kv, rng=rng, clock=lambda: self.now
        )
        self.core = EngineCore(self.config, self.runner, self.connector, clock=lambda: self.now)
        self.told: dict[str, Told] = {}

    # --- clients --------------------------------------------------------------------------------

    def add(self, name: str, prompt: Iterable[int], tokens: int = 4, **options: object) -> Told:
        """A request for that many tokens."""
        told = self.told[name] = Told(list(prompt))
        self.core.add_request(
            name,
            told.prompt,
            SamplingParams(max_tokens=tokens, temperature=0.0),
            on_output=told.hear,
            **options,  # type: ignore[arg-type]
        )
        return told

    def expected(self, name: str, tokens: int) -> list[int]:
        """What an undisturbed run delivers."""
        return expected_tokens(self.told[name].prompt, tokens)

    # --- driving --------------------------------------------------------------------------------

    def turn(self) -> None:
        """One turn of the engine's loop, with the device as fast as can be."""
        self.core.tick()
        self.core.launch_step()
        self.core.finish_step()
        assert self.runner.corruptions == []

    def run(self, until: Callable[[], bool], turns: int = 500) -> None:
        """Turn until it is so."""
        for _ in range(turns):
            if until():
                return
            self.turn()
        raise AssertionError(f"not reached in {turns} turns; held: {self.core.holds()}")

    def finish(self, *names: str) -> None:
        """Turn until these requests are over."""
        self.run(lambda: all(self.told[name].finish is not None for name in names))

    def settle(self) -> None:
        """Turn until nothing runs, no transfer is open and nothing is left to store."""
        lifecycle, transfers = self.core.lifecycle, self.core.transfers
        assert transfers is not None
        self.run(
            lambda: not (lifecycle.live or lifecycle.open_transfers() or transfers.waiting_to_store)
        )

    def settle_transfers(self) -> None:
        """Turn until no transfer is open and nothing is left to store, whoever runs."""
        lifecycle, transfers = self.core.lifecycle, self.core.transfers
        assert transfers is not None
        self.run(lambda: not (lifecycle.open_transfers() or transfers.waiting_to_store))

    def pass_time(self, seconds: float) -> None:
        """The clock moves, and the engine looks at it."""
        self.now += seconds
        self.turn()

    # --- looking --------------------------------------------------------------------------------

    def state(self, name: str) -> str:
        """A request's state."""
        row = self.core.lifecycle.row_of(name)
        return "UNKNOWN" if row is None else RequestState(self.core.lifecycle.state_of(row)).name

    def transfer_state(self, number: int) -> str:
        """A transfer's state; ABSENT once it has ended."""
        record = self.core.lifecycle.transfers.get(number)
        return "ABSENT" if record is None else TransferState(record.state).name

    @property
    def load(self) -> int:
        """The number of the only load."""
        (number,) = self.loads
        return number

    @property
    def loads(self) -> list[int]:
        """The loads whose holds are left."""
        return self._transfers("LOAD")

    @property
    def stores(self) -> list[int]:
        """The stores whose holds are left."""
        return self._transfers("STORE")

    def _transfers(self, kind: str) -> list[int]:
        return [int(holder.owner) for holder in self.core.holds() if holder.kind == kind]

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return self.core.lifecycle.ledger.pool.free

    def only_in_tier(self, name: str, prompt: Iterable[int]) -> None:
        """Compute a prompt, let it be stored, and forget it on the device."""
        self.add(name, prompt, 1)
        self.finish(name)
        self.settle()
        result = self.core.reset_prefix_cache(reset_running_requests=True).result(0)
        assert result.success, result

    def assert_nothing_is_held(self) -> None:
        """No hold, no quarantine, no reservation: the pool is whole."""
        lifecycle = self.core.lifecycle
        lifecycle.check()
        self.tier.check()
        assert self.core.holds() == []
        assert lifecycle.free_for() == lifecycle.ledger.num_blocks
        assert not lifecycle.engine.quarantined

    def close(self) -> None:
        """End the engine, whatever state it is in."""
        self.runner.close()
        self.connector.close()
