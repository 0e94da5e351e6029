"""The reference engine as a target of the fuzzer: `kvproof fuzz --target …:ReferenceTarget`.

The environment (clients, the tier's worker, time) is the fuzzer's; ids of transfers name kind,
request and ordinal, so that they stay the same when unrelated operations are removed.
"""

from __future__ import annotations

from typing import ClassVar

from kvproof.specs.fuzz.fake_kv import Wrong
from kvproof.specs.fuzz.target import (
    BlockView,
    Feature,
    Hold,
    Misread,
    NewRequest,
    Promise,
    RejectedError,
    RequestView,
    ResetAnswer,
    Settings,
    Snapshot,
    Target,
    TierEntry,
    TransferView,
)
from kvproof.statemachine import (
    Container,
    HoldKind,
    RefusedError,
    RequestState,
    container,
)
from kvproof.statemachine.states import ACTIVE, FINISHED, QUARANTINED, SLEEPING

from .engine import Engine
from .records import Config, Request, Row
from .tier import HostTier, Job, RemoteTier

TIERS: dict[str, type[HostTier] | None] = {"none": None, "tier": HostTier, "remote": RemoteTier}


class ObservedEngine(Engine):
    """An engine that notes what was misread for a delivered token, and how each request ended."""

    def __init__(self, config: Config, tier: type[HostTier] | None) -> None:
        super().__init__(config, tier)
        self.misreads: list[Misread] = []
        self.all: dict[str, Request] = {}
        self.last: dict[str, RequestState] = {}

    def entered(self, request: Request) -> None:
        """Note the state; a request that is forgotten keeps its last one."""
        super().entered(request)
        self.all[request.id] = request
        if request.facts.state:
            self.last[request.id] = RequestState(request.facts.state)

    def deliver(self, request: Request, token: int, misread: Wrong | None) -> None:
        """Note what was misread for the token."""
        super().deliver(request, token, misread)
        if misread is not None:
            self.misreads.append(Misread(request.id, misread.position, misread.block, misread.why))


