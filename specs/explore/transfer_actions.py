"""What can happen to transfers: loads and stores start, connectors and clocks answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ...statemachine.states import (
    ABSENT,
    ADMIT_REMOTE,
    BEGIN,
    FAIL,
    FENCE,
    GIVE_UP,
    JOIN,
    LAND,
    LEASE,
    LEASE_OVER,
    LOAD,
    QUARANTINED,
    SIGNAL,
    START,
    STORE,
)
from . import expressions as ex
from .action import Action, Body, Party
from .expressions import Value
from .instance import Feature, Instance
from .joint import Picked, free_blocks, request_event, retire, transfer_event
from .scheduling import (
    admissible,
    hit_blocks,
    known_tokens,
    leaves_pool,
    require_fresh,
    require_hits,
    require_turn,
)
from .world import World


def transfer_actions(instance: Instance) -> Iterator[Action]:
    """Every action of every transfer."""
    if not instance.transfer_kinds:
        return
    for t in range(instance.transfers):
        if instance.has(Feature.LOADS):
            yield from _loads(instance, t)
        if instance.has(Feature.STORES):
            for block in range(instance.blocks):
                yield _engine(t, "store", _store(t, block), blocks=f"b{block}")
        yield from _signals(instance, t)


def _loads(instance: Instance, t: int) -> Iterator[Action]:
    longest = min(instance.table_blocks, (instance.kv_tokens) // instance.block_size)
    for r in range(instance.requests):
        for hits in range(longest):
            for count in range(1, longest - hits + 1):
                for fresh in itertools.permutations(range(instance.blocks), count):
                    blocks = "+".join(f"b{block}" for block in fresh)
                    told = {"request": f"r{r}", "hits": hits, "fresh": blocks}
                    yield _engine(t, "load", _load(t, r, hits, fresh), **told)
            if instance.requests > 1:
                yield _engine(t, "join", _join(t, r, hits), request=f"r{r}", hits=hits)


def _engine(t: int, name: str, body: Body, **arguments: object) -> Action:
    return Action(name, Party.ENGINE, f"t{t}", body, tuple(arguments.items()))


def _signals(instance: Instance, t: int) -> Iterator[Action]:
    def act(name: str, party: Party, body: Body, **arguments: object) -> Action:
        return Action(name, party, f"t{t}", body, tuple(arguments.items()))

    cancels = instance.has(Feature.LOADS) or instance.has(Feature.LEASES)
    yield act("begin", Party.CONNECTOR, _signal(t, BEGIN))
    yield act("land", Party.CONNECTOR, _signal(t, LAND))
    if instance.has(Feature.FAILURES):
        prefixes = instance.kv_tokens // instance.block_size
        for kept in range(prefixes if instance.has(Feature.LOADS) else 1):
            yield act("fail", Party.CONNECTOR, _fail(t, kept), valid=kept)
    if instance.has(Feature.LEASES):
        yield act("lease_over", Party.CLOCK, lambda w: lease_over(w, t))
    if instance.has(Feature.LOST):
        yield act("lose", Party.CONNECTOR, lambda w: lose(w, t))
    if cancels:
        yield act("fence", Party.CONNECTOR, _signal(t, FENCE))
    if cancels and instance.has(Feature.QUARANTINE):
        yield act("give_up", Party.CONNECTOR, _signal(t, GIVE_UP))
    if instance.has(Feature.RECORDS):
        yield act("retire", Party.ENGINE, lambda w: w.require(retire(w, t, True).went))


def _load(t: int, r: int, hits: int, fresh: tuple[int, ...]) -> Body:
    """A request is admitted to wait for a load of its own into fresh blocks behind its hits."""

    def body(w: World) -> None:
        s, size = w.state, w.instance.block_size
        request = s.requests[r]
        blocks = hits + len(fresh)
        w.require(admissible(request), s.transfers[t].state == ABSENT)
        require_turn(w, r)
        w.require(request.covered == 0, blocks * size < known_tokens(request))
        hit = hit_blocks(w, hits)
        require_hits(w, hit, hits)
        for block in fresh:
            require_fresh(w, block, hit)
        position: dict[int, Value] = {n: b.hashed_as - 1 for n, b in enumerate(s.blocks)}
        position |= {block: hits + place for place, block in enumerate(fresh)}
        taken: dict[int, Value] = dict.fromkeys(fresh, True)
        named: dict[int, Value] = ({**hit} if hits else {}) | taken
        w.require(
            request_event(
                w,
                r,
                ADMIT_REMOTE,
                picked=Picked(named, taken, position),
                blocks=blocks,
                hits=hits,
                fresh=len(fresh) + (leaves_pool(w, hit) if hits else 0),
                free=free_blocks(w, r),
                reserve=_reserve(w, r, blocks),
                remote_tokens=blocks * size,
                transfer=t + 1,
                joinable=True,
            ).went
        )
        started = transfer_event(
            w,
            t,
            START,
            named=taken,
            prefix={block: hits + place + 1 for place, block in enumerate(fresh)},
            kind=LOAD,
            unshared=True,
        )
        w.require(started.went)
        w.require(transfer_event(w, t, JOIN).went)

    return body


def _join(t: int, r: int, hits: int) -> Body:
    """A request waits for a load that has begun, behind the hits before its first block."""

    def body(w: World) -> None:
        s, size = w.state, w.instance.block_size
        request, copies = s.requests[r], s.copies[t]
        w.require(admissible(request))
        require_turn(w, r)
        carried = {n: ex.truth(held.by_transfer) for n, held in enumerate(s.carried[t])}
        w.require(request.covered == 0)
        w.require(s.transfers[t].kind == LOAD)
        first = (ex.both(carried[n], copy.prefix == hits + 1) for n, copy in enumerate(copies))
        w.require(ex.either(*first))
        for n, copy in enumerate(copies):
            w.require(ex.either(ex.no(carried[n]), copy.prefix > hits))
        hit = hit_blocks(w, hits)
        require_hits(w, hit, hits)
        blocks = hits + ex.total(carried.values())
        w.require(blocks * size < known_tokens(request))
        named = {n: ex.either(carried[n], hit[n] if hits else False) for n in carried}
        position = {
            n: ex.choose(carried[n], copies[n].prefix - 1, block.hashed_as - 1)
            for n, block in enumerate(s.blocks)
        }
        w.require(
            request_event(
                w,
                r,
                ADMIT_REMOTE,
                picked=Picked(named, {}, position),
                blocks=blocks,
                hits=hits,
                fresh=leaves_pool(w, hit) if hits else 0,
                free=free_blocks(w, r),
                reserve=_reserve(w, r, blocks),
                remote_tokens=blocks * size,
                transfer=t + 1,
                joinable=True,
            ).went
        )
        w.require(transfer_event(w, t, JOIN).went)

    return body


def _reserve(w: World, r: int, blocks: Value) -> Value:
    """Blocks that it needs beside those to run after the load."""
    size = w.instance.block_size
    needed = (known_tokens(w.state.requests[r]) + (size - 1)) // size
    return ex.minimum(ex.maximum(needed - blocks, 0), w.instance.table_blocks)


def _store(t: int, block: int) -> Body:
    def body(w: World) -> None:
        b = w.state.blocks[block]
        published = w.value(w.declaration.function("blocks", "may_hit"), b=b)
        w.require(published)
        started = transfer_event(
            w,
            t,
            START,
            named={block: True},
            kind=STORE,
            published=published,
        )
        w.require(started.went)

    return body


def _reaches(w: World, event: int) -> None:
    """A signal, or a clock's, reaches the engine: in every mode but when it has stopped."""
    w.require(w.fire("engine", event, w.state.e, w.record("EngineAsk")).went)


