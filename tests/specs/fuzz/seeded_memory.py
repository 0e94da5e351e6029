"""Faults of the reference engine in who holds which block, and in what the blocks hold."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from kvproof.statemachine import RequestEvent
from kvproof.statemachine.states import FAILED, LOAD

from ...reference.pool import Owner, Pool
from ...reference.records import Config, Request, Transfer
from ...reference.target import ObservedEngine
from ...reference.tier import HostTier, Job, RemoteTier
from .seeding import Seeded, seeding

FAULTS: list[Seeded] = []
seeded = seeding(FAULTS)


# --- blocks --------------------------------------------------------------------------------------


class FaultyPool(Pool):
    """Does something more when a request's hold commands have been carried out."""

    def request_holds(
        self,
        commands: int,
        owner: Owner,
        table: Sequence[int],
        taken: Sequence[int],
        fresh: Collection[int],
        kept: int,
        newest_step: int,
    ) -> list[int]:
        left = super().request_holds(commands, owner, table, taken, fresh, kept, newest_step)
        self.letting_go(set(table) - set(left), newest_step)
        return left

    def letting_go(self, gone: set[int], newest_step: int) -> None:
        """The fault. `gone`: what the request's table has lost."""
        raise NotImplementedError


class NoTransferHolds(Pool):
    def transfer_holds(
        self, commands: int, owner: Owner, covered: Sequence[int], writes: bool
    ) -> None:
        pass


@seeded("touched-is-held", "hash-is-content", "attended", "hash-is-content-tier", connector="tier")
class FreedUnderTransfer(ObservedEngine):
    """A transfer takes no hold, so its blocks are freed under it."""

    pool_class = NoTransferHolds


class NoStepHolds(FaultyPool):
    def letting_go(self, gone: set[int], newest_step: int) -> None:
        self.step_processed(newest_step)  # as if the step had touched nothing


@seeded("touched-is-held")
class FreedUnderStep(ObservedEngine):
    """An abort frees blocks that a launched step still writes."""

    pool_class = NoStepHolds


class NeverReleases(Pool):
    def transfer_holds(
        self, commands: int, owner: Owner, covered: Sequence[int], writes: bool
    ) -> None:
        if not any(o == owner for o, _ in self.held):
            super().transfer_holds(commands, owner, covered, writes)


@seeded("idle-holds-nothing", "progress", "counts-are-holders", "no-exception", connector="tier")
class NeverFreed(ObservedEngine):
    """The hold of a transfer that has ended is never released."""

    pool_class = NeverReleases

    def retire(self, transfer: Transfer) -> None:
        pass


class FreesTwice(FaultyPool):
    def letting_go(self, gone: set[int], newest_step: int) -> None:
        for block in gone:
            self.facts[block].count -= self.facts[block].count > 0


@seeded("counts-are-holders")
class DoubleFree(ObservedEngine):
    """A shared block is freed twice when one of its holders ends."""

    pool_class = FreesTwice


class PreemptsTransfers(FaultyPool):
    def letting_go(self, gone: set[int], newest_step: int) -> None:
        for (_, block), held in self.held.items():
            if block in gone and held.by_transfer:
                held.by_transfer = 0
                self.facts[block].count -= 1


@seeded("touched-is-held", connector="tier")
class PreemptedUnderTransfer(ObservedEngine):
    """A request that lets go takes the holds of its jobs in flight with it."""

    pool_class = PreemptsTransfers


# --- signals -------------------------------------------------------------------------------------


@seeded("no-exception", connector="tier")
class UnknownSignalRaises(ObservedEngine):
    """A second completion of a transfer raises."""

    def signal(self, number: int, kind: str, valid: int = 0) -> None:
        if number not in self.transfers:
            raise KeyError(number)
        super().signal(number, kind, valid)


@seeded("late-signals-ignored", "counts-are-holders", "free-or-held", connector="tier")
class LateSignalReleasesAgain(ObservedEngine):
    """A second completion of a transfer releases its blocks a second time."""

    def signal(self, number: int, kind: str, valid: int = 0) -> None:
        assert self.tier is not None
        late = number not in self.transfers
        super().signal(number, kind, valid)
        for block in self.tier.jobs[number].blocks if late else ():
            self.pool.facts[block].count -= 1


@seeded("transfers-end", connector="tier")
class NoLease(ObservedEngine):
    """A transfer whose completion is lost is waited for, for ever."""

    def advance(self, seconds: float) -> None:
        for transfer in self.transfers.values():
            transfer.lease = self.now + seconds + 1
        super().advance(seconds)


# --- loads and tiers -----------------------------------------------------------------------------


@seeded("hash-is-content", "attended", connector="tier", seed=2)
class FailedLoadAttended(ObservedEngine):
    """A load that failed counts as landed."""

    def ended(self, transfer: Transfer, valid: int | None = None) -> None:
        if transfer.facts.state == FAILED:
            super().ended(transfer, len(transfer.blocks))
            return
        super().ended(transfer, valid)


@seeded("progress", "forced-reset-waits-for-transfers", connector="tier", seed=30)
class FailedLoadForgotten(ObservedEngine):
    """Who waits for a load that fails is never told."""

    def ended(self, transfer: Transfer, valid: int | None = None) -> None:
        if transfer.facts.state != FAILED:
            super().ended(transfer, valid)


@seeded("written-before-cached")
class VisibleBeforeWritten(ObservedEngine):
    """A block is a hit from the launch of the step that will write it."""

    def fire(self, request: Request, event: RequestEvent, *a: Any, **told: Any) -> bool:
        went = super().fire(request, event, *a, **told)
        if went and event == RequestEvent.LAUNCH:
            whole = request.facts.computed // self.config.block_size
            for block, slots in zip(request.table, self.slots(request, whole), strict=False):
                if self.pool.stands_for(block) is None:
                    self.pool.facts[block].being_written = False
                    self.pool.publish(block, slots)
        return went


class SwappedTier(HostTier):
    def _copy(self, job: Job, count: int) -> None:
        if job.kind != LOAD:
            job.blocks.reverse()
        super()._copy(job, count)


@seeded("hash-is-content-tier", "attended", connector="tier")
class StoredUnderAnotherHash(ObservedEngine):
    """A store writes blocks under each other's hashes."""

    def __init__(self, config: Config, tier: type[HostTier] | None) -> None:
        super().__init__(config, SwappedTier if tier and tier is not RemoteTier else tier)
