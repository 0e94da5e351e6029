"""Requests and transfers: every change is an event of the declaration, and nothing else is.

The compiled cell decides; what it returns is carried out by the block functions. The engine's own
part is what a declaration cannot know: which blocks, which tokens, which transfer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import ClassVar

from kvproof.specs.fuzz.fake_kv import FakeKV
from kvproof.statemachine import (
    ENGINE,
    REQUEST,
    TRANSFER,
    Ask,
    EngineAsk,
    EngineEvent,
    EngineFacts,
    Machine,
    RequestEvent,
    TransferAsk,
    TransferEvent,
    answer_of,
    commands_of,
    policy,
)
from kvproof.statemachine.answers import GO, IGNORE, MAKE_HITS, REJECT, STOP_WAITING, WAIT
from kvproof.statemachine.gates import starts_work
from kvproof.statemachine.states import (
    ABSENT,
    ACTIVE,
    CANCELLING,
    FINISHED,
    IN_FLIGHT,
    LANDED,
    LIVE,
    LOAD,
    QUEUED,
    STORE,
    WAITING,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
)

from .pool import Pool, Slots
from .records import Config, Request, Step, Transfer
from .tier import HostTier

#: What a tier's worker says of a transfer, and what that is to the declaration.
SIGNALS = {
    "begun": TransferEvent.BEGIN,
    "landed": TransferEvent.LAND,
    "failed": TransferEvent.FAIL,
    "fenced": TransferEvent.FENCE,
    "unconfirmed": TransferEvent.GIVE_UP,
}


class Lifecycle:
    """Requests, transfers and their holds."""

    pool_class: ClassVar[type[Pool]] = Pool

    def __init__(self, config: Config, tier: type[HostTier] | None = None) -> None:
        self.config = config
        self.facts = EngineFacts(
            mode=ACTIVE,
            weights_resident=True,
            cache_resident=True,
            steps_ahead=config.steps_ahead,
            block_size=config.block_size,
            pool_blocks=config.blocks,
            model_length=config.model_length,
            loads_limit=config.loads_limit,
        )
        self.kv = FakeKV(config.blocks, config.block_size)
        self.pool = self.pool_class(self.kv, config.blocks)
        self.tier = tier(self.kv) if tier else None
        self.requests: dict[str, Request] = {}
        self.transfers: dict[int, Transfer] = {}
        self.launched: list[Step] = []
        self.to_store: list[tuple[int, Slots]] = []  # published since the last step
        self.ignored: Counter[str] = Counter()
        self.events = 0  # that went
        self.arrivals = 0
        self.started = 0  # transfers
        self.now = 0.0
        self.client_time = 0.0  # stands still while paused

    # --- events ----------------------------------------------------------------------------------

    def tell(self, event: EngineEvent, **told: int) -> bool:
        """An event of the engine. Returns whether it went; RefusedError if it was rejected."""
        mode = self.facts.mode
        code = ENGINE.fire(event, self.facts, EngineAsk(**told))
        return self._answered(ENGINE, code, "", mode, event)

    def would(self, event: EngineEvent, **told: int) -> bool:
        """Whether an event of the engine would go, without doing it."""
        return answer_of(ENGINE.fire(event, self.facts.copy(), EngineAsk(**told))) == GO

    def fire(
        self,
        request: Request,
        event: RequestEvent,
        take: Sequence[int] = (),
        new: Collection[int] = (),
        **told: int,
    ) -> bool:
        """An event of a request, and what it commands.

        `take` are the blocks that its hold may take, in the order of its table; `new` those of
        them that come out of the free pool for new content. `told` is what the event is told.
        Returns whether it went; RefusedError if it was rejected.
        """
        facts, state, waited_for = request.facts, request.facts.state, request.facts.waits_for
        code = REQUEST.fire(event, facts, self.facts, Ask(**told))
        if not self._answered(REQUEST, code, request.id, state, event):
            return False
        commands = commands_of(code)
        request.table = self.pool.request_holds(
            commands, request.id, request.table, take, new, facts.covered, facts.newest_step
        )
        if commands & MAKE_HITS:
            self.publish(request)
        if commands & WAIT:
            self.wait_for(request, self.transfers[facts.waits_for])
        if commands & STOP_WAITING:
            self.stop_waiting(request, self.transfers[waited_for])
        if facts.state != state:
            self.entered(request)
        return True

    def tell_transfer(self, transfer: Transfer, event: TransferEvent, **told: int) -> bool:
        """An event of a transfer, and what it commands. Returns whether it went."""
        state = transfer.facts.state
        code = TRANSFER.fire(event, transfer.facts, self.facts, TransferAsk(**told))
        if not self._answered(TRANSFER, code, transfer.name, state, event):
            return False
        self.pool.transfer_holds(
            commands_of(code), transfer.number, transfer.blocks, transfer.kind == LOAD
        )
        self.facts.quarantined = self.pool.quarantined()
        return True

    def _answered(self, machine: Machine, code: int, subject: str, state: int, event: int) -> bool:
        answer = answer_of(code)
        if answer == REJECT:
            raise machine.refusal(code, subject, state, event)
        if answer == IGNORE:
            self.ignored[machine.table.events(event).name.lower()] += 1
        self.events += answer == GO
        return answer == GO

    def entered(self, request: Request) -> None:
        """A request is in a new state: its wait for an outside party is limited."""
        state = request.facts.state
        request.deadline = math.inf
        if state in FINISHED:
            request.chunks.clear()
        if state == WAITING_FOR_REMOTE_KVS:
            request.deadline = self.now + self.config.load_deadline
        if state in (WAITING_FOR_STREAMING_REQ, WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR):
            request.deadline = self.client_time + self.config.client_deadline

    # --- who is where ----------------------------------------------------------------------------

    def in_state(self, *states: int) -> list[Request]:
        """The requests in these states, in the policy's order."""
        found = [request for request in self.requests.values() if request.facts.state in states]
        return sorted(found, key=lambda r: (r.facts.priority, r.facts.arrival))

    def live(self) -> list[Request]:
        """The requests that are not finished."""
        return self.in_state(*LIVE)

    def room(self, request: Request) -> int:
        """How many blocks are free for a request: beyond those reserved for others."""
        others = (other for other in self.requests.values() if other is not request)
        return len(self.pool.free()) - sum(other.facts.reserved for other in others)

    def must_make_way(self, holder: Request, request: Request, free: int, needed: int) -> bool:
        """Whether a holder that does not run must give its blocks up for a request."""
        h, r = holder.facts, request.facts
        if h.covered == 0 or holder is request:
            return False
        if h.state == WAITING_FOR_STREAMING_REQ:
            return bool(policy.must_reclaim_parked(free, needed))
        if h.state == WAITING and not starts_work(self.facts):
            return bool(policy.must_reclaim_held_back(free, needed))
        return h.state == WAITING and bool(
            policy.must_reclaim_waiting(free, needed, h.priority, h.arrival, r.priority, r.arrival)
        )

    # --- what requests are computed from ---------------------------------------------------------

    def slots(self, request: Request, blocks: int) -> list[Slots]:
        """What the first blocks of a request stand for."""
        size = self.config.block_size
        chain = self.kv.prefixes.chain(request.tokens[: blocks * size], self.kv.root)
        return [chain[i : i + size] for i in range(0, len(chain) // size * size, size)]

    def publish(self, request: Request) -> None:
        """The blocks up to `hashed` become hits, and are to be stored."""
        for block, slots in zip(
            request.table, self.slots(request, request.facts.hashed), strict=False
        ):
            if self.pool.stands_for(block) is None:
                self.pool.publish(block, slots)
                self.to_store.append((block, slots))

    # --- transfers -------------------------------------------------------------------------------

    def new_transfer(
        self, kind: int, request: str | None, blocks: Sequence[int], slots: Sequence[Slots]
    ) -> Transfer:
        """A transfer with a number of its own, not started yet."""
        self.started += 1
        transfer = Transfer(self.started, kind, request, list(blocks), list(slots))
        self.transfers[transfer.number] = transfer
        return transfer

    def start(self, transfer: Transfer) -> bool:
        """The transfer's hold begins, and its tier has it."""
        counts = [self.pool.facts[block].count for block in transfer.blocks]
        stands_for = [self.pool.stands_for(block) for block in transfer.blocks]
        if not self.tell_transfer(
            transfer,
            TransferEvent.START,
            kind=transfer.kind,
            unshared=counts == [1] * len(counts),
            published=stands_for == transfer.slots,
        ):
            del self.transfers[transfer.number]
            return False
        assert self.tier is not None
        self.tier.start(
            transfer.number, transfer.kind, transfer.request, transfer.blocks, transfer.slots
        )
        transfer.lease = self.now + self.config.lease
        if self.tier.begins_at_once:
            self.tier.begin(transfer.number)
            self.tell_transfer(transfer, TransferEvent.BEGIN)
        return True

    def start_stores(self) -> None:
        """What has been published since the last step is copied to the tier."""
        once = {slots: block for block, slots in self.to_store if self.may_store(block, slots)}
        new = [(block, slots) for slots, block in once.items()]
        # A block that nobody holds is stored only if no request has been promised its room.
        spare = len(self.pool.free()) - sum(r.facts.reserved for r in self.requests.values())
        free = [part for part in new if self.pool.facts[part[0]].count == 0]
        new = [part for part in new if part not in free[max(0, spare) :]]
        if not new or self.start(self.new_transfer(STORE, None, *zip(*new, strict=True))):
            self.to_store.clear()

    def may_store(self, block: int, slots: Slots) -> bool:
        """Whether a block is what was published, and neither in the tier nor on its way there."""
        on_their_way = (t.slots for t in self.transfers.values() if t.kind == STORE)
        return (
            self.tier is not None
            and self.pool.stands_for(block) == slots
            and slots not in self.tier.stored
            and not any(slots in others for others in on_their_way)
        )

    def wait_for(self, request: Request, transfer: Transfer) -> None:
        """A request waits for a load; the first to wait starts it."""
        if transfer.facts.state == ABSENT:
            self.start(transfer)
        self.tell_transfer(transfer, TransferEvent.JOIN)
        transfer.waiters.append(request)

    def stop_waiting(self, request: Request, transfer: Transfer) -> None:
        """A request no longer waits; a load that nobody waits for is cancelled."""
        self.tell_transfer(transfer, TransferEvent.LEAVE)
        transfer.waiters.remove(request)
        facts = transfer.facts
        if facts.state in (QUEUED, IN_FLIGHT) and policy.cancel_unwaited(
            facts.kind == LOAD, facts.waiters
        ):
            self.cancel(transfer, TransferEvent.CANCEL)

    def cancel(self, transfer: Transfer, event: TransferEvent) -> None:
        """A transfer is no longer wanted: fenced if it never began, else its worker is asked."""
        if self.tell_transfer(transfer, event, expired=True):
            if transfer.facts.state == CANCELLING:
                transfer.lease = self.now + self.config.cancel_lease
            else:
                assert self.tier is not None
                self.tier.stop(transfer.number)
                self.ended(transfer)

    def signal(self, number: int, kind: str, valid: int = 0) -> None:
        """A tier's word on a transfer: see SIGNALS. Late, duplicate and unknown ones are legal."""
        if not self.tell(EngineEvent.SIGNAL):
            return
        transfer = self.transfers.get(number) or Transfer(number, 0, None, [], [])
        if self.tell_transfer(transfer, SIGNALS[kind]) and kind != "begun":
            self.ended(transfer, valid if kind == "failed" else None)

    def ended(self, transfer: Transfer, valid: int | None = None) -> None:
        """A transfer has landed, failed, is fenced or in quarantine: its waiters are told.

        Its own hold has ended before (or its blocks are in quarantine): only then may a waiter's
        blocks become hits. `valid` of its blocks are right if it failed; None: nobody can say.
        """
        for request in list(transfer.waiters):
            loaded = min(len(transfer.blocks), request.facts.covered - request.loads_from)
            if transfer.facts.state == LANDED:
                blocks = request.loads_from + loaded
                self.fire(
                    request,
                    RequestEvent.TRANSFER_LANDED,
                    transfer=transfer.number,
                    tokens=blocks * self.config.block_size,
                    blocks=blocks,
                )
            else:
                # Nobody may recompute into a block that may still be written.
                blocks = 0 if valid is None else request.loads_from + min(valid, loaded)
                self.fire(
                    request,
                    RequestEvent.TRANSFER_FAILED,
                    transfer=transfer.number,
                    blocks=blocks,
                    fatal=self.config.fail_policy == "fail",
                )
        self.retire(transfer)

    def retire(self, transfer: Transfer) -> None:
        """A transfer whose hold has ended is forgotten; its number is never used again."""
        if transfer.number in self.transfers and self.tell_transfer(transfer, TransferEvent.RETIRE):
            del self.transfers[transfer.number]

    def forget(self) -> None:
        """Finished requests of which nothing is left are forgotten."""
        for request in [r for r in self.requests.values() if r not in self.live()]:
            started = any(t.request == request.id for t in self.transfers.values())
            idle = self.pool.idle(request.id) and not started
            if self.fire(request, RequestEvent.FORGET, idle=idle):
                del self.requests[request.id]