class ReferenceTarget(Target):
    """The reference engine with no tier, with its host tier, and with a remote one."""

    features: ClassVar[frozenset[Feature]] = frozenset(Feature)
    promises: ClassVar[frozenset[Promise]] = frozenset(Promise) - {Promise.RESET_CLEARS_TIERS}
    connectors: ClassVar[tuple[str, ...]] = tuple(TIERS)
    settles_first: ClassVar[frozenset[str]] = frozenset({"reset", "sleep"})
    engine_class: ClassVar[type[ObservedEngine]] = ObservedEngine

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.config = Config(
            blocks=settings.blocks,
            block_size=settings.block_size,
            max_running=settings.max_running,
            token_budget=settings.token_budget,
            model_length=settings.max_length,
            steps_ahead=settings.depth,
            fail_policy=settings.fail_policy,
        )
        self.engine = self.engine_class(self.config, TIERS[settings.connector])
        self.names: dict[str, int] = {}

    @classmethod
    def features_with(cls, connector: str) -> frozenset[Feature]:
        """Without a tier there are no transfers."""
        if connector != "none":
            return cls.features
        return cls.features - {
            Feature.LOADS,
            Feature.STORES,
            Feature.FAILURES,
            Feature.LATE_SIGNALS,
            Feature.RESET_CONNECTOR,
        }

    # --- clients ---------------------------------------------------------------------------------

    def add(self, request: NewRequest) -> None:
        """See Target."""
        tier = self.engine.tier
        if isinstance(tier, RemoteTier):
            tier.offers[request.id] = request.remote_tokens
        try:
            self.engine.add(
                request.id,
                request.prompt,
                request.max_tokens,
                session=request.session,
                priority=request.priority if self.settings.priority else 0,
                stop_every=request.stop_every,
                send=request.send,
            )
        except RefusedError as refused:
            raise RejectedError(str(refused)) from refused

    def chunk(self, request: str, tokens: tuple[int, ...], max_tokens: int) -> None:
        """See Target."""
        try:
            self.engine.chunk(request, tokens, max_tokens)
        except RefusedError as refused:
            raise RejectedError(str(refused)) from refused

    def close_input(self, request: str) -> None:
        """See Target."""
        try:
            self.engine.close_input(request)
        except RefusedError as refused:
            raise RejectedError(str(refused)) from refused

    def abort(self, request: str) -> None:
        """See Target."""
        self.engine.abort(request)

    # --- steps -----------------------------------------------------------------------------------

    def step(self) -> bool:
        """See Target."""
        return self.engine.step() is not None

    def finish_step(self) -> None:
        """See Target."""
        self.engine.finish_step()

    # --- transfers -------------------------------------------------------------------------------

    def complete(self, transfer: str) -> None:
        """The copy lands; one that the engine has in quarantine confirms that it is over."""
        number = self.names[transfer]
        assert self.engine.tier is not None
        self.engine.tier.land(number)
        self.engine.signal(number, "fenced" if self.in_quarantine(number) else "landed")

    def fail(self, transfer: str, valid_blocks: int) -> None:
        """The copy fails; one that the engine has in quarantine confirms that it is over."""
        number = self.names[transfer]
        assert self.engine.tier is not None
        self.engine.tier.fail(number, valid_blocks)
        kind = "fenced" if self.in_quarantine(number) else "failed"
        self.engine.signal(number, kind, valid_blocks)

    def lose(self, transfer: str) -> None:
        """The copy goes on for ever, and nobody hears of it again."""
        assert self.engine.tier is not None
        self.engine.tier.jobs[self.names[transfer]].lost = True

    def duplicate(self, transfer: str) -> None:
        """Its completion is reported once more."""
        self.engine.signal(self.names[transfer], "landed")

    def in_quarantine(self, number: int) -> bool:
        """Whether the engine has given up waiting for a transfer."""
        transfer = self.engine.transfers.get(number)
        return transfer is not None and transfer.facts.state == QUARANTINED

    # --- operators -------------------------------------------------------------------------------

    def reset(self, running: bool, connector: bool) -> ResetAnswer:
        """See Target."""
        answer = self.engine.reset(force=running, connector=connector)
        self.name_transfers()  # the steps that it processed may have started some
        names = {number: name for name, number in self.names.items()}
        holders = tuple(
            holder.owner if holder.kind == "REQUEST" else names[int(holder.owner.split()[1])]
            for holder in answer.holders
        )
        return ResetAnswer(answer.success, holders)

    def pause(self, mode: str) -> None:
        """See Target."""
        self.engine.pause(mode)

    def resume(self) -> None:
        """See Target."""
        self.engine.resume()

    def sleep(self, level: int) -> bool:
        """See Target."""
        return self.engine.sleep(level, "keep")

    def wake(self) -> bool:
        """See Target."""
        return self.engine.wake()

    def tick(self) -> None:
        """Every lease and deadline is over, and then those of what was cancelled."""
        self.engine.advance(1000.0)
        self.engine.advance(1000.0)

    # --- the state -------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """See Target."""
        engine = self.engine
        self.name_transfers()
        e = engine.facts
        mode = "ACTIVE" if e.mode == ACTIVE else "PAUSED"
        asleep = {"weights": e.weights_resident, "cache": e.cache_resident}
        return Snapshot(
            requests=tuple(self.request_view(request) for request in engine.all.values()),
            blocks=tuple(self.block_views()),
            holds=tuple(self.holds()),
            transfers=tuple(self.transfer_views()),
            tiers=tuple(self.tier_entries()),
            steps_in_flight=len(engine.launched),
            touched=tuple(self.touched()),
            misreads=tuple(engine.misreads),
            counters=tuple(self.counters()),
            mode="SLEEPING" if e.mode == SLEEPING else mode,
            asleep=tuple(tag for tag, resident in asleep.items() if not resident),
        )

    def name_transfers(self) -> None:
        """Give new copies their names: kind, request and ordinal."""
        for job in self.jobs():
            if job.number not in self.names.values():
                kind = HoldKind(job.kind).name.lower()
                prefix = f"{kind}/{job.request or 'tier'}/"
                ordinal = sum(name.startswith(prefix) for name in self.names) + 1
                self.names[f"{prefix}{ordinal}"] = job.number

    def jobs(self) -> list[Job]:
        """Every copy ever started, as its worker knows it."""
        return list(self.engine.tier.jobs.values()) if self.engine.tier else []

    def request_view(self, request: Request) -> RequestView:
        """A request; of one that is forgotten, as it was at its end."""
        known = request.id in self.engine.requests
        state = self.engine.last[request.id]
        place = Container(container(state))
        waits = request.facts.waits_for
        names = {number: name for name, number in self.names.items()}
        return RequestView(
            id=request.id,
            state=state.name,
            containers=(place.name.lower(),) if known and place else (),
            blocks=tuple(request.table),
            computed=request.facts.computed,
            tokens=tuple(request.tokens),
            delivered=tuple(request.delivered),
            finished=state in FINISHED,
            known=known,
            waits_for=names[waits] if waits else None,
        )

    def block_views(self) -> list[BlockView]:
        """The blocks of the pool; those in quarantine are out of it."""
        engine = self.engine
        free = engine.pool.free()
        written = {b for row in self.rows() for b in self.written_by(row)}
        return [
            BlockView(
                id=b,
                count=facts.count,
                free=b in free,
                content=engine.kv.content(b),
                cached_as=engine.pool.stands_for(b),
                being_written=facts.being_written or b in written,
            )
            for b, facts in enumerate(engine.pool.facts)
            if not facts.quarantined
        ]

    def rows(self) -> list[Row]:
        """What launched steps compute."""
        return [row for step in self.engine.launched for row in step.rows]

    def written_by(self, row: Row) -> list[int]:
        """The blocks that a launched row will write."""
        size = self.settings.block_size
        return row.table[row.start // size : -(-row.end // size)]

    def holds(self) -> list[Hold]:
        """Every hold that is not in quarantine; a STEP hold is named after its request."""
        engine = self.engine
        names = {number: name for name, number in self.names.items()}
        holds = []
        for kind, owner, blocks in engine.pool.holds():
            if isinstance(owner, str):
                holds.append(Hold(owner, kind, tuple(blocks)))
            elif not self.in_quarantine(owner):
                transfer = engine.transfers[owner]
                holds.append(Hold(names[owner], HoldKind(transfer.kind).name, tuple(blocks)))
        return holds

    def transfer_views(self) -> list[TransferView]:
        """Every copy, as its worker knows it; the engine is done with one in quarantine."""
        names = {number: name for name, number in self.names.items()}
        return [
            TransferView(
                id=names[job.number],
                kind=HoldKind(job.kind).name,
                request=job.request,
                blocks=tuple(job.blocks),
                open=job.open and not (job.lost and self.in_quarantine(job.number)),
                lost=job.lost,
            )
            for job in self.jobs()
        ]

    def tier_entries(self) -> list[TierEntry]:
        """What can be hit in the host tier; a remote one's offers are not the engine's to clear."""
        tier = self.engine.tier
        if tier is None or isinstance(tier, RemoteTier):
            return []
        return [TierEntry(tier.name, content, slots) for slots, content in tier.entries()]

    def touched(self) -> list[tuple[str, int]]:
        """What may still touch a block: launched steps, and copies that are open."""
        names = {number: name for name, number in self.names.items()}
        steps = [
            (f"step/{step.number}", block)
            for step in self.engine.launched
            for row in step.rows
            for block in row.table[: -(-row.end // self.settings.block_size)]
        ]
        copies = [(names[job.number], b) for job in self.jobs() if job.open for b in job.blocks]
        return steps + copies

    def counters(self) -> list[tuple[str, int, int]]:
        """What is counted, beside what it counts."""
        engine = self.engine
        counters = [("quarantined", engine.facts.quarantined, engine.pool.quarantined())]
        for transfer in engine.transfers.values():
            waiting = [r for r in engine.live() if r.facts.waits_for == transfer.number]
            counters.append(("waiters of a transfer", transfer.facts.waiters, len(waiting)))
        for request in engine.live():
            counters += [
                ("covered of a request", request.facts.covered, len(request.table)),
                ("delivered of a request", request.facts.delivered, len(request.delivered)),
                ("queued of a request", request.facts.queued_chunks, len(request.chunks)),
            ]
        return counters
