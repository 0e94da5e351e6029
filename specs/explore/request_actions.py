"""What can happen to one request: what clients send, and what the scheduler decides.

The scheduler of an instance is free: it may admit, grow, launch, preempt and reclaim in any order
and at any time, as long as it tells the events the truth. What the engine's own scheduler does is
among it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ...statemachine.states import (
    ABORT,
    ADD,
    ADMIT,
    CHUNK,
    CLOSE_INPUT,
    DEADLINE,
    ERROR,
    FORGET,
    GRAMMAR_FAILED,
    GRAMMAR_READY,
    GROW,
    LAUNCH,
    LAUNCH_STEP,
    PREEMPT,
    RECLAIM,
    RUNNING,
    TRIM,
    WAITING,
    WAITING_FOR_STREAMING_REQ,
    EngineEvent,
)
from . import expressions as ex
from .action import Action, Body, Party
from .expressions import Value
from .instance import Feature, Instance
from .joint import Picked, free_blocks, request_event
from .scheduling import (
    admissible,
    expected_tokens,
    hit_blocks,
    known_tokens,
    leaves_pool,
    may_be_reclaimed,
    may_be_victim,
    require_fresh,
    require_hits,
    require_turn,
)
from .world import World


def request_actions(instance: Instance) -> Iterator[Action]:
    """Every action of every request."""
    for index in range(instance.requests):
        yield from _client(instance, index)
        yield from _scheduler(instance, index)


def _client(instance: Instance, r: int) -> Iterator[Action]:
    def act(name: str, party: Party, body: Body, **arguments: object) -> Action:
        return Action(name, party, f"r{r}", body, tuple(arguments.items()))

    kinds = [("resumable", Feature.SESSIONS), ("grammar", Feature.GRAMMAR)]
    offered = [name for name, feature in kinds if instance.has(feature)]
    priorities = (0, 1) if instance.has(Feature.POLICY) else (0,)
    for chosen in itertools.product((False, True), repeat=len(offered)):
        for priority in priorities:
            told = {name: True for name, wanted in zip(offered, chosen, strict=True) if wanted}
            body = _add(r, priority, bool(told.get("resumable")), bool(told.get("grammar")))
            if len(priorities) > 1:
                yield act("add", Party.CLIENT, body, **told, priority=priority)
            else:
                yield act("add", Party.CLIENT, body, **told)
    if instance.has(Feature.ABORTS):
        yield act("abort", Party.CLIENT, _simple(r, ABORT))
    if instance.has(Feature.SESSIONS):
        yield act("chunk", Party.CLIENT, lambda w: chunk(w, r))
        yield act("close_input", Party.CLIENT, _simple(r, CLOSE_INPUT))
    if instance.has(Feature.GRAMMAR):
        yield act("grammar_ready", Party.ENGINE, _simple(r, GRAMMAR_READY))
        yield act("grammar_failed", Party.ENGINE, _simple(r, GRAMMAR_FAILED))
    if instance.has(Feature.DEADLINES):
        yield act("deadline", Party.CLOCK, _simple(r, DEADLINE, expired=True))


def _scheduler(instance: Instance, r: int) -> Iterator[Action]:
    def act(name: str, body: Body, **arguments: object) -> Action:
        return Action(name, Party.ENGINE, f"r{r}", body, tuple(arguments.items()))

    blocks = range(instance.blocks)
    for hits in range(instance.table_blocks):
        for block in blocks:
            yield act("admit", _admit(r, hits, block), hits=hits, fresh=f"b{block}")
    yield act("admit", _admit(r, 0, None))
    for block in blocks:
        yield act("grow", _grow(r, block), fresh=f"b{block}")
    if instance.has(Feature.TRIM):
        yield act("trim", lambda w: trim(w, r))
    counts = range(1, instance.kv_tokens + 1) if instance.has(Feature.CHUNKED) else (None,)
    for tokens in counts:
        told = {} if tokens is None else {"tokens": tokens}
        yield act("launch", _launch(r, tokens, opens=True), **told)
        if instance.requests > 1:
            yield act("launch_with", _launch(r, tokens, opens=False), **told)
    if instance.has(Feature.PREEMPTION):
        yield act("preempt", lambda w: preempt(w, r))
    yield act("reclaim", lambda w: reclaim(w, r))
    if instance.has(Feature.QUARANTINE):
        yield act("error", lambda w: error(w, r))
    yield act("forget", lambda w: forget(w, r))


def _simple(r: int, event: int, *, expired: bool = False) -> Body:
    """An event that needs to be told nothing, or that a time is over."""

    def body(w: World) -> None:
        w.require(request_event(w, r, event, expired=expired).went)

    return body


def _add(r: int, priority: int, resumable: bool, grammar: bool) -> Body:
    def body(w: World) -> None:
        s = w.state
        w.require(w.fire("engine", EngineEvent.ADD, s.e, w.record("EngineAsk")).went)
        arrival: Value = 0
        if w.instance.has(Feature.POLICY):
            # The order of arrival is kept as a rank: only who came before whom is ever asked.
            arrival = 1 + ex.total(other.arrival > 0 for other in s.requests)
        went = request_event(
            w,
            r,
            ADD,
            tokens=w.instance.prompt,
            resumable=resumable,
            grammar=grammar,
            priority=priority,
            arrival=arrival,
        ).went
        w.require(went)

    return body


def chunk(w: World, r: int) -> None:
    """A client sends a session more input, at most so many chunks ahead."""
    s = w.state
    w.require(w.fire("engine", EngineEvent.CHUNK, s.e, w.record("EngineAsk")).went)
    queues = s.requests[r].state != WAITING_FOR_STREAMING_REQ
    ahead = s.requests[r].queued_chunks < w.instance.queued_chunks
    w.require(ex.either(ex.no(queues), ahead))
    w.require(request_event(w, r, CHUNK, tokens=w.instance.chunk).went)


def _admit(r: int, hits: int, fresh: int | None) -> Body:
    """Its hits and one block to compute into; or, resident with room in its table, none."""

    def body(w: World) -> None:
        s, size = w.state, w.instance.block_size
        request = s.requests[r]
        w.require(admissible(request))
        require_turn(w, r)
        if fresh is not None:
            require_fresh(w, fresh, {fresh: False})
        hit = hit_blocks(w, hits)
        require_hits(w, hit, hits)
        named: dict[int, Value] = dict(hit) if hits else {}
        position: dict[int, Value] = {n: b.hashed_as - 1 for n, b in enumerate(s.blocks)}
        if fresh is None:
            w.require(request.covered * size > request.computed)
        else:
            if hits:
                w.require(request.covered == 0, hits * size < known_tokens(request))
            w.require(request.covered * size <= request.computed)
            w.require(request.covered + hits < w.instance.table_blocks)
            require_fresh(w, fresh, hit)
            named[fresh] = True
            position[fresh] = request.covered + hits
        taken = 0 if fresh is None else 1
        went = request_event(
            w,
            r,
            ADMIT,
            picked=Picked(named, {} if fresh is None else {fresh: True}, position),
            blocks=hits + taken,
            hits=hits,
            fresh=leaves_pool(w, hit) + taken if hits else taken,
            free=free_blocks(w, r),
        ).went
        w.require(went)

    return body


def _grow(r: int, block: int) -> Body:
    """One block more, where the next tokens need it; any, if tables may be longer."""

    def body(w: World) -> None:
        s = w.state
        request = s.requests[r]
        w.require(request.state == RUNNING, request.covered < w.instance.table_blocks)
        require_turn(w, r)
        if not w.instance.has(Feature.TRIM):
            w.require(request.covered * w.instance.block_size < expected_tokens(w, r))
        require_fresh(w, block, {block: False})
        fired = request_event(
            w,
            r,
            GROW,
            picked=Picked({block: True}, {block: True}, {block: request.covered}),
            blocks=1,
            fresh=1,
            free=free_blocks(w, r),
        )
        w.require(fired.went)
        count, again = s.blocks[block].count, w.declaration.function("blocks", "request_command")
        w.run(
            again,
            commands=fired,
            wanted=True,
            fresh=True,
            kept=True,
            newest_step=request.newest_step,
            h=s.held[r][block],
            b=s.blocks[block],
        )
        w.check("S3 a pair of hold and block is taken once", s.blocks[block].count == count)

    return body


def trim(w: World, r: int) -> None:
    """The last block goes back."""
    covered = w.state.requests[r].covered
    w.require(covered > 1)
    w.require(request_event(w, r, TRIM, blocks=covered - 1).went)


def _launch(r: int, tokens: int | None, *, opens: bool) -> Body:
    """A step computes all that is left, or so many tokens; `opens` a new step, or joins it."""

    def body(w: World) -> None:
        s = w.state
        request, work = s.requests[r], s.work[r]
        if w.instance.has(Feature.WAITING_RESETS):
            w.require(ex.no(s.phase.trying))
        if opens:
            w.require(w.fire("engine", LAUNCH_STEP, s.e, w.record("EngineAsk")).went)
        expected = expected_tokens(w, r)
        left = expected - request.computed
        count: Value = left if tokens is None else tokens
        w.require(count >= 1, count <= left)
        w.require(request.computed + count <= w.instance.kv_tokens)
        samples = request.computed + count == expected
        w.require(request_event(w, r, LAUNCH, tokens=count, step=s.e.launched).went)
        for step in range(1, w.instance.steps_ahead + 1):
            here = s.e.launched - s.e.processed == step
            setattr(work, f"tokens{step}", ex.choose(here, count, work.tokens(step)))
            setattr(work, f"samples{step}", ex.choose(here, samples, work.samples(step)))

    return body


def preempt(w: World, r: int) -> None:
    """It makes room: for anyone, or for one that the policy puts ahead of it."""
    w.require(w.state.requests[r].state == RUNNING)
    w.require(request_event(w, r, PREEMPT, allowed=may_be_victim(w, r)).went)


#: What reclaiming leaves to a session: it can go on from there.
KEPT = ("prompt", "delivered", "turn_start", "queued_chunks", "queued_tokens", "resumable")


def reclaim(w: World, r: int) -> None:
    """A parked or resident waiting request gives its blocks up."""
    s = w.state
    me = s.requests[r]
    w.require(ex.either(me.state == WAITING, me.state == WAITING_FOR_STREAMING_REQ))
    w.require(may_be_reclaimed(w, r))
    counts = [block.count for block in s.blocks]
    known = [getattr(me, name) for name in KEPT]
    held = [ex.truth(pair.by_request) for pair in s.held[r]]
    in_flight = me.newest_step > s.e.processed
    was_resident, was_parked = me.covered > 0, me.state == WAITING_FOR_STREAMING_REQ
    w.require(request_event(w, r, RECLAIM).went, was_resident)
    w.check(
        "P3 a reclaimed request is no holder any more, and stays where it was",
        ex.both(me.covered == 0, ex.equal(me.state == WAITING_FOR_STREAMING_REQ, was_parked)),
    )
    w.check(
        "P3 a reclaimed request keeps its tokens and its input",
        ex.both(*(getattr(me, name) == old for name, old in zip(KEPT, known, strict=True))),
    )
    for block, count, mine in zip(s.blocks, counts, held, strict=True):
        freed = count - ex.number(mine)
        w.check(
            "P3 reclaiming frees what only it held",
            ex.either(in_flight, block.count == freed),
        )


def error(w: World, r: int) -> None:
    """Quarantine took blocks: a request that cannot run even alone in the pool is ended."""
    s = w.state
    never = w.value(
        w.declaration.function("policy", "never_fits"),
        tokens=known_tokens(s.requests[r]),
        pool_blocks=w.instance.blocks,
        quarantined=s.e.quarantined,
        block_size=w.instance.block_size,
    )
    w.require(never)
    w.require(request_event(w, r, ERROR).went)


def forget(w: World, r: int) -> None:
    """A finished request's record goes, and the id may come again."""
    s = w.state
    request = s.requests[r]
    pairs = [ex.truth(held.by_request) for held in s.held[r]]
    pairs += [ex.truth(held.by_step) for held in s.held[r]]
    idle = ex.both(ex.no(ex.either(*pairs)), request.waits_for == 0)
    arrival = request.arrival
    w.require(request_event(w, r, FORGET, idle=idle).went)
    empty = ex.both(*(getattr(request, name) == 0 for name in type(request).KINDS))
    w.check("a forgotten request leaves nothing", empty)
    if w.instance.has(Feature.POLICY):
        for other in s.requests:
            other.arrival = other.arrival - ex.number(other.arrival > arrival)
