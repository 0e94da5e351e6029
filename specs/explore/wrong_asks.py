"""What nobody may ask: late and false signals, and calls that must be refused.

Each action here is enabled only where such an ask goes, and then its check fails: on the
declaration that the engine runs, none is ever enabled. They make an exploration see the guards
that an engine which tells the truth never needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...statemachine.states import (
    ADD,
    ADMIT,
    BEGIN,
    CHUNK,
    CLOSE_INPUT,
    FAIL,
    FENCE,
    GIVE_UP,
    GROW,
    LAND,
    LAUNCH,
    LAUNCH_STEP,
    LOAD,
    PUBLISH,
    QUARANTINED,
    START,
    STORE,
    TRANSFER_FAILED,
    TRANSFER_LANDED,
    TRIM,
    UNKNOWN,
    TransferEvent,
)
from . import expressions as ex
from .action import Action, Body, Party
from .expressions import Value
from .instance import Feature, Instance
from .invariants import GONE
from .joint import free_blocks
from .scheduling import known_tokens
from .world import World

#: When an ask is wrong, and what it tells.
Ask = Callable[[World], tuple[Value, dict[str, Value]]]


def wrong_asks(instance: Instance) -> Iterator[Action]:
    """Every wrong ask, where the instance has the feature."""
    if not instance.has(Feature.WRONG_ASKS):
        return
    for r in range(instance.requests):
        for name, event, party, ask in _of_requests(instance, r):
            body, settles = _request(r, name, event, ask), name == "publish_too_much"
            yield Action(f"wrong_{name}", party, f"r{r}", body, settling=settles)
    for t in range(instance.transfers if instance.transfer_kinds else 0):
        for event in (BEGIN, LAND, FAIL, FENCE, GIVE_UP):
            name = f"late_{TransferEvent(event).name.lower()}"
            yield Action(f"wrong_{name}", Party.CONNECTOR, f"t{t}", _late(t, name, event))
        for kind in (LOAD, STORE):
            name = "load" if kind == LOAD else "store"
            yield Action(f"wrong_{name}", Party.ENGINE, f"t{t}", _start(t, name, kind))
    yield Action("wrong_step", Party.ENGINE, "engine", step_without_memory)


def _of_requests(instance: Instance, r: int) -> Iterator[tuple[str, int, Party, Ask]]:
    size = instance.block_size

    def publish_unwritten(w: World) -> tuple[Value, dict[str, Value]]:
        s = w.state
        request, work = s.requests[r], s.work[r]
        filled = (request.written + 1) // size
        here = ex.both(request.covered > 0, work.tokens(1) == 0, s.e.launched == s.e.processed)
        return here, {"step": request.newest_step, "tokens": 1, "blocks": filled}

    def publish_too_much(w: World) -> tuple[Value, dict[str, Value]]:
        s = w.state
        request, tokens = s.requests[r], s.work[r].tokens(1)
        blocks = (request.written + tokens) // size + 1
        # Only a step that is processed is published: the row is settled with a wrong number.
        return tokens > 0, {"step": s.e.processed, "tokens": tokens, "blocks": blocks}

    def publish_early(w: World) -> tuple[Value, dict[str, Value]]:
        s = w.state
        request, tokens = s.requests[r], s.work[r].tokens(1)
        filled = (request.written + tokens) // size
        return tokens > 0, {"step": s.e.processed + 1, "tokens": tokens, "blocks": filled}

    def launch_old_step(w: World) -> tuple[Value, dict[str, Value]]:
        s = w.state
        return s.e.launched == s.e.processed, {"step": s.e.launched, "tokens": 1}

    def launch_uncovered(w: World) -> tuple[Value, dict[str, Value]]:
        s = w.state
        request = s.requests[r]
        tokens = request.covered * size - request.computed + 1
        here = ex.both(s.e.launched > s.e.processed, request.newest_step < s.e.launched)
        return here, {"step": s.e.launched, "tokens": tokens}

    def grow_with_hits(w: World) -> tuple[Value, dict[str, Value]]:
        return True, {"blocks": 1, "hits": 1, "free": instance.blocks}

    def grow_without_room(w: World) -> tuple[Value, dict[str, Value]]:
        return True, {"blocks": free_blocks(w, r) + 1, "free": free_blocks(w, r)}

    def admit_without_room(w: World) -> tuple[Value, dict[str, Value]]:
        free = free_blocks(w, r)
        return free >= 0, {"blocks": free + 1, "fresh": free + 1, "free": free}

    def trim_too_far(w: World) -> tuple[Value, dict[str, Value]]:
        request = w.state.requests[r]
        kept = (request.computed + (size - 1)) // size - 1
        return kept >= 1, {"blocks": kept}

    def add_again(w: World) -> tuple[Value, dict[str, Value]]:
        return w.state.requests[r].state != UNKNOWN, {"tokens": 1}

    def add_too_long(w: World) -> tuple[Value, dict[str, Value]]:
        return True, {"tokens": 0}

    def chunk_closed(w: World) -> tuple[Value, dict[str, Value]]:
        return ex.no(w.state.requests[r].input_open), {"tokens": 1}

    def chunk_too_long(w: World) -> tuple[Value, dict[str, Value]]:
        request = w.state.requests[r]
        room = instance.model_length - known_tokens(request) - request.queued_tokens
        return True, {"tokens": ex.maximum(room, 1)}

    def close_twice(w: World) -> tuple[Value, dict[str, Value]]:
        return ex.no(w.state.requests[r].input_open), {}

    def signal_of(t: int, **told: int) -> Ask:
        def ask(w: World) -> tuple[Value, dict[str, Value]]:
            other: Value = w.state.requests[r].waits_for != t + 1
            return other, {"transfer": t + 1, **told}

        return ask

    yield "publish_unwritten", PUBLISH, Party.ENGINE, publish_unwritten
    yield "publish_too_much", PUBLISH, Party.ENGINE, publish_too_much
    yield "publish_early", PUBLISH, Party.ENGINE, publish_early
    yield "launch_old_step", LAUNCH, Party.ENGINE, launch_old_step
    yield "launch_uncovered", LAUNCH, Party.ENGINE, launch_uncovered
    yield "grow_with_hits", GROW, Party.ENGINE, grow_with_hits
    yield "grow_without_room", GROW, Party.ENGINE, grow_without_room
    yield "admit_without_room", ADMIT, Party.ENGINE, admit_without_room
    yield "trim_too_far", TRIM, Party.ENGINE, trim_too_far
    yield "add_again", ADD, Party.CLIENT, add_again
    yield "add_empty", ADD, Party.CLIENT, add_too_long
    yield "chunk_closed", CHUNK, Party.CLIENT, chunk_closed
    yield "chunk_too_long", CHUNK, Party.CLIENT, chunk_too_long
    yield "close_twice", CLOSE_INPUT, Party.CLIENT, close_twice
    for t in range(instance.transfers if instance.has(Feature.LOADS) else 0):
        yield f"landed_t{t}", TRANSFER_LANDED, Party.CONNECTOR, signal_of(t, tokens=size, blocks=1)
        yield f"failed_t{t}", TRANSFER_FAILED, Party.CONNECTOR, signal_of(t)


def _request(r: int, name: str, event: int, ask: Ask) -> Body:
    def body(w: World) -> None:
        s = w.state
        wrong, told = ask(w)
        w.require(wrong)
        fired = w.fire("request", event, s.requests[r], s.e, w.record("Ask", **told))
        w.require(fired.went)
        w.check(f"S9 {name.replace('_', ' ')}: it is refused or ignored", False)

    return body


def _late(t: int, name: str, event: int) -> Body:
    """A signal for a transfer that has ended, or that is unknown."""

    def body(w: World) -> None:
        s = w.state
        transfer = s.transfers[t]
        ended = ex.either(*(transfer.state == state for state in GONE))
        late = ended if event == FENCE else ex.either(ended, transfer.state == QUARANTINED)
        w.require(late)
        fired = w.fire("transfer", event, transfer, s.e, w.record("TransferAsk"))
        w.require(fired.went)
        w.check(f"S3 {name.replace('_', ' ')}: it changes nothing", False)

    return body


def _start(t: int, name: str, kind: int) -> Body:
    """A load into blocks that others hold, a store out of blocks that are not published."""

    def body(w: World) -> None:
        s = w.state
        asked = w.record("TransferAsk", kind=kind)
        w.require(w.fire("transfer", START, s.transfers[t], s.e, asked).went)
        w.check(f"S2 {name} of the wrong blocks: it is refused", False)

    return body


def step_without_memory(w: World) -> None:
    """A step is launched while weights or cache are asleep."""
    s = w.state
    w.require(ex.no(ex.both(s.e.weights_resident, s.e.cache_resident)))
    w.require(w.fire("engine", LAUNCH_STEP, s.e, w.record("EngineAsk")).went)
    w.check("S8 no step runs without weights and cache", False)
