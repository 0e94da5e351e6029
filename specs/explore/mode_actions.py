"""What the engine as a whole is asked: pause, sleep, changed weights, shutdown."""

from __future__ import annotations

from collections.abc import Iterator

from ...statemachine.states import (
    CLOSE_INPUT,
    DRAINED,
    DRAINING,
    ERROR,
    LIVE,
    PAUSE,
    PAUSE_FAILED,
    PAUSE_REACHED,
    PAUSED,
    PREEMPT,
    PREEMPTED,
    RECLAIM,
    RESUME,
    RUNNING,
    SHUTDOWN,
    SLEEP,
    SLEEP_FAILED,
    WAKE,
    WAKE_FAILED,
    WEIGHTS_CHANGED,
    WOKE,
)
from . import expressions as ex
from .action import Action, Body, Party
from .expressions import Value
from .instance import Feature, Instance
from .joint import request_event
from .reset_actions import refusing
from .world import World


def mode_actions(instance: Instance) -> Iterator[Action]:
    """Pause, sleep, changed weights, shutdown."""

    def act(name: str, party: Party, body: Body, **arguments: object) -> Action:
        return Action(name, party, "engine", body, tuple(arguments.items()))

    if instance.has(Feature.PAUSE):
        for pausing in (1, 2, 3):
            body = _engine(PAUSE, pausing=pausing)
            yield act("pause", Party.CLIENT, body, mode=("abort", "wait", "keep")[pausing - 1])
        yield act("resume", Party.CLIENT, _engine(RESUME))
        yield act("pause_failed", Party.CLOCK, _engine(PAUSE_FAILED))
    if instance.has(Feature.PAUSE) or instance.has(Feature.SLEEP):
        yield act("pause_reached", Party.ENGINE, pause_reached)
    if instance.has(Feature.SLEEP):
        yield act("sleep", Party.CLIENT, lambda w: sleep(w, 1), level=1)
        yield act("sleep_at_once", Party.CLIENT, lambda w: sleep_at_once(w, 1), level=1)
        yield act("sleep_failed", Party.CLOCK, _engine(SLEEP_FAILED))
        yield act("wake", Party.CLIENT, _engine(WAKE, tags=3))
        for tags in (1, 2, 3):
            yield act("woke", Party.ENGINE, _engine(WOKE, tags=tags), tags=tags)
        yield act("wake_failed", Party.CLOCK, _engine(WAKE_FAILED))
    if instance.has(Feature.WEIGHTS):
        yield act("weights_changed", Party.CLIENT, weights_changed)
    if instance.has(Feature.SHUTDOWN):
        yield act("shutdown", Party.CLIENT, shutdown)
        yield act("drained", Party.ENGINE, drained)
        for r in range(instance.requests if instance.has(Feature.SLEEP) else 0):
            yield Action("end", Party.ENGINE, f"r{r}", _end(r))


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


def sleep_at_once(w: World, level: int) -> None:
    """It sleeps without letting go of anybody: possible only if nobody holds anything."""
    s = w.state
    w.require(s.e.mode == PAUSED)
    _, transfers = refusing(w, True)
    asked = w.record(
        "EngineAsk", level=level, holders=transfers, holds=ex.total(b.count for b in s.blocks)
    )
    w.require(w.fire("engine", SLEEP, s.e, asked).went)
    drop = w.declaration.function("blocks", "drop")
    for block in s.blocks:
        w.run(drop, b=block)


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
    # Only whether a key carries the present epoch is kept: 1, and 0 for every older one.
    moved = s.e.epoch != 1
    for block, more in zip(s.blocks, s.more, strict=True):
        more.epoch = ex.choose(moved, 0, more.epoch)
        w.check(
            "S7 after weights_changed no older block is a hit",
            ex.either(ex.no(block.cached), more.epoch == 0),
        )
    s.e.epoch = 1


def shutdown(w: World) -> None:
    """Nothing new is taken in; every session's input is closed."""
    s = w.state
    w.require(w.fire("engine", SHUTDOWN, s.e, w.record("EngineAsk")).went)
    s.phase.trying = False
    for number in range(len(s.requests)):
        request_event(w, number, CLOSE_INPUT)


def _end(r: int) -> Body:
    """Shutting down asleep: what cannot run any more is ended."""

    def body(w: World) -> None:
        s = w.state
        w.require(s.e.mode == DRAINING)
        w.require(ex.no(ex.both(s.e.weights_resident, s.e.cache_resident)))
        w.require(request_event(w, r, ERROR).went)

    return body


def drained(w: World) -> None:
    """Nothing live and no hold is left."""
    s = w.state
    live = ex.total(ex.either(*(r.state == state for state in LIVE)) for r in s.requests)
    asked = w.record("EngineAsk", live=live, holds=holds_left(w))
    w.require(w.fire("engine", DRAINED, s.e, asked).went)
