"""What can happen to one request: what clients send, and what the scheduler decides.

The scheduler of an instance is free: it may admit, grow, launch, preempt and reclaim in any order
and at any time, as long as it tells the events the truth. What the engine's own scheduler does is
among it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

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
    PREEMPTED,
    RECLAIM,
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
    priorities = (0, 1) if instance.has(Feature.PRIORITIES) else (0,)
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
        yield act("preempt", _preempt(r))
    yield act("reclaim", _simple(r, RECLAIM))
    if instance.has(Feature.QUARANTINE):
        yield act("error", lambda w: error(w, r))
    yield act("forget", lambda w: forget(w, r))


def _simple(r: int, event: int, **told: Value) -> Body:
    """An event that needs nothing to be told."""

    def body(w: World) -> None:
        w.require(request_event(w, r, event, **told).went)

    return body


def _add(r: int, priority: int, resumable: bool, grammar: bool) -> Body:
    def body(w: World) -> None:
        s = w.state
        w.require(w.fire("engine", EngineEvent.ADD, s.e, w.record("EngineAsk")).went)
        arrival: Value = 0
        if w.instance.has(Feature.PRIORITIES):
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


def known_tokens(r: Any) -> Value:
    """The length of the sequence as far as the client knows it."""
    return r.prompt + r.delivered


def expected_tokens(w: World, r: int) -> Value:
    """The same with the tokens that launched steps will sample and that are not stale."""
    s = w.state
    request, work = s.requests[r], s.work[r]
    coming = ex.total(
        ex.both(work.samples(step), request.stale_step < s.e.processed + step)
        for step in range(1, w.instance.steps_ahead + 1)
    )
    return known_tokens(request) + coming


def hit_blocks(w: World, hits: Value) -> dict[int, Value]:
    """Which blocks are the hits for the first `hits` prefixes, by the index."""
    s = w.state
    may = w.declaration.function("blocks", "may_hit")
    return {
        number: ex.both(
            w.value(may, b=block),
            block.hashed_as >= 1,
            block.hashed_as <= hits,
            s.more[number].epoch == s.e.epoch,
        )
        for number, block in enumerate(s.blocks)
    }


def require_hits(w: World, hit: dict[int, Value], hits: int) -> None:
    """Each of the first prefixes has a hit."""
    for prefix in range(1, hits + 1):
        found = (ex.both(hit[n], b.hashed_as == prefix) for n, b in enumerate(w.state.blocks))
        w.require(ex.either(*found))


def require_fresh(w: World, block: int, hit: dict[int, Value]) -> None:
    """The block can be handed out, and is not about to be a hit of the same event."""
    may = w.declaration.function("blocks", "may_hand_out")
    w.require(w.value(may, b=w.state.blocks[block]), ex.no(hit[block]))


def leaves_pool(w: World, hit: dict[int, Value]) -> Value:
    """How many of the hits nobody holds: they leave the free pool as well."""
    return ex.total(ex.both(hit[n], b.count == 0) for n, b in enumerate(w.state.blocks))


def admissible(r: Any) -> Value:
    """It waits for admission: the cells say the same; asked first, it saves work."""
    return ex.either(r.state == WAITING, r.state == PREEMPTED)


def _admit(r: int, hits: int, fresh: int | None) -> Body:
    """Its hits and one block to compute into; or, resident with room in its table, none."""

    def body(w: World) -> None:
        s, size = w.state, w.instance.block_size
        request = s.requests[r]
        w.require(admissible(request))
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
        w.require(request.covered > 0, request.covered < w.instance.table_blocks)
        if not w.instance.has(Feature.TRIM):
            w.require(request.covered * w.instance.block_size < expected_tokens(w, r))
        require_fresh(w, block, {block: False})
        went = request_event(
            w,
            r,
            GROW,
            picked=Picked({block: True}, {block: True}, {block: request.covered}),
            blocks=1,
            fresh=1,
            free=free_blocks(w, r),
        ).went
        w.require(went)

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


def _preempt(r: int) -> Body:
    """It makes room: for anyone, or for one that the policy puts ahead of it."""

    def body(w: World) -> None:
        s = w.state
        me = s.requests[r]
        allowed: Value = True
        if w.instance.has(Feature.PRIORITIES):
            may = w.declaration.function("policy", "may_be_victim")
            allowed = ex.either(*(
                ex.both(
                    ex.either(other.state == WAITING, other.state == PREEMPTED, other.covered > 0),
                    w.value(
                        may,
                        priority=me.priority,
                        arrival=me.arrival,
                        for_priority=other.priority,
                        for_arrival=other.arrival,
                    ),
                )
                for other in s.requests
                if other is not me
            ))  # fmt: skip
        w.require(request_event(w, r, PREEMPT, allowed=allowed).went)

    return body


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
    if w.instance.has(Feature.PRIORITIES):
        for other in s.requests:
            other.arrival = other.arrival - ex.number(other.arrival > arrival)
