"""What one event does to all records at once: the cell, the hold commands on every block, ghosts.

The order is the one that `specs.check.joined` names: an event's cell, then for each block the
parts that carry out its commands, then what follows from it in the same go (a transfer that
nobody waits for any more is cancelled; who waits for a transfer is told of its end).

**Steps and epochs are normalised.** Step numbers grow for ever, so a finite instance keeps
`max(step - processed, 0)` in place of each. This is a bisimulation. Let two states be related if
they are equal but for step numbers, and these are equal after normalising. Related states enable
the same actions, with the same answers, and lead to related states, because every use of a step
number in the declaration is one of:

- `newest > processed`, and the equal comparison of a STEP hold with the step being processed:
  both compare with `processed`, and a number at or below it only ever says "not in flight";
- `step > stale` and `step <= newest` with `step = processed + 1` (a step is settled at the moment
  at which it is processed): clamping a smaller number up to `processed` changes neither;
- `step == launched`, `step > newest`, `step > processed` with `step = launched`, above
  `processed`: the same;
- `launched - processed`, which the shift preserves; assignments of one of these to another, which
  commute with the shift and the clamp, since both are monotonic and applied to all alike.

The epoch of the weights is compared for equality only, with the present one: a block keeps
whether its key carries the present epoch. `tests/specs/explore` cross-checks it: a search that
keeps absolute numbers, normalised only for comparison, meets the same states over the same
actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...statemachine.answers import MAKE_HITS, QUARANTINE, RELEASE, STOP_WAITING
from ...statemachine.states import (
    CANCEL,
    FAIL,
    FAILED,
    FENCE,
    FENCED,
    LAND,
    LANDED,
    LEAVE,
    LOAD,
    QUARANTINED,
    RETIRE,
    TRANSFER_FAILED,
    TRANSFER_LANDED,
)
from . import expressions as ex
from .expressions import Value
from .instance import Feature
from .structure import State, count_quarantine
from .world import Fired, World


@dataclass(frozen=True)
class Picked:
    """Blocks that an event takes: for each where in the table, and whether it is fresh."""

    named: Mapping[int, Value] = field(default_factory=dict)
    fresh: Mapping[int, Value] = field(default_factory=dict)
    position: Mapping[int, Value] = field(default_factory=dict)


NOTHING = Picked()


def request_event(
    w: World,
    index: int,
    event: int,
    *,
    when: Value = True,
    picked: Picked = NOTHING,
    ended: int | None = None,
    **told: Value,
) -> Fired:
    """Fire a request's event and carry out what it commands. What does not go changes nothing.

    `ended` is the transfer whose end this tells: it is not cancelled any more.
    """
    s = w.state
    r, x = s.requests[index], w.record("Ask", **told)
    covered, waited = r.covered, r.waits_for
    fired = w.fire("request", event, r, s.e, x, when=when)
    if fired.went is False:
        return fired
    for number, block in enumerate(s.blocks):
        place = s.places[index][number]
        pick = _pick(w, picked, number, place.position, fired)
        for part in w.declaration.modules["joined"].REQUEST_PARTS:
            w.run(
                part,
                when=fired.went,
                event=int(event),
                commands=fired,
                covered=covered,
                r=r,
                e=s.e,
                x=x,
                pick=pick,
                place=place,
                held=s.held[index][number],
                b=block,
                more=s.more[number],
            )
    for transfer in range(len(s.transfers)):
        leaves = ex.both(fired.has(STOP_WAITING), waited == transfer + 1)
        leave_transfer(w, transfer, leaves, cancels=transfer != ended)
    return fired


def _pick(w: World, picked: Picked, number: int, position: Value, fired: Fired) -> Any:
    """What an event says of one block. A prefix has one hit: whoever publishes first has it."""
    s = w.state
    indexed: Value = False
    if fired.has(MAKE_HITS) is not False:
        hits = (
            ex.both(other.cached, other.hashed_as == position + 1, s.more[index].epoch == 1)
            for index, other in enumerate(s.blocks)
            if index != number
        )
        indexed = ex.no(ex.either(*hits))
    taken = picked.position.get(number, 0)
    return w.record(
        "PickFacts",
        named=picked.named.get(number, False),
        fresh=picked.fresh.get(number, False),
        position=taken,
        prefix=taken + 1,
        indexed=indexed,
    )


def leave_transfer(w: World, index: int, when: Value, *, cancels: bool) -> None:
    """A request stops waiting for a transfer; a load that nobody waits for is cancelled."""
    if when is False:
        return
    t = w.state.transfers[index]
    left = w.fire("transfer", LEAVE, t, w.state.e, w.record("TransferAsk"), when=when)
    if cancels:
        unwaited = w.value(
            w.declaration.function("policy", "cancel_unwaited"),
            kind_is_load=t.kind == LOAD,
            waiters=t.waiters,
        )
        transfer_event(w, index, CANCEL, when=ex.both(left.went, unwaited), tells=False)
        waiting = (r.waits_for == index + 1 for r in w.state.requests)
        w.check(
            "nobody waits for a load that is cancelled because nobody waits for it",
            ex.no(ex.both(left.went, unwaited, ex.either(*waiting))),
        )


def transfer_event(
    w: World,
    index: int,
    event: int,
    *,
    when: Value = True,
    named: Mapping[int, Value] | None = None,
    prefix: Mapping[int, Value] | None = None,
    valid: Callable[[int], Value] | None = None,
    tells: bool = True,
    **told: Value,
) -> Fired:
    """Fire a transfer's event, carry out what it commands, and tell those who wait of its end.

    Not `tells`: nobody waits. `named` and `prefix` say which blocks a start names, and as which
    prefixes; `valid` says of a prefix's number whether it is complete after a failed load.
    """
    s = w.state
    t, x = s.transfers[index], w.record("TransferAsk", **told)
    fired = w.fire("transfer", event, t, s.e, x, when=when)
    if fired.went is False:
        return fired
    for number, block in enumerate(s.blocks):
        copy = s.copies[index][number]
        pick = w.record(
            "PickFacts",
            named=(named or {}).get(number, False),
            prefix=(prefix or {}).get(number, 0),
            valid=valid(copy.prefix) if valid else False,
        )
        for part in w.declaration.modules["joined"].TRANSFER_PARTS:
            w.run(
                part,
                when=fired.went,
                event=int(event),
                commands=fired,
                t=t,
                e=s.e,
                pick=pick,
                copy=copy,
                held=s.carried[index][number],
                b=block,
                more=s.more[number],
            )
    count_quarantine(s)
    if fired.has(RELEASE) is not False or fired.has(QUARANTINE) is not False:
        _ended(w, index, event, fired, valid, tells=tells)
    return fired


def _ended(
    w: World,
    index: int,
    event: int,
    fired: Fired,
    valid: Callable[[int], Value] | None,
    *,
    tells: bool,
) -> None:
    """A transfer ended: the worker is gone (or nobody can say), and its waiters are told."""
    s = w.state
    t = s.transfers[index]
    gone = ex.both(fired.went, ex.either(t.state == LANDED, t.state == FAILED, t.state == FENCED))
    if event in (LAND, FAIL, FENCE):
        # The connector has said that no worker is left. Nothing else stops one.
        for copy in s.copies[index]:
            copy.working = ex.both(copy.working, ex.no(fired.went))
    ended = ex.both(fired.went, ex.either(gone, t.state == QUARANTINED))
    for number, r in enumerate(s.requests) if tells else ():
        waits = ex.both(ended, r.waits_for == index + 1)
        if event == LAND:
            told = request_event(
                w,
                number,
                TRANSFER_LANDED,
                when=waits,
                ended=index,
                transfer=index + 1,
                blocks=r.covered,
                tokens=r.covered * w.instance.block_size,
            )
        else:
            kept = _valid_blocks(w, r, valid)
            told = request_event(
                w,
                number,
                TRANSFER_FAILED,
                when=waits,
                ended=index,
                transfer=index + 1,
                blocks=kept,
                fatal=w.instance.has(Feature.FATAL),
            )
        w.check("who waits for a transfer is told of its end", ex.either(ex.no(waits), told.went))
    if not w.instance.has(Feature.RECORDS):
        retire(w, index, gone)


def _valid_blocks(w: World, r: Any, valid: Callable[[int], Value] | None) -> Value:
    """How many leading blocks of its table a failed load leaves to a waiter."""
    if valid is None:
        return 0
    found: Value = 0
    for blocks in range(1, w.instance.table_blocks + 1):
        found = ex.choose(ex.both(valid(blocks), r.covered >= blocks), blocks, found)
    return found


def retire(w: World, index: int, when: Value) -> Fired:
    """The record of an ended transfer is dropped, and with it what its worker did."""
    s = w.state
    t = s.transfers[index]
    fired = w.fire("transfer", RETIRE, t, s.e, w.record("TransferAsk"), when=when)
    for copy in s.copies[index]:
        copy.carried = ex.both(copy.carried, ex.no(fired.went))
        copy.prefix = ex.choose(fired.went, 0, copy.prefix)
    s.faults[index].lost = ex.both(s.faults[index].lost, ex.no(fired.went))
    return fired


def finish_settling(w: World) -> None:
    """When every row of the processed step is settled: what was the next step is the oldest now."""
    s = w.state
    done = ex.both(s.phase.settling, *(work.tokens(1) == 0 for work in s.work))
    steps = w.instance.steps_ahead
    for work in s.work:
        for step in range(1, steps + 1):
            tokens = work.tokens(step + 1) if step < steps else 0
            samples = work.samples(step + 1) if step < steps else False
            setattr(work, f"tokens{step}", ex.choose(done, tokens, work.tokens(step)))
            setattr(work, f"samples{step}", ex.choose(done, samples, work.samples(step)))
    s.phase.settling = ex.both(s.phase.settling, ex.no(done))
    if w.normalises:
        normalise(s, done)


def normalise(s: State, when: Value = True) -> None:
    """Step numbers relative to the newest processed step, which becomes 0."""
    processed = s.e.processed

    def relative(step: Value) -> Value:
        return ex.choose(when, ex.maximum(step - processed, 0), step)

    s.e.launched = relative(s.e.launched)
    for index, r in enumerate(s.requests):
        r.newest_step = relative(r.newest_step)
        r.stale_step = relative(r.stale_step)
        for place, held in zip(s.places[index], s.held[index], strict=True):
            place.touching = relative(place.touching)
            held.step = ex.choose(held.by_step, relative(held.step), 0)
    s.e.processed = ex.choose(when, 0, processed)


def free_blocks(w: World, index: int) -> Value:
    """Blocks in the pool beyond what is reserved for other requests than this one."""
    s = w.state
    may = w.declaration.function("blocks", "may_hand_out")
    free = ex.total(ex.truth(w.value(may, b=block)) for block in s.blocks)
    return free - ex.total(r.reserved for n, r in enumerate(s.requests) if n != index)
