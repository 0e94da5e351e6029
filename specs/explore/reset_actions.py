"""Resets of the prefix cache: decided at once, or waiting until they can be done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...statemachine.reset import NO_EVENT
from ...statemachine.states import (
    PREEMPT,
    RECLAIM,
    RESET,
    RESET_DECIDED,
    RESET_PENDING,
)
from . import expressions as ex
from .action import Action, Body, Party
from .expressions import Value
from .instance import Feature, Instance
from .joint import request_event
from .world import World


def reset_actions(instance: Instance) -> Iterator[Action]:
    """Resets that are decided at once, and a forced one that waits."""
    if instance.has(Feature.RESETS):
        for force in (False, True):
            told = (("force", force),)
            yield Action("reset", Party.CLIENT, "engine", _reset(force, False), told)
            yield Action("reset_refused", Party.CLIENT, "engine", _reset(force, True), told)
    if instance.has(Feature.EVICTION):
        for block in range(instance.blocks):
            yield Action("evict", Party.ENGINE, f"b{block}", _eviction(block))
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
    clears = w.declaration.function("reset", "clears_tier")
    w.check(
        "S6 a tier is cleared only after the device",
        ex.either(refused == 0, ex.no(w.value(clears, refusing=refused, tier_asked=True))),
    )
    drops = w.value(w.declaration.function("reset", "drops_prefixes"), refusing=refused)
    w.check("a refused reset drops nothing", ex.either(refused == 0, ex.no(drops)))
    for block in s.blocks:
        evict(w, block, drops)
        w.check(
            "after a reset no earlier block is a hit",
            ex.either(ex.no(refused == 0), ex.no(block.cached)),
        )


def evict(w: World, block: Any, when: Value) -> None:
    """A block's prefix is dropped, unless somebody holds it."""
    cached, held = ex.truth(block.cached), block.count > 0
    w.run(w.declaration.function("blocks", "drop"), when=when, b=block)
    w.check(
        "S2 what may lose its prefix nobody holds",
        ex.either(ex.no(held), ex.equal(ex.truth(block.cached), cached)),
    )


def _eviction(block: int) -> Body:
    """The engine drops a cached prefix of its own accord."""

    def body(w: World) -> None:
        b = w.state.blocks[block]
        w.require(b.cached)
        evict(w, b, True)
        w.require(ex.no(b.cached))

    return body


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
        # The same number: 0, or at least 1.
        let_go(w, ex.maximum(requests + transfers, 1) if refused else 0)

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
