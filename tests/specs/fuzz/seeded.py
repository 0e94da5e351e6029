"""The reference engine with one fault each: one for every class of the public record.

Each entry names the fault, the rules that may find it, and the engine. The faults are what real
engines had: a reset that raises, a block freed under a transfer, a session's chunk that is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from kvproof.specs.fuzz.target import Target
from kvproof.statemachine import EndsBy, EngineEvent, RefusedError, RequestEvent
from kvproof.statemachine.states import (
    FAILED,
    LIVE,
    LOAD,
    RUNNING,
    WAITING_FOR_STREAMING_REQ,
)

from ...reference.pool import Owner, Pool, Slots
from ...reference.records import Config, Holder, Request, ResetAnswer, Row, Transfer
from ...reference.target import ObservedEngine, ReferenceTarget
from ...reference.tier import HostTier, Job, RemoteTier


@dataclass(frozen=True)
class Seeded:
    """A fault, and what has to find it."""

    name: str
    rules: frozenset[str]
    engine: type[ObservedEngine]
    connector: str | None = None  # None: whichever the search draws
    seed: int = 5  # another one where that is quicker

    def target(self) -> type[Target]:
        """The faulty engine as a target."""
        body = {"engine_class": self.engine}
        return type(f"Faulty{self.engine.__name__}", (ReferenceTarget,), body)


FAULTS: list[Seeded] = []


def seeded(
    *rules: str, connector: str | None = None, seed: int = 5
) -> Callable[[type[ObservedEngine]], type[ObservedEngine]]:
    """Register an engine; its docstring is the fault."""

    def register(engine: type[ObservedEngine]) -> type[ObservedEngine]:
        assert engine.__doc__ is not None
        name = engine.__doc__.rstrip(".")
        FAULTS.append(Seeded(name, frozenset(rules), engine, connector, seed))
        return engine

    return register


# --- resets --------------------------------------------------------------------------------------


@seeded("no-exception", connector="tier")
class ResetRaises(ObservedEngine):
    """A forced reset raises while a transfer is in flight."""

    def refusing(self, force: bool) -> list[Holder]:
        holders = super().refusing(force)
        if force and any(holder.kind != "REQUEST" for holder in holders):
            raise RuntimeError("cannot reset while a transfer is in flight")
        return holders


@seeded("forced-reset-waits-for-transfers")
class ResetRefusedForEver(ObservedEngine):
    """A forced reset is refused as long as a session is parked."""

    def refusing(self, force: bool) -> list[Holder]:
        if self.in_state(WAITING_FOR_STREAMING_REQ):
            return super().refusing(force=False)
        return super().refusing(force)


@seeded("refused-reset-changes-nothing")
class ResetHalfDone(ObservedEngine):
    """A refused reset has already preempted what was running."""

    def refusing(self, force: bool) -> list[Holder]:
        refusing = super().refusing(force)
        if refusing and force:
            for request in self.in_state(RUNNING):
                self.fire(request, RequestEvent.PREEMPT, forced=True)
        return refusing


@seeded("refused-reset-names-holders")
class ResetNamesNobody(ObservedEngine):
    """A refused reset does not say who refuses."""

    def reset(self, force: bool = False, connector: bool = False, wait: float = 0) -> ResetAnswer:
        answer = super().reset(force, connector, wait)
        return ResetAnswer(answer.success, answer.tiers)


@seeded("refused-reset-names-holders")
class ResetNamesBystanders(ObservedEngine):
    """A refused reset names everybody who is live, whether they hold blocks or not."""

    def refusing(self, force: bool) -> list[Holder]:
        refusing = super().refusing(force)
        named = {holder.owner for holder in refusing}
        others = [r for r in self.live() if refusing and r.id not in named]
        return [*refusing, *(Holder("REQUEST", r.id, EndsBy.ITSELF, True) for r in others)]


@seeded("reset-clears-tiers", connector="tier")
class TierLeftStale(ObservedEngine):
    """A reset that names the tier leaves it as it is."""

    def clear_tier(self) -> bool:
        return True


class KeepsPrefixes(Pool):
    keeps = False

    def drop_prefixes(self) -> None:
        if not self.keeps:
            super().drop_prefixes()


@seeded("reset-clears-device")
class DeviceLeftStale(ObservedEngine):
    """A reset lets everyone go and drops no prefix."""

    pool_class = KeepsPrefixes

    def try_reset(self, force: bool, connector: bool) -> ResetAnswer:
        assert isinstance(self.pool, KeepsPrefixes)
        self.pool.keeps = True
        answer = super().try_reset(force, connector)
        self.pool.keeps = False
        return answer


# --- blocks --------------------------------------------------------------------------------------


class NoTransferHolds(Pool):
    def transfer_holds(
        self, commands: int, owner: Owner, covered: Sequence[int], writes: bool
    ) -> None:
        pass


@seeded("touched-is-held", "hash-is-content", "attended", "hash-is-content-tier", connector="tier")
class FreedUnderTransfer(ObservedEngine):
    """A transfer takes no hold, so its blocks are freed under it."""

    pool_class = NoTransferHolds


class NoStepHolds(Pool):
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
        table = super().request_holds(commands, owner, table, taken, fresh, kept, newest_step)
        self.step_processed(newest_step)  # as if the step had touched nothing
        return table


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


class FreesTwice(Pool):
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
        for block in set(table) - set(left):
            self.facts[block].count -= self.facts[block].count > 0
        return left


@seeded("counts-are-holders")
class DoubleFree(ObservedEngine):
    """A shared block is freed twice when one of its holders ends."""

    pool_class = FreesTwice


class PreemptsTransfers(Pool):
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
        gone = set(table) - set(left)
        for (_, block), held in self.held.items():
            if block in gone and held.by_transfer:
                held.by_transfer = 0
                self.facts[block].count -= 1
        return left


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


# --- steps and sessions --------------------------------------------------------------------------


@seeded("delivered")
class StaleOutput(ObservedEngine):
    """The output of a step that is stale is delivered all the same."""

    def settle(self, row: Row, step: int, misread: Any) -> None:
        stale = step <= row.request.facts.stale_step
        super().settle(row, step, misread)
        if stale and row.sampled is not None and row.request.facts.state in LIVE:
            row.request.delivered.append(row.sampled)


@seeded("attended", "covered", "delivered", "hash-is-content", "no-exception")
class ResumedTooFar(ObservedEngine):
    """A preempted request goes on where it was, and its blocks are gone."""

    def fire(self, request: Request, event: RequestEvent, *a: Any, **told: Any) -> bool:
        written = request.facts.written
        went = super().fire(request, event, *a, **told)
        if went and event == RequestEvent.PREEMPT:
            request.facts.computed = request.facts.written = written
        return went


@seeded("not-forgotten", seed=10)
class SessionLost(ObservedEngine):
    """A session whose next chunk is already there when its turn ends is in no queue."""

    def take_chunk(self, request: Request, tokens: list[int], max_tokens: int) -> None:
        super().take_chunk(request, tokens, max_tokens)
        if request.chunks:
            del self.requests[request.id]


@seeded("within-length", seed=10)
class SessionOverLength(ObservedEngine):
    """A session's chunk is taken however long the session already is."""

    def chunk(self, request_id: str, tokens: Sequence[int], max_tokens: int = 4) -> None:
        self.facts.model_length += 100
        self.facts.pool_blocks += 100
        try:
            super().chunk(request_id, tokens, max_tokens)
        finally:
            self.facts.model_length -= 100
            self.facts.pool_blocks -= 100


