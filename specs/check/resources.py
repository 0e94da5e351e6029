"""P5: no deadlock and no livelock of resources.

The policy's order is total, so there is a first request; when nothing runs and nothing is in
flight, everybody else who holds blocks can be reclaimed for it; and then every block is free, in
quarantine or its own, so that it can be admitted. What it still has to deliver only falls.
"""

from __future__ import annotations

from collections.abc import Iterator

import z3

from ...statemachine.states import (
    ADMIT,
    CHUNK,
    ERROR,
    FORGET,
    GROW,
    LAUNCH,
    LAUNCH_STEP,
    LIVE,
    LOAD,
    OUTPUT,
    PREEMPT,
    PREEMPTED,
    RECLAIM,
    RUNNING,
    STOP,
    WAITING,
)
from ..symbolic.terms import BoolTerm, IntTerm
from .conditions import Condition
from .logic import among, both, either, implies, no, same
from .phrases import OPEN, is_reclaim
from .progress import admits
from .proofs import Proofs
from .state import View


def p5(p: Proofs) -> Iterator[Condition]:
    """The first request can always be admitted, and comes nearer to its end."""
    yield from _order(p)
    yield from _everybody_else_gives_way(p)
    yield from _room(p)
    yield from _comes_nearer(p)
    yield from _tokens_only_fall(p)


def _order(p: Proofs) -> Iterator[Condition]:
    """`ahead` is a strict total order; nobody is a victim of who comes after it."""
    s = p.state
    one, two, three = (
        (z3.Int(f"priority{each}"), z3.Int(f"arrival{each}")) for each in ("1", "2", "3")
    )

    def ahead(first: tuple[IntTerm, IntTerm], other: tuple[IntTerm, IntTerm]) -> BoolTerm:
        return s.declared(
            "policy", "ahead", priority=first[0], arrival=first[1], other_priority=other[0],
            other_arrival=other[1],
        )  # fmt: skip

    def victim(who: tuple[IntTerm, IntTerm], of: tuple[IntTerm, IntTerm]) -> BoolTerm:
        return s.declared(
            "policy", "may_be_victim", priority=who[0], arrival=who[1], for_priority=of[0],
            for_arrival=of[1],
        )  # fmt: skip

    def for_whom(who: tuple[IntTerm, IntTerm], of: tuple[IntTerm, IntTerm]) -> BoolTerm:
        return s.declared(
            "policy", "must_reclaim_waiting", free=s.ask.free, needed=s.ask.fresh,
            priority=who[0], arrival=who[1], for_priority=of[0], for_arrival=of[1],
        )  # fmt: skip

    def for_who_waits(who: tuple[IntTerm, IntTerm], of: tuple[IntTerm, IntTerm]) -> BoolTerm:
        return s.declared(
            "policy", "makes_way_for_waiting", priority=who[0], arrival=who[1],
            stalled=z3.Bool("stalled"), for_priority=of[0], for_arrival=of[1],
        )  # fmt: skip

    for words, goal in (
        ("nobody is ahead of itself", no(ahead(one, one))),
        ("of two at most one is ahead", no(both(ahead(one, two), ahead(two, one)))),
        ("the order is transitive",
         implies(both(ahead(one, two), ahead(two, three)), ahead(one, three))),
        ("two that arrived at different times are in order",
         implies(one[1] != two[1], either(ahead(one, two), ahead(two, one)))),
    ):  # fmt: skip
        yield p.premise("P5", "a first exists", words, goal)
    for words, goal in (
        ("a victim falls only to who is ahead of it",
         same(victim(one, two), ahead(two, one))),
        ("two are never each other's victims", no(both(victim(one, two), victim(two, one)))),
        ("a victim of who waits falls only to who is ahead of it",
         implies(for_who_waits(one, two), victim(one, two))),
        ("who waits gives its blocks up exactly for who lacks some and is ahead of it",
         same(for_whom(one, two), both(s.ask.free < s.ask.fresh, ahead(two, one)))),
        ("a parked session gives its blocks up exactly for who lacks some",
         same(s.declared("policy", "must_reclaim_parked", free=s.ask.free, needed=s.ask.fresh),
              s.ask.free < s.ask.fresh)),
        ("who waits and is not admitted in this mode gives its blocks up to whoever lacks some",
         same(s.declared("policy", "must_reclaim_held_back", free=s.ask.free,
                         needed=s.ask.fresh), s.ask.free < s.ask.fresh)),
        ("no further victim while what is free and what steps will give back suffice",
         same(s.declared("policy", "enough", free=s.ask.free, promised=s.ask.reserve,
                         needed=s.ask.fresh), s.ask.free + s.ask.reserve >= s.ask.fresh)),
        ("a load is tried again exactly below the limit",
         same(s.declared("policy", "may_load", loads_failed=s.r.loads_failed,
                         loads_limit=s.e.loads_limit), s.r.loads_failed < s.e.loads_limit)),
        ("a load that nobody waits for is cancelled, a store never for that",
         same(s.declared("policy", "cancel_unwaited", kind_is_load=s.t.kind == LOAD,
                         waiters=s.t.waiters), both(s.t.kind == LOAD, s.t.waiters == 0))),
    ):  # fmt: skip
        yield p.premise("P5", "who gives way", words, goal)


def _quiet(s: View) -> BoolTerm:
    """Nothing runs, nothing is in flight."""
    second = s.at(request="2", transfer="2")
    return both(
        s.e.launched == s.e.processed,
        *(view.r.state != RUNNING for view in (s.at(), second)),
        *(no(among(view.t.state, OPEN)) for view in (s.at(), second)),
        s.others.load + s.others.store == s.others.quarantined,
    )


