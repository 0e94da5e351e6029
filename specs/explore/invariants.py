"""What must be true of every state, said of every block, request and transfer by itself.

The proofs say the same of one arbitrary block, request and transfer, and of the others as counts.
Here nothing is abstracted: sums are sums. An invariant's name begins with its obligation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...statemachine.states import (
    ABSENT,
    ACTIVE,
    CANCELLING,
    FAILED,
    FENCED,
    FINISHED,
    IN_BLOCKED,
    IN_FLIGHT,
    IN_RUNNING,
    IN_WAITING,
    LANDED,
    LOAD,
    PREEMPTED,
    QUARANTINED,
    QUEUED,
    RUNNING,
    SLEEPING,
    UNKNOWN,
    WAITING,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
    WAKING,
)
from . import expressions as ex
from .expressions import Value
from .instance import Feature, Instance
from .world import World


@dataclass(frozen=True)
class Invariant:
    """A condition on every reachable state; `subject` is the record that it is about."""

    name: str
    subject: str
    holds: Callable[[World], Value]


def implies(condition: Value, conclusion: Value) -> Value:
    """If the first holds, so does the second."""
    return ex.either(ex.no(condition), conclusion)


def among(value: Value, members: tuple[int, ...]) -> Value:
    """The value is one of these."""
    return ex.either(*(ex.equal(value, int(member)) for member in members))


OPEN = (QUEUED, IN_FLIGHT, CANCELLING)
GONE = (ABSENT, LANDED, FAILED, FENCED)


def invariants_of(instance: Instance) -> list[Invariant]:
    """Every invariant of an instance."""
    return [
        *(each for block in range(instance.blocks) for each in _block(block)),
        *(each for index in range(instance.requests) for each in _request(instance, index)),
        *(
            each
            for index in range(instance.requests)
            for block in range(instance.blocks)
            for each in _pair(index, block)
        ),
        *(each for index in range(instance.transfers) for each in _transfer(instance, index)),
        Invariant("S8 an engine that is active is awake and has no pause", "engine", _active),
        *(
            [Invariant("P5 nobody is ahead of itself", "engine", _strict)]
            if instance.has(Feature.POLICY)
            else []
        ),
        Invariant(
            "S8 asleep or without memory, nothing is held, cached or in flight", "engine", _asleep
        ),
    ]


def _block(n: int) -> Iterator[Invariant]:
    name = f"b{n}"

    def count(w: World) -> Value:
        s = w.state
        by_requests = (ex.truth(pairs[n].by_request) for pairs in s.held)
        by_steps = (ex.truth(pairs[n].by_step) for pairs in s.held)
        by_transfers = (ex.truth(pairs[n].by_transfer) for pairs in s.carried)
        holds = ex.total([*by_requests, *by_steps, *by_transfers])
        return ex.equal(s.blocks[n].count, holds)

    def quarantined(w: World) -> Value:
        s = w.state
        kept = ex.total(ex.truth(pairs[n].in_quarantine) for pairs in s.carried)
        return ex.equal(s.blocks[n].quarantined, kept)

    def out_of_pool(w: World) -> Value:
        block = w.state.blocks[n]
        return implies(block.quarantined > 0, ex.both(block.count > 0, ex.no(block.cached)))

    def written(w: World) -> Value:
        s = w.state
        writers = ex.either(
            *(
                ex.both(ex.truth(pairs[n].by_transfer), s.transfers[t].kind == LOAD)
                for t, pairs in enumerate(s.carried)
            )
        )
        return ex.equal(ex.truth(s.blocks[n].being_written), writers)

    def index(w: World) -> Value:
        block = w.state.blocks[n]
        true = ex.both(
            block.hashed_as == block.content_of,
            block.hashed_as > 0,
            ex.no(block.being_written),
        )
        return ex.choose(ex.truth(block.cached), true, block.hashed_as == 0)

    def one_hit(w: World) -> Value:
        s = w.state
        block, more = s.blocks[n], s.more[n]
        return ex.both(
            *(
                implies(
                    ex.both(block.cached, other.cached, more.epoch == 1, s.more[m].epoch == 1),
                    block.hashed_as != other.hashed_as,
                )
                for m, other in enumerate(s.blocks)
                if m > n
            )
        )

    yield Invariant("S1 a block's count is the number of holds that cover it", name, count)
    yield Invariant("S1 quarantine is counted by the holds in it", name, quarantined)
    yield Invariant("S2 a quarantined block is held and no hit", name, out_of_pool)
    yield Invariant("S2 a block is being written while a load has it", name, written)
    yield Invariant("S10 a cached block is hashed as its content", name, index)
    yield Invariant("S10 a prefix has one hit", name, one_hit)


def _request(instance: Instance, n: int) -> Iterator[Invariant]:
    name = f"r{n}"

    def covered(w: World) -> Value:
        s = w.state
        held = ex.total(ex.truth(held.by_request) for held in s.held[n])
        return ex.equal(s.requests[n].covered, held)

    def residency(w: World) -> Value:
        r = w.state.requests[n]
        return ex.both(
            implies(among(r.state, (RUNNING, WAITING_FOR_REMOTE_KVS)), r.covered > 0),
            implies(among(r.state, (PREEMPTED, UNKNOWN, *FINISHED)), r.covered == 0),
            implies(r.covered == 0, ex.both(r.computed == 0, r.written == 0, r.hashed == 0)),
        )

    def progress(w: World) -> Value:
        r, size = w.state.requests[n], instance.block_size
        return ex.both(
            r.hashed * size <= r.written,
            r.written <= r.computed,
            r.computed <= r.covered * size,
        )

    def waits(w: World) -> Value:
        s = w.state
        r = s.requests[n]
        named = ex.either(
            *(
                ex.both(r.waits_for == t + 1, among(transfer.state, OPEN), transfer.kind == LOAD)
                for t, transfer in enumerate(s.transfers)
            )
        )
        return ex.choose(r.state == WAITING_FOR_REMOTE_KVS, named, r.waits_for == 0)

    def reserved(w: World) -> Value:
        r = w.state.requests[n]
        return implies(r.reserved > 0, r.covered > 0)

    def steps(w: World) -> Value:
        s = w.state
        r = s.requests[n]
        return ex.both(r.stale_step <= r.newest_step, r.newest_step <= s.e.launched)

    def length(w: World) -> Value:
        r = w.state.requests[n]
        known = r.prompt + r.delivered
        return ex.both(known <= instance.model_length, r.turn_start <= r.delivered)

    def queue(w: World) -> Value:
        r = w.state.requests[n]
        return ex.both(
            r.queued_tokens == r.queued_chunks * instance.chunk,
            implies(r.input_open, r.resumable),
            implies(
                among(r.state, (UNKNOWN, *FINISHED)),
                ex.both(r.queued_chunks == 0, ex.no(r.input_open)),
            ),
        )

    def computed(w: World) -> Value:
        s = w.state
        r, work = s.requests[n], s.work[n]
        oldest = s.e.processed - ex.number(s.phase.settling)
        coming = ex.total(
            ex.choose(oldest + step > r.stale_step, work.tokens(step), 0)
            for step in range(1, instance.steps_ahead + 1)
        )
        return implies(
            r.covered > 0,
            ex.both(r.computed == r.written + coming, r.written == s.places[n][0].written),
        )

    def contained(w: World) -> Value:
        r = w.state.requests[n]
        place = w.value(w.declaration.function("request", "container"), state=r.state)
        blocked = (
            WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
            WAITING_FOR_REMOTE_KVS,
            WAITING_FOR_STREAMING_REQ,
        )
        return ex.both(
            ex.equal(place == IN_WAITING, among(r.state, (WAITING, PREEMPTED))),
            ex.equal(place == IN_RUNNING, r.state == RUNNING),
            ex.equal(place == IN_BLOCKED, among(r.state, blocked)),
        )

    yield Invariant("S5 a live request is in the container that serves it", name, contained)
    yield Invariant("S1 covered is the size of the hold", name, covered)
    yield Invariant("S10 what counts as computed is written, or a step writes it", name, computed)
    yield Invariant("S4 state and residency agree", name, residency)
    yield Invariant("S4 hashed, written, computed and covered are in order", name, progress)
    yield Invariant("S4 a request waits for a load exactly in that state", name, waits)
    yield Invariant("S4 only who is resident has blocks reserved", name, reserved)
    yield Invariant("S4 stale and newest step are launched steps", name, steps)
    yield Invariant("S4 no request is longer than the model", name, length)
    yield Invariant("S4 queued chunks and their tokens agree", name, queue)


def _pair(n: int, b: int) -> Iterator[Invariant]:
    name = f"r{n}, b{b}"

    def table(w: World) -> Value:
        s = w.state
        position, r = s.places[n][b].position, s.requests[n]
        return ex.both(
            ex.equal(ex.truth(s.held[n][b].by_request), position >= 0),
            position < r.covered + ex.number(r.covered == 0),
            *(
                implies(position >= 0, place.position != position)
                for other, place in enumerate(s.places[n])
                if other > b
            ),
        )

    def touched(w: World) -> Value:
        s = w.state
        place, held = s.places[n][b], s.held[n][b]
        by_request = ex.both(held.by_request, s.requests[n].newest_step >= place.touching)
        by_step = ex.both(held.by_step, held.step >= place.touching)
        return implies(place.touching > s.e.processed, ex.either(by_request, by_step))

    def step_hold(w: World) -> Value:
        s = w.state
        held = s.held[n][b]
        ends = ex.both(held.step > s.e.processed, held.step <= s.e.launched)
        return implies(held.by_step, ends)

    def content(w: World) -> Value:
        s = w.state
        position, r = s.places[n][b].position, s.requests[n]
        return implies(
            ex.both(position >= 0, position < r.hashed),
            s.blocks[b].content_of == position + 1,
        )

    def shared(w: World) -> Value:
        s = w.state
        mine, r = s.places[n][b].position, s.requests[n]
        alone = []
        for other, places in enumerate(s.places):
            if other == n:
                continue
            both_hold = ex.both(mine >= 0, s.held[other][b].by_request)
            same_load = ex.both(r.waits_for > 0, r.waits_for == s.requests[other].waits_for)
            hit = ex.both(mine < r.hashed, mine == places[b].position)
            alone.append(implies(both_hold, ex.either(hit, same_load)))
        return ex.both(*alone)

    yield Invariant("S1 the table is the hold", name, table)
    yield Invariant("S2 what a launched step touches is held", name, touched)
    yield Invariant("S3 a STEP hold ends with its step", name, step_hold)
    yield Invariant("S10 what counts as hashed is there", name, content)
    yield Invariant("S2 a block in two tables is a hit or the same load's", name, shared)


def _transfer(instance: Instance, n: int) -> Iterator[Invariant]:
    name = f"t{n}"

    def waiters(w: World) -> Value:
        s = w.state
        waiting = ex.total(r.waits_for == n + 1 for r in s.requests)
        return ex.equal(s.transfers[n].waiters, waiting)

    def hold(w: World) -> Value:
        s = w.state
        state, pairs = s.transfers[n].state, s.carried[n]
        held = ex.either(*(ex.truth(pair.by_transfer) for pair in pairs))
        kept = ex.either(*(ex.truth(pair.in_quarantine) for pair in pairs))
        return ex.both(
            ex.equal(held, among(state, (*OPEN, QUARANTINED))),
            ex.equal(kept, state == QUARANTINED),
        )

    def touched(w: World) -> Value:
        s = w.state
        return ex.both(
            *(
                implies(copy.working, pair.by_transfer)
                for copy, pair in zip(s.copies[n], s.carried[n], strict=True)
            )
        )

    def alone(w: World) -> Value:
        s = w.state
        t = s.transfers[n]
        parts = []
        for b, pair in enumerate(s.carried[n]):
            writes = ex.both(pair.by_transfer, t.kind == LOAD)
            for index, r in enumerate(s.requests):
                held = s.held[index][b]
                waits = r.waits_for == n + 1
                parts.append(implies(ex.both(writes, held.by_request), waits))
                parts.append(implies(writes, ex.no(held.by_step)))
            for other, pairs in enumerate(s.carried):
                if other != n:
                    parts.append(implies(writes, ex.no(pairs[b].by_transfer)))
        return ex.both(*parts)

    if not instance.transfer_kinds:
        return
    yield Invariant("S5 waiters are counted", name, waiters)
    yield Invariant("S3 a transfer has a hold until it has ended", name, hold)
    yield Invariant("S2 what a worker touches is held", name, touched)
    yield Invariant("S2 a load's blocks are held by it and its waiters only", name, alone)


def _strict(w: World) -> Value:
    ahead = w.declaration.function("policy", "ahead")
    return ex.both(
        *(
            implies(
                r.state != UNKNOWN,
                ex.no(
                    w.value(
                        ahead,
                        priority=r.priority,
                        arrival=r.arrival,
                        other_priority=r.priority,
                        other_arrival=r.arrival,
                    )
                ),
            )
            for r in w.state.requests
        )
    )


def _active(w: World) -> Value:
    e = w.state.e
    idle = ex.both(e.pausing == 0, ex.no(e.sleep_paused), e.sleep_level == 0)
    return implies(e.mode == ACTIVE, idle)


def _asleep(w: World) -> Value:
    s = w.state
    asleep = ex.either(s.e.mode == SLEEPING, s.e.mode == WAKING)
    idle = [ex.both(block.count == 0, ex.no(block.cached)) for block in s.blocks]
    resident = ex.both(s.e.weights_resident, s.e.cache_resident)
    stopped = ex.both(s.e.launched == s.e.processed, *idle)
    return ex.both(implies(asleep, stopped), implies(ex.no(resident), stopped))
