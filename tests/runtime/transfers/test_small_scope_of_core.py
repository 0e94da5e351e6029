"""The core's own small scope with a tier behind it whose copies end when they like, or never.

Three requests, a session among them, five blocks, two steps in flight; every copy waits until the
operation `copies`, and with `lease` what takes too long is cancelled or given up.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from kvproof.runtime.protocols import Connector
from kvproof.runtime.transfers import Fault, FaultyConnector, OnCancel

from ..test_small_scope import OPERATIONS, World, explore
from .engine_harness import PromptTier


class TierWorld(World):
    """The core's world with a faulty tier."""

    operations = (*OPERATIONS, "copies", "lease")
    fault = Fault(hold=True)

    def connector(self) -> Connector:
        self.tier = PromptTier(self.runner.kv, 6 * self.runner.kv.bytes_per_block)
        self.faulty = FaultyConnector(
            self.tier,
            lambda transfer, is_load, blocks: self.fault,
            kv=self.runner.kv,
            clock=lambda: self.now,
        )
        self.leases = 0
        return self.faulty

    def close(self) -> None:
        self.faulty.close()

    def possible(self, operation: str) -> bool:
        if operation == "copies":
            return bool(self.faulty.held)
        if operation == "lease":
            return bool(self.core.lifecycle.open_transfers()) and self.leases < 2
        return super().possible(operation)

    def do(self, operation: str) -> None:
        if operation == "copies":
            self.faulty.release()
            self.core.tick()
        elif operation == "lease":
            self.leases += 1
            self.now += 61.0
            self.core.tick()
        else:
            super().do(operation)

    def check(self) -> None:
        super().check()
        self.tier.check()

    def picture(self) -> tuple[object, ...]:
        lifecycle, transfers = self.core.lifecycle, self.core.transfers
        assert transfers is not None
        self.tier.wait()
        records = [
            (
                record.state, record.kind, record.blocks.tobytes(), tuple(sorted(record.waiters)),
                number in self.faulty.held, number in self.faulty.unanswered,
            )
            for number, record in lifecycle.transfers.items()
        ]  # fmt: skip
        loads = [int(number) for number in lifecycle.view.loads_failed]
        return (
            super().picture(), tuple(records), transfers.waiting_to_store, tuple(loads),
            tuple(self.tier._index._entries), self.leases,
        )  # fmt: skip

    def busy(self) -> bool:
        transfers = self.core.transfers
        assert transfers is not None
        self.faulty.settle_all()
        lifecycle = self.core.lifecycle
        return bool(lifecycle.live or lifecycle.transfers or transfers.waiting_to_store)


class Obedient(TierWorld):
    """A cancelled copy stops."""


class Silent(TierWorld):
    """A cancelled copy is never heard of, and may still run."""

    fault = Fault(hold=True, on_cancel=OnCancel.SILENT)


class Torn(TierWorld):
    """Of each copy only one block arrives; behind it is garbage."""

    fault = Fault(hold=True, only=1, spoil=True, on_cancel=OnCancel.FINISH)


WORLDS = (Obedient, Silent, Torn)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("world", WORLDS)
def test_every_interleaving_to_depth_three(world: type[TierWorld]) -> None:
    states, transitions = explore(3, world)
    assert states > 60
    assert transitions > states


@pytest.mark.long
@pytest.mark.parametrize("world", WORLDS)
def test_every_interleaving_to_depth_seven(world: type[TierWorld]) -> None:
    states, _ = explore(7, world)
    assert states > 5000
