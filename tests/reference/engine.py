"""A small engine that runs the declaration end to end: dictionaries and loops, no speed.

Read `lifecycle` for events and transfers, `scheduler` for steps; here are the calls of clients
and operators. It is single-threaded and does nothing by itself: a test calls `step` and
`finish_step`, tells it of transfers by `signal`, and lets time pass by `advance`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvproof.statemachine import (
    EndsBy,
    EngineEvent,
    RequestEvent,
    ResetOutcome,
    TransferEvent,
    container,
    reset,
)
from kvproof.statemachine.gates import clocks_stand_still
from kvproof.statemachine.states import (
    ABORT_ALL,
    ACTIVE,
    CACHE,
    CANCELLING,
    DRAINING,
    FINISHED,
    KEEP_ALL,
    LIVE,
    PAUSED,
    PAUSING,
    PREEMPT,
    PREEMPTED,
    RUNNING,
    UNKNOWN,
    WAIT_FOR_ALL,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
    WEIGHTS,
)

from .records import Holder, Request, ResetAnswer
from .scheduler import Scheduler

MODES = {"abort": ABORT_ALL, "wait": WAIT_FOR_ALL, "keep": KEEP_ALL}


@dataclass
class Pending:
    """A reset that waits."""

    force: bool
    connector: bool
    until: float
    answer: ResetAnswer


class Engine(Scheduler):
    """The whole engine. Calls that the declaration rejects raise RefusedError."""

    pending: Pending | None = None

    # --- clients ---------------------------------------------------------------------------------

    def add(
        self,
        request_id: str,
        tokens: Sequence[int],
        max_tokens: int = 4,
        *,
        session: bool = False,
        grammar: bool = False,
        priority: int = 0,
        stop_every: int = 0,
        send: bool = False,
    ) -> Request:
        """A new request."""
        self.tell(EngineEvent.ADD)
        known = self.requests.get(request_id)
        request = known or Request(request_id, list(tokens), max_tokens, stop_every, send)
        self.arrivals += 1
        self.fire(
            request,
            RequestEvent.ADD,
            tokens=len(tokens),
            resumable=session,
            grammar=grammar,
            priority=priority,
            arrival=self.arrivals,
        )
        self.requests[request_id] = request
        self.after()
        return request

    def grammar(self, request_id: str, ready: bool) -> None:
        """A request's grammar is compiled, or cannot be."""
        event = RequestEvent.GRAMMAR_READY if ready else RequestEvent.GRAMMAR_FAILED
        self.fire(self.known(request_id), event)

    def chunk(self, request_id: str, tokens: Sequence[int], max_tokens: int = 4) -> None:
        """A session's next input."""
        self.tell(EngineEvent.CHUNK)
        request = self.known(request_id)
        parked = request.facts.state == WAITING_FOR_STREAMING_REQ
        self.fire(request, RequestEvent.CHUNK, tokens=len(tokens))
        if parked:
            self.take_chunk(request, list(tokens), max_tokens)
        else:
            request.chunks.append((list(tokens), max_tokens))

    def close_input(self, request_id: str) -> None:
        """No more input comes."""
        self.fire(self.known(request_id), RequestEvent.CLOSE_INPUT)
        self.after()

    def abort(self, request_id: str) -> bool:
        """The client gives up. False: it was finished or unknown."""
        went = self.fire(self.known(request_id), RequestEvent.ABORT)
        self.after()
        return went

    def known(self, request_id: str) -> Request:
        """A request by its id; of an unknown one a record in the state UNKNOWN."""
        return self.requests.get(request_id) or Request(request_id, [], 0)

    # --- after each change -----------------------------------------------------------------------

    def step(self) -> int | None:
        """See Scheduler."""
        number = super().step()
        self.forget()
        return number

    def finish_step(self) -> None:
        """See Scheduler."""
        super().finish_step()
        self.after()

    def signal(self, number: int, kind: str, valid: int = 0) -> None:
        """See Lifecycle."""
        super().signal(number, kind, valid)
        self.after()

    def after(self) -> None:
        """What follows by itself once something has ended."""
        running = len(self.in_state(RUNNING, PREEMPTED))
        if self.facts.mode == PAUSING:
            self.tell(EngineEvent.PAUSE_REACHED, running=running)
        self.try_pending_reset()
        self.forget()
        if self.facts.mode == DRAINING:
            self.tell(EngineEvent.DRAINED, live=len(self.live()), holds=self.holds_left())

    def advance(self, seconds: float) -> None:
        """Time passes: deadlines, leases and the wait of a reset may be over."""
        self.now += seconds
        if not clocks_stand_still(self.facts):
            self.client_time += seconds
        for request in self.live():
            loads = request.facts.state == WAITING_FOR_REMOTE_KVS
            if request.deadline <= (self.now if loads else self.client_time):
                self.fire(request, RequestEvent.DEADLINE, expired=True)
        for transfer in list(self.transfers.values()):
            if transfer.lease <= self.now and self.tell(EngineEvent.LEASE):
                if transfer.facts.state == CANCELLING:
                    self.signal(transfer.number, "unconfirmed")
                else:
                    self.cancel(transfer, TransferEvent.LEASE_OVER)
        if self.pending and self.pending.until <= self.now:
            self.decide(self.pending.answer)
        self.after()

    # --- reset -----------------------------------------------------------------------------------

    def reset(self, force: bool = False, connector: bool = False, wait: float = 0.0) -> ResetAnswer:
        """Drop every cached prefix: see `kvproof.statemachine.reset`."""
        self.tell(EngineEvent.RESET)
        answer = self.try_reset(force, connector)
        by_client = [h for h in answer.holders if h.ends_by == EndsBy.CLIENT]
        if not reset.may_wait(len(answer.holders), len(by_client), wait > 0):
            return answer
        if self.pending and (self.pending.force, self.pending.connector) != (force, connector):
            return answer
        answer = ResetAnswer(False, holders=answer.holders, pending=True)
        if self.tell(EngineEvent.RESET_PENDING):
            self.pending = Pending(force, connector, self.now + wait, answer)
        return answer

    def try_reset(self, force: bool, connector: bool) -> ResetAnswer:
        """One try: what was launched is processed, everyone is looked at, then all or nothing."""
        while self.launched:
            Scheduler.finish_step(self)
        self.forget()
        holders = tuple(self.refusing(force))
        refusing = len(holders)
        self.let_everything_go(refusing)
        cleared = reset.clears_tier(refusing, connector) and self.clear_tier()
        outcome = reset.outcome(refusing, connector, cleared)
        if outcome == ResetOutcome.REFUSED:
            return ResetAnswer(False, holders=holders)
        tiers = ("device", "connector") if cleared else ("device",)
        return ResetAnswer(outcome == ResetOutcome.DONE, tiers)

    def refusing(self, force: bool) -> list[Holder]:
        """Who refuses a reset, looked at before anybody is let go."""
        holders = [
            Holder(
                "REQUEST",
                request.id,
                EndsBy(reset.request_ends_by(request.facts.state)),
                not reset.request_refuses(request.facts.state, True, True),
            )
            for request in self.live()
            if reset.request_refuses(request.facts.state, request.facts.covered > 0, force)
        ]
        return holders + [
            Holder(transfer.name.split()[0].upper(), transfer.name, EndsBy.ITSELF, False)
            for transfer in self.transfers.values()
            if reset.transfer_refuses(transfer.facts.state)
        ]

    def let_everything_go(self, refusing: int = 0) -> None:
        """What a reset and a sleep do to requests, last first, and to prefixes, if none refuses."""
        for request in reversed(self.live()):
            facts = request.facts
            event = reset.sent_event(refusing, facts.state, facts.covered > 0)
            if event != reset.NO_EVENT:
                self.fire(request, RequestEvent(event), forced=event == PREEMPT)
        if reset.drops_prefixes(refusing):
            self.pool.drop_prefixes()

    def clear_tier(self) -> bool:
        """The connector's tier is cleared. False: it could not be."""
        return self.tier is None or self.tier.reset()

    def try_pending_reset(self) -> None:
        """A reset that waits is tried again, once nothing refuses it but launched steps."""
        pending = self.pending
        if pending and not self.refusing(pending.force):
            answer = self.try_reset(pending.force, pending.connector)
            if not answer.holders:
                self.decide(answer)

    def decide(self, answer: ResetAnswer) -> None:
        """The reset that waited is done, or its time is over."""
        assert self.pending is not None
        self.pending.answer = answer
        self.pending = None
        self.tell(EngineEvent.RESET_DECIDED)

    # --- pause, sleep, wake ----------------------------------------------------------------------

    def pause(self, mode: str = "keep") -> bool:
        """Stop stepping; `mode` says what becomes of what runs. False: nothing to do."""
        went = self.tell(EngineEvent.PAUSE, pausing=MODES[mode])
        if self.facts.mode == PAUSING:
            self.begin_pause(mode)
        return went

    def begin_pause(self, mode: str) -> None:
        """What runs is aborted, if that is asked; then the pause may be reached already."""
        if mode == "abort":
            for request in self.in_state(RUNNING, PREEMPTED):
                self.fire(request, RequestEvent.ABORT)
        self.after()

    def resume(self) -> bool:
        """Go on. False: nothing to do."""
        return self.tell(EngineEvent.RESUME)

    def sleep(self, level: int = 1, mode: str = "abort") -> bool:
        """Give weights and cache back. False: refused; mode and memory are as they were."""
        if self.facts.mode == ACTIVE:
            self.tell(EngineEvent.SLEEP, level=level, pausing=MODES[mode])
            self.begin_pause(mode)
            while self.facts.mode == PAUSING and (self.step() or self.launched):
                self.finish_step()
        elif self.facts.mode != PAUSED:
            return self.tell(EngineEvent.SLEEP, level=level)
        return self.fall_asleep(level)

    def fall_asleep(self, level: int) -> bool:
        """Let everything go and discard the memory; or, refused, go back to where it was."""
        holders = len(self.refusing(force=True))
        if self.would(EngineEvent.SLEEP, level=level, holders=holders):
            self.let_everything_go()
        if not self.tell(EngineEvent.SLEEP, level=level, holders=holders, holds=self.holds_left()):
            self.tell(EngineEvent.SLEEP_FAILED)
            return False
        self.kv.discard()
        return True

    def holds_left(self) -> int:
        """How many holds there are, those in quarantine apart."""
        held = self.pool.held.values()
        return sum(h.by_request + h.by_step + (h.by_transfer and not h.in_quarantine) for h in held)

    def wake(self, tags: int = WEIGHTS + CACHE) -> bool:
        """Take memory again, tag by tag if wanted."""
        if not self.tell(EngineEvent.WAKE, tags=tags):
            return False
        if tags != WEIGHTS:
            self.kv.restore()
        return self.tell(EngineEvent.WOKE, tags=tags)

    def weights_changed(self) -> bool:
        """Nothing that was computed before can be a hit, in any tier. False: not now."""
        if not self.tell(EngineEvent.WEIGHTS_CHANGED, holds=self.holds_left()):
            return False
        self.kv.new_epoch()
        self.pool.drop_prefixes()
        return True

    def shutdown(self) -> None:
        """Take nothing new, and end when what is there has ended."""
        self.tell(EngineEvent.SHUTDOWN)
        if self.pending:
            self.pending = None
        asleep = not (self.facts.weights_resident and self.facts.cache_resident)
        for request in self.live():
            if asleep:
                self.fire(request, RequestEvent.ABORT)  # it can never run again
            elif request.facts.resumable:
                self.fire(request, RequestEvent.CLOSE_INPUT)
        self.after()

    # --- checking --------------------------------------------------------------------------------

    def check(self) -> None:
        """Recompute what the facts say from what there is. AssertionError names what is wrong."""
        self.pool.check()
        e = self.facts
        for request in self.requests.values():
            facts, name = request.facts, request.id
            assert facts.state != UNKNOWN, f"{name} is remembered and unknown"
            assert (container(facts.state) == 0) == (facts.state in FINISHED), name
            held = self.pool.held.items()
            own = {b for (owner, b), h in held if owner == name and h.by_request}
            assert set(request.table) == own, f"{name}: table {request.table}, hold {own}"
            assert len(request.table) == facts.covered, f"{name}: covered {facts.covered}"
            assert facts.covered == 0 or facts.state in LIVE, f"{name} is finished and resident"
            assert facts.state != RUNNING or facts.covered > 0, f"{name} runs without blocks"
            assert facts.state != PREEMPTED or facts.covered == 0, f"{name} kept its blocks"
            size = e.block_size
            assert facts.hashed * size <= facts.written <= facts.computed <= facts.covered * size
            waits = facts.state == WAITING_FOR_REMOTE_KVS
            assert waits == (facts.waits_for > 0), f"{name} waits for {facts.waits_for}"
            assert not waits or request in self.transfers[facts.waits_for].waiters, name
            assert facts.delivered == len(request.delivered), f"{name} was given other tokens"
            assert facts.prompt + facts.delivered == len(request.tokens), f"{name}: length"
            assert facts.queued_chunks == len(request.chunks), f"{name}: chunks"
            assert facts.queued_tokens == sum(len(t) for t, _ in request.chunks), f"{name}: chunks"
            blocked = container(facts.state) == 2
            assert blocked == (request.deadline < math.inf), f"{name}: deadline"
        for transfer in self.transfers.values():
            assert transfer.facts.waiters == len(transfer.waiters), transfer.name
        assert e.quarantined == self.pool.quarantined(), "quarantined blocks"
        assert sum(r.facts.reserved for r in self.requests.values()) <= len(self.pool.free())
        assert e.pending_reset == (self.pending is not None), "pending reset"
        if not e.cache_resident:
            assert self.holds_left() == 0, "memory is asleep and held"
        for block in self.touched():
            assert self.pool.facts[block].count > 0, f"block {block} is touched and not held"

    def touched(self) -> set[int]:
        """The blocks that steps and copies may really still touch, whatever is recorded."""
        by_steps = [row.table for step in self.launched for row in step.rows]
        copies = self.tier.jobs.values() if self.tier else ()
        by_copies = [copy.blocks for copy in copies if copy.open]
        return {block for blocks in by_steps + by_copies for block in blocks}