def _everybody_else_gives_way(p: Proofs) -> Iterator[Condition]:
    s = p.state
    yield p.premise(
        "P5", "holders give way", "when nothing runs and nothing is in flight, every request that "
        "holds blocks can be reclaimed",
        implies(s.r.covered > 0, p.goes(s, "request", RECLAIM)), _quiet(s),
        either(s.r.waits_for == 0, s.r.waits_for == s.copy.number),
    )  # fmt: skip
    yield p.premise(
        "P5", "holders give way", "and then each block is free, in quarantine, or the first's",
        either(s.declared("blocks", "may_hand_out"), s.b.quarantined > 0, s.held.by_request),
        _quiet(s), no(s.at(request="2").held.by_request), s.others.request == 0,
    )  # fmt: skip
    yield from p.each(
        "P5", "what was promised to who gave way is promised no more",
        lambda before, after: after.r.reserved == 0, part="holders give way",
        of=is_reclaim,
    )  # fmt: skip


def _room(p: Proofs) -> Iterator[Condition]:
    s = p.state
    length = s.declared("lanes", "length", prompt=s.r.prompt, delivered=s.r.delivered)
    usable = s.e.pool_blocks - s.e.quarantined
    never = s.declared(
        "policy", "never_fits", tokens=length, pool_blocks=s.e.pool_blocks,
        quarantined=s.e.quarantined, block_size=s.e.block_size,
    )  # fmt: skip
    blocks = s.ask.blocks
    yield p.premise(
        "P5", "the first has room", "exactly what is longer than all usable blocks never fits",
        same(never, length > usable * s.e.block_size),
    )  # fmt: skip
    needed = both(blocks >= 1, (s.r.covered + blocks - 1) * s.e.block_size < length)
    yield p.premise(
        "P5", "the first has room", "if it fits the pool at all, the blocks that it lacks are no "
        "more than are usable beside its own",
        s.r.covered + blocks <= usable, no(never), needed,
    )  # fmt: skip
    yield p.premise(
        "P5", "the first has room", "with that many free it can be admitted",
        p.goes(s, "request", ADMIT, ask__hits=0, ask__reserve=0, ask__transfer=0,
               ask__fresh=blocks, ask__free=usable - s.r.covered),
        among(s.r.state, (WAITING, PREEMPTED)), _quiet(s), admits(s), no(never), needed,
    )  # fmt: skip
    yield p.premise(
        "P5", "the first has room", "if it can never fit it can get *error*",
        p.goes(s, "request", ERROR), among(s.r.state, LIVE),
    )  # fmt: skip


def _comes_nearer(p: Proofs) -> Iterator[Condition]:
    """What runs can grow, be computed, and have its output delivered."""
    s = p.state
    memory = both(s.e.weights_resident, s.e.cache_resident)
    steps = both(s.declared("gates", "finishes_work"), memory)
    yield p.premise(
        "P5", "comes nearer", "the engine can launch a step while fewer are in flight than may be",
        p.goes(s, "engine", LAUNCH_STEP), steps, s.e.launched - s.e.processed < s.e.steps_ahead,
    )  # fmt: skip
    yield p.premise(
        "P5", "comes nearer", "what runs grows by as many blocks as are free",
        p.goes(s, "request", GROW, ask__hits=0), s.r.state == RUNNING, steps,
        s.ask.blocks >= 1, s.ask.blocks <= s.ask.free,
    )  # fmt: skip
    yield p.premise(
        "P5", "comes nearer", "and a new step computes it, if its hold covers the tokens",
        p.goes(s, "request", LAUNCH, ask__step=s.e.launched), s.r.state == RUNNING, memory,
        s.e.launched > s.e.processed, s.e.launched > s.r.newest_step, s.ask.tokens >= 1,
        s.r.computed + s.ask.tokens <= s.r.covered * s.e.block_size,
    )  # fmt: skip
    yield from p.each(
        "P5", "whose output is then delivered, also if it is preempted meanwhile",
        lambda before, after: p.goes(after, "request", OUTPUT, ask__step=after.r.newest_step,
                                     ask__tokens=1),
        part="comes nearer", of=lambda transition: transition.goes("request", LAUNCH),
    )  # fmt: skip
    yield from p.each(
        "P5", "preemption does not make output stale",
        lambda before, after: after.r.stale_step == before.r.stale_step,
        part="comes nearer", of=lambda transition: transition.goes("request", PREEMPT),
    )  # fmt: skip


def _tokens_only_fall(p: Proofs) -> Iterator[Condition]:
    yield from p.each(
        "P5", "delivered tokens are never taken back",
        lambda before, after: after.r.delivered >= before.r.delivered, part="only falls",
        of=lambda transition: not transition.goes("request", FORGET),
    )  # fmt: skip
    yield from p.each(
        "P5", "without a chunk the prompt does not grow", part="only falls",
        formula=lambda before, after: implies(
            both(before.r.queued_chunks == 0, among(before.r.state, LIVE)),
            after.r.prompt == before.r.prompt),
        of=lambda transition: not transition.goes("request", CHUNK),
    )  # fmt: skip
    yield from p.each(
        "P5", "output delivers", lambda before, after: after.r.delivered > before.r.delivered,
        part="only falls", of=lambda transition: transition.goes("request", OUTPUT),
    )  # fmt: skip
    yield from p.each(
        "P5", "a turn's end starts the turn's count afresh and takes a queued chunk",
        lambda before, after: implies(after.r.state == WAITING, both(
            after.r.queued_chunks == before.r.queued_chunks - 1,
            after.r.turn_start == after.r.delivered)),
        part="only falls", of=lambda transition: transition.goes("request", STOP),
    )  # fmt: skip