def _signal(t: int, event: int) -> Body:
    def body(w: World) -> None:
        _reaches(w, SIGNAL)
        if event == LAND:
            w.require(ex.no(w.state.faults[t].lost))
        w.require(transfer_event(w, t, event).went)

    return body


def _fail(t: int, kept: int) -> Body:
    """It failed; of a load the first `kept` prefixes are complete, 0: nothing is known to be."""

    def body(w: World) -> None:
        s = w.state
        _reaches(w, SIGNAL)
        w.require(ex.no(s.faults[t].lost))
        if kept:
            w.require(s.transfers[t].kind == LOAD)
            broken = (ex.both(copy.carried, copy.prefix == kept + 1) for copy in s.copies[t])
            w.require(ex.either(*broken))
        fired = transfer_event(
            w,
            t,
            FAIL,
            valid=(lambda prefix: ex.both(prefix >= 1, prefix <= kept)) if kept else None,
        )
        w.require(fired.went)

    return body


def lease_over(w: World, t: int) -> None:
    """Its lease has run out: it is cancelled."""
    _reaches(w, LEASE)
    w.require(transfer_event(w, t, LEASE_OVER, expired=True).went)


def lose(w: World, t: int) -> None:
    """Its worker dies in silence: no completion will ever be reported."""
    fault, state = w.state.faults[t], w.state.transfers[t].state
    w.require(ex.no(fault.lost), ex.either(*(copy.working for copy in w.state.copies[t])))
    w.require(state != QUARANTINED)
    fault.lost = True
