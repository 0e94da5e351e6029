"""Random operations on an engine whose tier goes wrong in every way, and nothing is left over.

Each delivered token is compared with an undisturbed run, every count is recomputed after each
operation, and a transition that the declaration rejects fails the test. In the end nothing is held
but what is in quarantine, and nothing there either once its confirmations are given.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from kvproof.runtime.protocols import Connector, KVStorage, SignalKind, TransferSignal
from kvproof.runtime.transfers import FaultyConnector, random_faults
from kvproof.statemachine import EngineMode

from ..chaos import Chaos
from ..test_soak import BUSY, SHAPES
from .engine_harness import PromptTier

#: What happens to the tier; and fewer calls that stop everything, so that there is more to copy.
TIER_OPERATIONS = {
    "confirm": 1.0, "find": 1.0, "inject": 1.0, "fail_tier_reset": 0.3, "tick": 15.0, "add": 12.0,
    "pause": 0.3, "sleep": 0.15, "weights_changed": 0.05, "resume": 5.0, "wake": 5.0, "forget": 6.0,
}  # fmt: skip


class FaultyChaos(Chaos):
    """Chaos with a faulty tier of a few blocks. `rate` of the transfers goes wrong."""

    def __init__(self, seed: int, rate: float, **options: Any) -> None:
        self.rate = rate
        self.finishing = False
        settings: dict[str, Any] = {
            "transfer_lease": 40.0,
            "cancel_lease": 5.0,
            "load_deadline": 25.0,
            "loads_limit": 3,
            "weights": TIER_OPERATIONS,
        }
        super().__init__(seed, connector=self._connect, **(settings | options))

    def _connect(self, kv: KVStorage, rng: random.Random, clock: Callable[[], float]) -> Connector:
        self.tier = PromptTier(kv, 20 * kv.bytes_per_block)
        self.faulty = FaultyConnector(
            self.tier, random_faults(rng, self.rate), kv=kv, rng=rng, clock=clock
        )
        return self.faulty

    # --- operations -----------------------------------------------------------------------------

    def confirm(self) -> None:
        self._with_some(self.faulty.confirm)

    def find(self) -> None:
        self._with_some(self.faulty.find)

    def _with_some(self, call: Callable[[int], None]) -> None:
        open_ = self.faulty.unanswered
        if open_:
            call(self.random.choice(open_))

    def inject(self) -> None:
        """A late, repeated or unknown signal, of any kind, for a transfer that has ended."""
        number = self.random.randrange(1, 3 + self.core.lifecycle._transfer_numbers)
        if number not in self.core.lifecycle.transfers:
            kind = self.random.choice(tuple(SignalKind))
            self.faulty.inject(TransferSignal(number, kind, self.random.randrange(5)))

    def forget(self) -> None:
        """As if other requests had needed all free blocks: what is wanted again must be loaded."""
        self.core.lifecycle.forget_prefixes()

    def fail_tier_reset(self) -> None:
        self.faulty.resets_to_fail = 1

    def check(self) -> None:
        super().check()
        self.tier.check()
        if self.finishing:
            self.faulty.settle_all()

    # --- the end --------------------------------------------------------------------------------

    def end(self) -> Counter[str]:
        """All that can end without the tier's help does; then what is in quarantine does."""
        lifecycle = self.core.lifecycle
        self.runner.failing.clear()
        self.runner.failing_rows.clear()
        for _ in range(2000):
            if self.core.is_sleeping():
                self.core.wake()
            if lifecycle.mode in (EngineMode.PAUSED, EngineMode.PAUSING):
                self.core.resume()
            for client in [c for c in self.clients.values() if c.session and c.parked]:
                self.core.close_input(client.id)
            self.core.tick()
            self.core.launch_step()
            self.core.finish_step()
            self.check()
            if not (lifecycle.live or self.core.in_flight or lifecycle.open_transfers()):
                break
            self.now += 1.0
        left = self.core.holds()
        assert all(holder.quarantined for holder in left), left
        stats = self.core.stats()
        assert stats.blocks_free + stats.blocks_quarantined == stats.blocks_total
        self.finishing = True
        self.drain()
        assert self.core.stats().blocks_quarantined == 0
        self.done["in quarantine at the end"] += len(left)
        return self.done


def soak(seed: int, operations: int, rate: float, **options: Any) -> Counter[str]:
    """One engine under that many operations. Returns what was done and what went wrong."""
    weights = TIER_OPERATIONS | (BUSY if seed % 2 else {})
    shape = SHAPES[seed % len(SHAPES)]
    chaos = FaultyChaos(seed, rate, **(shape | {"weights": weights} | options))
    try:
        chaos.step(operations)
        done = chaos.end() + chaos.faulty.counts
        assert chaos.core.transfers is not None
        done["quarantines"] += chaos.core.transfers.quarantines
        done["loaded"] += chaos.core.stats().tier_loaded_bytes
    except BaseException as error:
        error.add_note(f"seed {seed}, after {sum(chaos.done.values())} operations")
        raise
    finally:
        chaos.close()
    return done


@pytest.mark.parametrize("rate", [0.0, 0.7])
def test_every_token_is_right_and_nothing_is_left(rate: float) -> None:
    done = Counter[str]()
    for seed in range(6):
        done += soak(seed, 160, rate)
    assert done["loaded"] > 0
    if rate:
        assert all(done[fault] for fault in ("delayed", "lost", "late", "repeated", "truncated"))


def test_a_policy_that_fails_requests_ends_them_and_leaves_nothing() -> None:
    done = Counter[str]()
    for seed in range(4):
        done += soak(seed, 160, 0.9, load_failure_policy="fail")
    assert done["finish error"] > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_two_hundred_thousand_operations(seed: int) -> None:
    """Forty engines, five thousand operations each."""
    done = soak(1000 + seed, 5000, rate=(0.2, 0.5, 0.8, 1.0)[seed % 4])
    assert done["reset done"] > 0
    assert done["delayed"] > 0
