"""What can happen to transfers, steps and the engine as a whole."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ...statemachine.reset import NO_EVENT
from ...statemachine.states import (
    ABSENT,
    ADMIT_REMOTE,
    BEGIN,
    CLOSE_INPUT,
    DRAINED,
    FAIL,
    FENCE,
    FINISHED_LENGTH_CAPPED,
    FINISHED_STOPPED,
    GIVE_UP,
    JOIN,
    LAND,
    LEASE_OVER,
    LIVE,
    LOAD,
    OUTPUT,
    PAUSE,
    PAUSE_REACHED,
    PAUSED,
    PREEMPT,
    PREEMPTED,
    PUBLISH,
    QUARANTINED,
    RECLAIM,
    RESET,
    RESET_DECIDED,
    RESET_PENDING,
    RESUME,
    RUNNING,
    SHUTDOWN,
    SLEEP,
    START,
    STEP_PROCESSED,
    STOP,
    STORE,
    WAKE,
    WAKE_FAILED,
    WEIGHTS_CHANGED,
    WOKE,
)
from . import expressions as ex
from .action import Action, Body, Party
from .expressions import Value
from .instance import Feature, Instance
from .joint import Picked, finish_settling, free_blocks, request_event, retire, transfer_event
from .request_actions import (
    admissible,
    hit_blocks,
    known_tokens,
    leaves_pool,
    require_fresh,
    require_hits,
)
from .world import World

# --- transfers ----------------------------------------------------------------------------------


def transfer_actions(instance: Instance) -> Iterator[Action]:
    """Every action of every transfer."""
    if not instance.transfer_kinds:
        return
    for t in range(instance.transfers):
        if instance.has(Feature.LOADS):
            yield from _loads(instance, t)
        if instance.has(Feature.STORES):
            for block in range(instance.blocks):
                told = (("blocks", f"b{block}"),)
                yield Action("store", Party.ENGINE, f"t{t}", _store(t, block), told)
        yield from _signals(instance, t)


def _loads(instance: Instance, t: int) -> Iterator[Action]:
    longest = min(instance.table_blocks, (instance.kv_tokens) // instance.block_size)
    for r in range(instance.requests):
        for hits in range(longest):
            for count in range(1, longest - hits + 1):
                for fresh in itertools.permutations(range(instance.blocks), count):
                    told = (
                        ("request", f"r{r}"),
                        ("hits", hits),
                        ("fresh", "+".join(f"b{block}" for block in fresh)),
                    )
                    yield Action("load", Party.ENGINE, f"t{t}", _load(t, r, hits, fresh), told)
            if instance.requests > 1:
                told = (("request", f"r{r}"), ("hits", hits))
                yield Action("join", Party.ENGINE, f"t{t}", _join(t, r, hits), told)


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


def _signal(t: int, event: int) -> Body:
    def body(w: World) -> None:
        if event == LAND:
            w.require(ex.no(w.state.faults[t].lost))
        w.require(transfer_event(w, t, event).went)

    return body


def _fail(t: int, kept: int) -> Body:
    """It failed; of a load the first `kept` prefixes are complete, 0: nothing is known to be."""

    def body(w: World) -> None:
        s = w.state
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
    w.require(transfer_event(w, t, LEASE_OVER, expired=True).went)


def lose(w: World, t: int) -> None:
    """Its worker dies in silence: no completion will ever be reported."""
    fault, state = w.state.faults[t], w.state.transfers[t].state
    w.require(ex.no(fault.lost), ex.either(*(copy.working for copy in w.state.copies[t])))
    w.require(state != QUARANTINED)
    fault.lost = True


# --- steps --------------------------------------------------------------------------------------


def step_actions(instance: Instance) -> Iterator[Action]:
    """The device ends the oldest step; then its rows are settled, in any order."""
    yield Action("process", Party.DEVICE, "engine", process)
    for r in range(instance.requests):
        yield Action("settle", Party.ENGINE, f"r{r}", _settle(r, stop=False), settling=True)
        if instance.has(Feature.STOPS):
            told = (("stop", True),)
            yield Action("settle", Party.ENGINE, f"r{r}", _settle(r, stop=True), told, True)


def process(w: World) -> None:
    """The oldest step is processed: its STEP holds end. Its rows are settled before all else."""
    s = w.state
    step = s.e.processed + 1
    w.require(w.fire("engine", STEP_PROCESSED, s.e, w.record("EngineAsk", step=step)).went)
    ends = w.declaration.function("blocks", "step_processed")
    for pairs in s.held:
        for held, block in zip(pairs, s.blocks, strict=True):
            w.run(ends, step=step, h=held, b=block)
    s.phase.settling = True
    finish_settling(w)


def _settle(r: int, *, stop: bool) -> Body:
    """One row of the processed step: its blocks are published, its token is delivered."""

    def body(w: World) -> None:
        s = w.state
        request, work, step = s.requests[r], s.work[r], s.e.processed
        tokens, samples = work.tokens(1), work.samples(1)
        w.require(tokens > 0)
        counts = ex.both(request.covered > 0, step > request.stale_step)
        filled = (request.written + tokens) // w.instance.block_size
        published = request_event(w, r, PUBLISH, step=step, tokens=tokens, blocks=filled)
        w.check("what is written can be published", ex.either(ex.no(counts), published.went))
        delivered = request.delivered
        output = request_event(w, r, OUTPUT, when=ex.truth(samples), step=step, tokens=1)
        w.check("delivered tokens are never taken back", request.delivered >= delivered)
        length = known_tokens(request)
        at_limit = ex.either(
            length >= w.instance.model_length,
            w.value(
                w.declaration.function("policy", "never_fits"),
                tokens=length,
                pool_blocks=w.instance.blocks,
                quarantined=s.e.quarantined,
                block_size=w.instance.block_size,
            ),
        )
        if stop:
            w.require(output.went, ex.no(at_limit))
        ends = ex.both(output.went, ex.either(at_limit, stop))
        request_event(
            w,
            r,
            STOP,
            when=ends,
            step=step,
            reason=FINISHED_STOPPED if stop else FINISHED_LENGTH_CAPPED,
            at_limit=at_limit,
            tokens=w.instance.chunk,
        )
        work.tokens1, work.samples1 = 0, False  # type: ignore[attr-defined]
        finish_settling(w)

    return body


# --- resets -------------------------------------------------------------------------------------


def reset_actions(instance: Instance) -> Iterator[Action]:
    """Resets that are decided at once, and a forced one that waits."""
    if instance.has(Feature.RESETS):
        for force in (False, True):
            told = (("force", force),)
            yield Action("reset", Party.CLIENT, "engine", _reset(force, False), told)
            yield Action("reset_refused", Party.CLIENT, "engine", _reset(force, True), told)
    if instance.has(Feature.WAITING_RESETS):
        yield Action("ask_reset", Party.CLIENT, "engine", ask_reset)
        yield Action("try_reset", Party.ENGINE, "engine", try_reset)
        yield Action("decide_reset", Party.ENGINE, "engine", decide_reset)
        yield Action("withdraw_reset", Party.CLIENT, "engine", withdraw_reset)


def refusing(w: World, force: bool) -> tuple[Value, Value]:
    """How many requests and how many transfers refuse a reset."""
    s = w.state
    asks = w.declaration.function("reset", "request_refuses")
    asked = w.declaration.function("reset", "transfer_refuses")
    return (
        ex.total(
            ex.truth(w.value(asks, state=r.state, resident=r.covered > 0, force=force))
            for r in s.requests
        ),
        ex.total(ex.truth(w.value(asked, state=t.state)) for t in s.transfers),
    )


def let_go(w: World, refused: Value) -> None:
    """What a reset does to each holder, and to the cached prefixes, unless it is refused."""
    s = w.state
    sent = w.declaration.function("reset", "sent_event")
    for number, r in enumerate(s.requests):
        event = w.value(sent, refusing=refused, state=r.state, resident=r.covered > 0)
        preempted = request_event(w, number, PREEMPT, when=event == PREEMPT, forced=True)
        reclaimed = request_event(w, number, RECLAIM, when=event == RECLAIM)
        went = ex.either(event == NO_EVENT, preempted.went, reclaimed.went)
        w.check("what a reset sends is taken", went)
        w.check(
            "a refused reset lets go of nobody",
            ex.either(refused == 0, ex.no(ex.either(preempted.went, reclaimed.went))),
        )
    drops = w.value(w.declaration.function("reset", "drops_prefixes"), refusing=refused)
    w.check("a refused reset drops nothing", ex.either(refused == 0, ex.no(drops)))
    drop = w.declaration.function("blocks", "drop")
    for block in s.blocks:
        w.run(drop, when=drops, b=block)
        w.check(
            "after a reset no earlier block is a hit",
            ex.either(ex.no(refused == 0), ex.no(block.cached)),
        )


def _reset(force: bool, refused: bool) -> Body:
    """Decided when the launched steps are processed. A refused one changes nothing."""

    def body(w: World) -> None:
        s = w.state
        w.require(s.e.launched == s.e.processed)
        w.require(w.fire("engine", RESET, s.e, w.record("EngineAsk")).went)
        requests, transfers = refusing(w, force)
        w.require(ex.equal(requests + transfers == 0, not refused))
        if force and refused:
            w.check(
                "P1 a refused forced reset has a transfer to name",
                ex.either(requests == 0, transfers > 0),
            )
        let_go(w, requests + transfers)

    return body


def ask_reset(w: World) -> None:
    """A forced reset that is refused only by what ends by itself stays pending."""
    s = w.state
    requests, transfers = refusing(w, True)
    waits = w.value(
        w.declaration.function("reset", "may_wait"),
        refusing=requests + transfers,
        refusing_by_client=0,
        wait_asked=True,
    )
    w.require(waits)
    w.require(w.fire("engine", RESET_PENDING, s.e, w.record("EngineAsk")).went)


def try_reset(w: World) -> None:
    """The pending reset is tried: no step is launched until it is decided."""
    w.require(w.state.e.pending_reset, ex.no(w.state.phase.trying))
    w.state.phase.trying = True


def decide_reset(w: World) -> None:
    """The launched steps are processed: it is done, or it goes on waiting."""
    s = w.state
    w.require(s.phase.trying, s.e.launched == s.e.processed)
    requests, transfers = refusing(w, True)
    refused = requests + transfers
    let_go(w, refused)
    w.fire("engine", RESET_DECIDED, s.e, w.record("EngineAsk"), when=refused == 0)
    s.phase.trying = False


def withdraw_reset(w: World) -> None:
    """Its time is over, or its client is gone."""
    s = w.state
    w.require(s.e.pending_reset)
    w.require(w.fire("engine", RESET_DECIDED, s.e, w.record("EngineAsk")).went)
    s.phase.trying = False


# --- modes --------------------------------------------------------------------------------------


def mode_actions(instance: Instance) -> Iterator[Action]:
    """Pause, sleep, changed weights, shutdown."""

    def act(name: str, party: Party, body: Body, **arguments: object) -> Action:
        return Action(name, party, "engine", body, tuple(arguments.items()))

    if instance.has(Feature.PAUSE):
        for pausing in (1, 2, 3):
            body = _engine(PAUSE, pausing=pausing)
            yield act("pause", Party.CLIENT, body, mode=("abort", "wait", "keep")[pausing - 1])
        yield act("resume", Party.CLIENT, _engine(RESUME))
    if instance.has(Feature.PAUSE) or instance.has(Feature.SLEEP):
        yield act("pause_reached", Party.ENGINE, pause_reached)
    if instance.has(Feature.SLEEP):
        yield act("sleep", Party.CLIENT, lambda w: sleep(w, 1), level=1)
        yield act("wake", Party.CLIENT, _engine(WAKE, tags=3))
        for tags in (1, 2, 3):
            yield act("woke", Party.ENGINE, _engine(WOKE, tags=tags), tags=tags)
        yield act("wake_failed", Party.ENGINE, _engine(WAKE_FAILED))
    if instance.has(Feature.WEIGHTS):
        yield act("weights_changed", Party.CLIENT, weights_changed)
    if instance.has(Feature.SHUTDOWN):
        yield act("shutdown", Party.CLIENT, shutdown)
        yield act("drained", Party.ENGINE, drained)


def _engine(event: int, **told: int) -> Body:
    def body(w: World) -> None:
        fired = w.fire("engine", event, w.state.e, w.record("EngineAsk", **told))
        w.require(fired.went)

    return body


def pause_reached(w: World) -> None:
    """Nothing runs, or what runs is kept."""
    s = w.state
    running = ex.total(ex.either(r.state == RUNNING, r.state == PREEMPTED) for r in s.requests)
    asked = w.record("EngineAsk", running=running)
    w.require(w.fire("engine", PAUSE_REACHED, s.e, asked).went)


def sleep(w: World, level: int) -> None:
    """From ACTIVE it pauses first; PAUSED it lets go as a forced reset does, and sleeps."""
    s = w.state
    paused = s.e.mode == PAUSED
    w.require(s.e.launched == s.e.processed)
    requests, transfers = refusing(w, True)
    refused = requests + transfers
    goes = ex.both(paused, refused == 0, s.e.quarantined == 0)
    for number, r in enumerate(s.requests):
        sent = w.declaration.function("reset", "sent_event")
        event = w.value(sent, refusing=refused, state=r.state, resident=r.covered > 0)
        request_event(w, number, PREEMPT, when=ex.both(goes, event == PREEMPT), forced=True)
        request_event(w, number, RECLAIM, when=ex.both(goes, event == RECLAIM))
    drop = w.declaration.function("blocks", "drop")
    for block in s.blocks:
        w.run(drop, when=goes, b=block)
    asked = w.record(
        "EngineAsk",
        level=level,
        pausing=3,
        holders=transfers,
        holds=ex.total(block.count for block in s.blocks),
    )
    w.require(w.fire("engine", SLEEP, s.e, asked).went)


def holds_left(w: World) -> Value:
    """Holds outside quarantine."""
    s = w.state
    kept = ex.total(ex.truth(held.in_quarantine) for pairs in s.carried for held in pairs)
    return ex.total(block.count for block in s.blocks) - kept


def weights_changed(w: World) -> None:
    """No older block may be a hit: every key carries the epoch."""
    s = w.state
    asked = w.record("EngineAsk", holds=holds_left(w))
    w.require(w.fire("engine", WEIGHTS_CHANGED, s.e, asked).went)
    for more in s.more:
        more.epoch = 0
    s.e.epoch = 1


def shutdown(w: World) -> None:
    """Nothing new is taken in; every session's input is closed."""
    s = w.state
    w.require(w.fire("engine", SHUTDOWN, s.e, w.record("EngineAsk")).went)
    s.phase.trying = False
    for number in range(len(s.requests)):
        request_event(w, number, CLOSE_INPUT)


def drained(w: World) -> None:
    """Nothing live and no hold is left."""
    s = w.state
    live = ex.total(ex.either(*(r.state == state for state in LIVE)) for r in s.requests)
    asked = w.record("EngineAsk", live=live, holds=holds_left(w))
    w.require(w.fire("engine", DRAINED, s.e, asked).went)
