"""Steps: who is admitted, who makes way, what is computed, and what comes back.

Requests are served in the policy's order. One that lacks blocks gets them from parked sessions,
then from waiting requests behind it, and, if it runs, from running ones behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvproof.specs.fuzz.fake_kv import Row as Computed
from kvproof.specs.fuzz.fake_kv import Wrong
from kvproof.specs.fuzz.target import EOS, next_token
from kvproof.statemachine import EngineEvent, RequestEvent, policy
from kvproof.statemachine.gates import starts_work
from kvproof.statemachine.lanes import turn_tokens
from kvproof.statemachine.states import (
    FINISHED_LENGTH_CAPPED,
    FINISHED_STOPPED,
    IN_FLIGHT,
    LOAD,
    PREEMPTED,
    QUEUED,
    RUNNING,
    STORE,
    WAITING,
    WAITING_FOR_STREAMING_REQ,
)

from .lifecycle import Lifecycle
from .records import Request, Row, Step


@dataclass(frozen=True)
class Wanted:
    """The blocks that an admission takes."""

    hits: list[int]
    joined: list[int]  # of a load that is under way
    new: int  # out of the free pool, for new content
    fresh: int  # out of the free pool, hits included


class Scheduler(Lifecycle):
    """A lifecycle that launches steps and processes them."""

    # --- planning --------------------------------------------------------------------------------

    def step(self) -> int | None:
        """Plan and launch a step. Its number; None if nothing can be computed now."""
        if not self.would(EngineEvent.LAUNCH_STEP):
            return None
        self.start_stores()
        rows = self.plan()
        if not rows:
            return None
        self.tell(EngineEvent.LAUNCH_STEP)
        number = self.facts.launched
        step = Step(number, [self.row(request, count) for request, count in rows])
        for row in step.rows:
            self.fire(row.request, RequestEvent.LAUNCH, step=number, tokens=row.end - row.start)
        self.launched.append(step)
        return number

    def plan(self) -> list[tuple[Request, int]]:
        """Whom a step computes, and how many tokens of each."""
        while True:
            before = self.events
            rows = [(r, n) for r, n in self._plan_once() if r.facts.state == RUNNING]
            if rows or self.events == before:
                return rows

    def _plan_once(self) -> list[tuple[Request, int]]:
        budget = self.config.token_budget
        rows = []
        for request in self.in_state(RUNNING):
            count = min(budget, self.computable(request))
            if request.facts.state == RUNNING and count and self.grow(request, count):
                rows.append((request, count))
                budget -= count
        for request in self.candidates():
            if budget == 0 or len(self.in_state(RUNNING)) >= self.config.max_running:
                break
            if self.admit_remote(request):
                continue  # nobody else needs to wait for its load
            if not self.admit(request, budget):
                break
            if request.facts.state == RUNNING:
                count = min(budget, self.computable(request))
                rows.append((request, count))
                budget -= count
        return rows

    def candidates(self) -> list[Request]:
        """Who may be admitted if there is room, in order; whom the engine holds back, it skips."""
        states = (WAITING, PREEMPTED) if starts_work(self.facts) else (PREEMPTED,)
        pending = self.facts.pending_reset
        return [r for r in self.in_state(*states) if r.facts.covered or not pending]

    def in_flight(self, request: Request) -> list[Row]:
        """The launched rows whose samples will still count for a request."""
        return [
            row
            for step in self.launched
            for row in step.rows
            if row.request is request and row.samples and step.number > request.facts.stale_step
        ]

    def computable(self, request: Request) -> int:
        """How many tokens could be computed now; none if what is in flight ends the turn."""
        pending = len(self.in_flight(request))
        facts = request.facts
        turn = turn_tokens(facts.delivered, facts.turn_start) + pending
        known = len(request.tokens) + pending
        if pending and (turn >= request.max_tokens or known >= self.config.model_length):
            return 0
        return known - facts.computed

    def row(self, request: Request, count: int) -> Row:
        """A request's part of a step."""
        after = self.in_flight(request)
        end = request.facts.computed + count
        samples = end == len(request.tokens) + len(after)
        return Row(
            request,
            request.facts.computed,
            end,
            list(request.table),
            list(request.tokens),
            after,
            samples,
            self.kv.root,
        )

    # --- blocks ----------------------------------------------------------------------------------

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold so many tokens."""
        return -(-tokens // self.config.block_size)

    def grow(self, request: Request, count: int) -> bool:
        """Make the hold of a running request cover `count` tokens more. False: not now."""
        needed = self.blocks_for(request.facts.computed + count) - request.facts.covered
        if needed <= 0:
            return True
        if self.never_fits(request):
            self.fire(request, RequestEvent.ERROR)
            return False
        while self.room(request) < needed and self.make_way(request, needed):
            pass
        new = self.pool.free()[:needed]
        room = self.room(request)
        if self.fire(
            request, RequestEvent.GROW, take=new, new=new, blocks=needed, fresh=needed, free=room
        ):
            return True
        if not policy.enough(room, self.pool.promised(), needed):
            self.yield_to_waiting(request)
        return False

    def never_fits(self, request: Request) -> bool:
        """Whether a request cannot run even alone in the pool: quarantine took blocks."""
        e = self.facts
        return bool(
            policy.never_fits(len(request.tokens), e.pool_blocks, e.quarantined, e.block_size)
        )

    def make_way(self, request: Request, needed: int) -> bool:
        """One other holder lets go for a request that lacks blocks. False: nobody must."""
        free, promised = self.room(request), self.pool.promised()
        if policy.enough(free, promised, needed):
            return False
        for state in (WAITING_FOR_STREAMING_REQ, WAITING):
            for holder in reversed(self.in_state(state)):
                if self.must_make_way(holder, request, free + promised, needed):
                    return self.fire(holder, RequestEvent.RECLAIM)
        if request.facts.state == RUNNING:
            for victim in reversed(self.in_state(RUNNING)):
                if self.may_be_victim(victim, request):
                    return self.fire(victim, RequestEvent.PREEMPT, allowed=True)
        return False

    def may_be_victim(self, victim: Request, request: Request) -> bool:
        """Whether a running request may be preempted for another one."""
        v, r = victim.facts, request.facts
        return bool(policy.may_be_victim(v.priority, v.arrival, r.priority, r.arrival))

    def yield_to_waiting(self, request: Request) -> None:
        """A running request that lacks blocks makes way for a waiting one ahead that holds some.

        Otherwise the two wait for each other: one for blocks, the other for a place to run.
        """
        for ahead in self.in_state(WAITING):
            if ahead.facts.covered and self.may_be_victim(request, ahead):
                self.fire(request, RequestEvent.PREEMPT, allowed=True)
                return

    # --- admission -------------------------------------------------------------------------------

    def hits(self, request: Request) -> list[int]:
        """The device's blocks that a request can share; its last token is always computed."""
        whole = (len(request.tokens) - 1) // self.config.block_size
        return self.pool.hits(self.slots(request, whole))

    def wanted(self, request: Request, budget: int) -> Wanted:
        """The blocks of an admission that computes `budget` tokens or what there is."""
        facts = request.facts
        hits = [] if facts.covered else self.hits(request)
        computed = facts.computed + len(hits) * self.config.block_size
        count = min(budget, len(request.tokens) - computed)
        new = max(0, self.blocks_for(computed + count) - facts.covered - len(hits))
        return Wanted(hits, [], new, new + self._free_among(hits))

    def _free_among(self, blocks: list[int]) -> int:
        return len(set(blocks) & set(self.pool.free()))

    def take(self, wanted: Wanted) -> tuple[list[int], list[int]]:
        """Choose blocks: (in the order of the table, those for new content)."""
        others = [block for block in self.pool.free() if block not in wanted.hits]
        new = others[: wanted.new]
        return [*wanted.hits, *wanted.joined, *new], new

    def admit(self, request: Request, budget: int) -> bool:
        """Let a request run. False: it, and whoever is behind it, waits."""
        if self.never_fits(request):
            return self.fire(request, RequestEvent.ERROR)
        while True:
            wanted = self.wanted(request, budget)
            if self.room(request) >= wanted.fresh or not self.make_way(request, wanted.fresh):
                break
        blocks, new = self.take(wanted)
        return self.fire(
            request,
            RequestEvent.ADMIT,
            take=blocks,
            new=new,
            blocks=len(wanted.hits) + wanted.new,
            hits=len(wanted.hits),
            fresh=wanted.fresh,
            free=self.room(request),
        )

    def admit_remote(self, request: Request) -> bool:
        """Let a request load its prefix, or join one that does. False: it is to compute it."""
        size, facts = self.config.block_size, request.facts
        if self.tier is None or facts.computed != facts.covered * size:
            return False  # a load writes fresh blocks only, and its last one is half full
        hits = [] if facts.covered else self.hits(request)
        start = facts.covered + len(hits)
        slots = self.slots(request, (len(request.tokens) - 1) // size)
        end = self.tier.lookup(request.id, slots)
        if end <= start or not policy.may_load(facts.loads_failed, self.facts.loads_limit):
            return False
        joined = 0
        for transfer in self.transfers.values():
            if transfer.facts.state in (QUEUED, IN_FLIGHT) and transfer.kind == LOAD:
                joined = self._shared(transfer.slots, slots[start:])
                if joined:
                    end = start + joined
                    break
        else:
            transfer = self.new_transfer(LOAD, request.id, [], slots[start:end])
        new = 0 if joined else end - start
        wanted = Wanted(hits, transfer.blocks[:joined], new, new + self._free_among(hits))
        reserve = max(0, self.blocks_for(len(request.tokens)) - end)
        blocks, fresh = self.take(wanted)
        request.loads_from = start
        if not joined:
            transfer.blocks = fresh
        if self.fire(
            request,
            RequestEvent.ADMIT_REMOTE,
            take=blocks,
            new=fresh,
            blocks=len(hits) + joined + new,
            hits=len(hits),
            fresh=wanted.fresh,
            free=self.room(request),
            reserve=reserve,
            remote_tokens=end * size,
            transfer=transfer.number,
            joinable=True,
        ):
            return True
        if not joined:
            del self.transfers[transfer.number]
        return False

    def _shared(self, one: list[tuple[int, ...]], other: list[tuple[int, ...]]) -> int:
        """How many leading blocks of two loads are the same."""
        count = 0
        while count < min(len(one), len(other)) and one[count] == other[count]:
            count += 1
        return count

    # --- what comes back -------------------------------------------------------------------------

    def finish_step(self) -> None:
        """The device runs the oldest launched step, and its results are processed."""
        step = self.launched.pop(0)
        wrong = self.run(step)
        self.tell(EngineEvent.STEP_PROCESSED, step=step.number)
        self.pool.step_processed(step.number)
        for row, misread in zip(step.rows, wrong, strict=True):
            self.settle(row, step.number, misread)

    def run(self, step: Step) -> list[Wrong | None]:
        """What the device does: KV is written now, and not before."""
        wrong = self.kv.run(
            [Computed(row.table, row.tokens(), row.start, row.end, row.root) for row in step.rows]
        )
        for row in step.rows:
            if row.samples:
                row.sampled = next_token(row.tokens()[: row.end], row.request.stop_every)
        return wrong

    def settle(self, row: Row, step: int, misread: Wrong | None) -> None:
        """One request's results: first what it has written, then its token, then its turn's end."""
        request, tokens = row.request, row.end - row.start
        filled = (request.facts.written + tokens) // self.config.block_size
        self.fire(request, RequestEvent.PUBLISH, step=step, tokens=tokens, blocks=filled)
        if row.sampled is None:
            return
        if self.fire(request, RequestEvent.OUTPUT, step=step, tokens=1):
            self.deliver(request, row.sampled, misread)
            reason = self.reason_to_stop(request)
            if reason is not None:
                self.stop(request, step, reason)

    def deliver(self, request: Request, token: int, misread: Wrong | None) -> None:
        """A token reaches the client."""
        request.tokens.append(token)
        request.delivered.append(token)

    def reason_to_stop(self, request: Request) -> int | None:
        """Why a turn is over after the token just delivered; None if it is not."""
        facts = request.facts
        if request.delivered[-1] == EOS:
            return FINISHED_STOPPED
        over = turn_tokens(facts.delivered, facts.turn_start) >= request.max_tokens
        return FINISHED_LENGTH_CAPPED if over or self.at_limit(request) else None

    def at_limit(self, request: Request) -> bool:
        """Whether a request is as long as the model, or the whole pool, can take."""
        e, length = self.facts, len(request.tokens)
        return length >= e.model_length or bool(
            policy.never_fits(length, e.pool_blocks, 0, e.block_size)
        )

    def stop(self, request: Request, step: int, reason: int) -> None:
        """A turn is over: the request ends, the session parks, or its next chunk is taken."""
        kept = list(zip(request.table, self.slots(request, request.facts.hashed), strict=False))
        chunk, _ = request.chunks[0] if request.chunks else ([], 0)
        self.fire(
            request,
            RequestEvent.STOP,
            step=step,
            reason=reason,
            at_limit=self.at_limit(request),
            tokens=len(chunk),
        )
        if request.facts.state == WAITING:
            self.take_chunk(request, *request.chunks.pop(0))
        elif request.facts.state in (FINISHED_STOPPED, FINISHED_LENGTH_CAPPED):
            # A block that went into quarantine meanwhile is published no more.
            published = all(self.pool.stands_for(block) == slots for block, slots in kept)
            if request.send and kept and published and self.tier is not None:
                self.start(self.new_transfer(STORE, request.id, *zip(*kept, strict=True)))

    def take_chunk(self, request: Request, tokens: list[int], max_tokens: int) -> None:
        """A session's next turn: it goes on from every token so far."""
        request.tokens += tokens
        request.max_tokens = max_tokens