@seeded("own-tokens", "delivered")
class SessionDropsToken(ObservedEngine):
    """A session's last token is lost when its next chunk comes."""

    def take_chunk(self, request: Request, tokens: list[int], max_tokens: int) -> None:
        request.tokens[-1:] = [*tokens[:1]]
        super().take_chunk(request, tokens, max_tokens)


@seeded("hash-is-content", "attended")
class StaleHash(ObservedEngine):
    """A session's blocks keep the hash of the tokens that were there before its next chunk."""

    def slots(self, request: Request, blocks: int) -> list[Slots]:
        slots = super().slots(request, blocks)
        if request.facts.turn_start and request.facts.state == RUNNING:
            return [tuple(reversed(part)) for part in slots]
        return slots


@seeded("parked-give-way", "progress")
class HoldersDeadlock(ObservedEngine):
    """Requests that hold blocks and do not run never give them up."""

    def must_make_way(self, holder: Request, request: Request, free: int, needed: int) -> bool:
        return False


@seeded("progress")
class IdlesWithWork(ObservedEngine):
    """The engine stops stepping when nothing runs, with requests waiting."""

    def step(self) -> int | None:
        if self.facts.processed > 3 and not self.in_state(RUNNING):
            return None
        return super().step()


@seeded("refused-changes-nothing")
class RefusedChunkQueued(ObservedEngine):
    """A chunk that is refused has been queued."""

    def chunk(self, request_id: str, tokens: Sequence[int], max_tokens: int = 4) -> None:
        try:
            super().chunk(request_id, tokens, max_tokens)
        except RefusedError:
            self.known(request_id).tokens += list(tokens)
            raise


@seeded("counters")
class ChunkCountedTwice(ObservedEngine):
    """A chunk that is queued is counted twice."""

    def chunk(self, request_id: str, tokens: Sequence[int], max_tokens: int = 4) -> None:
        super().chunk(request_id, tokens, max_tokens)
        request = self.known(request_id)
        request.facts.queued_chunks += bool(request.chunks)


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


# --- pause and sleep -----------------------------------------------------------------------------


@seeded("failed-call-changes-nothing")
class PauseHalfHappens(ObservedEngine):
    """A pause that fails, because a session is parked, leaves the engine paused."""

    def pause(self, mode: str = "keep") -> bool:
        went = super().pause(mode)
        if self.in_state(WAITING_FOR_STREAMING_REQ):
            raise RuntimeError("a parked session holds blocks")
        return went


@seeded("failed-call-changes-nothing", connector="tier")
class SleepHalfHappens(ObservedEngine):
    """A sleep that is refused leaves the engine paused."""

    def tell(self, event: EngineEvent, **told: int) -> bool:
        if event == EngineEvent.SLEEP_FAILED:
            return False
        return super().tell(event, **told)


@seeded("asleep-means-idle", "no-exception")
class SleepsWhileHeld(ObservedEngine):
    """Memory is given back while requests hold blocks."""

    def holds_left(self) -> int:
        return 0

    def let_everything_go(self, refusing: int = 0) -> None:
        if not refusing:
            self.pool.drop_prefixes()
