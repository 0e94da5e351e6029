"""The safety obligations of requests, transfers and blocks: S1–S5 and S10.

Each function yields the conditions of one obligation's own statement. The invariants that carry
them are in `invariants` and `contents`; S9, which is about the tables alone, is in `rows`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

from ...statemachine.states import (
    ABSENT,
    ADMIT,
    DEADLINE,
    FINISHED,
    IN_BLOCKED,
    IN_RUNNING,
    IN_WAITING,
    LAUNCH,
    LIVE,
    NOWHERE,
    PREEMPTED,
    QUARANTINED,
    RUNNING,
    UNKNOWN,
    WAITING,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
    EngineEvent,
    RequestEvent,
    RequestState,
    TransferEvent,
)
from ..symbolic import terms
from ..symbolic.terms import BoolTerm
from .conditions import Condition
from .logic import among, both, either, implies, no, same
from .phrases import ENDED, OPEN, holds, is_reset, nobody_holds, nobody_touches
from .proofs import Proofs
from .running import PARAMETERS


def s1(p: Proofs) -> Iterator[Condition]:
    """A block's count equals the number of holds that cover it."""
    yield from p.always(
        "S1", "the count is 0 exactly when nobody holds the block", "",
        lambda s: same(s.b.count == 0, nobody_holds(s)),
    )  # fmt: skip
    yield from frame("S1", p)


def frame(obligation: str, p: Proofs) -> Iterator[Condition]:
    """An event writes its own subject and nothing else: the differences are the whole change."""
    for machine, subject in (("request", "r"), ("transfer", "t"), ("engine", "e")):
        table = p.declaration.machine(machine).table
        foreign: list[str] = []
        for state in table.states:
            for event in table.events:
                for outcome in p.running.cell(machine, int(state), int(event)):
                    foreign += [
                        f"{event.name} in {state.name} writes {name}"
                        for name in outcome.writes
                        if name.partition(".")[0] != subject
                    ]
        yield p.premise(
            obligation, "frame",
            "; ".join(foreign) or f"the {machine}'s events write the {machine}'s record only",
            terms.FALSE if foreign else _unwritten(p, machine), about=machine,
        )  # fmt: skip


def _unwritten(p: Proofs, machine: str) -> BoolTerm:
    """The records that the machine's events are given beside their subject stay what they are."""
    _, *others = PARAMETERS[machine]
    return both(*(p.named(f"({record}' = {record})", terms.TRUE) for record in others))


def s2(p: Proofs) -> Iterator[Condition]:
    """A block with a hold is never freed, re-hashed or handed out."""
    yield from p.always(
        "S2", "what the pool hands out nobody holds, and nobody may still touch", "rt",
        lambda s: implies(s.declared("blocks", "may_hand_out"),
                          both(nobody_holds(s), nobody_touches(s), s.b.quarantined == 0)),
    )  # fmt: skip
    yield from p.always(
        "S2", "what may lose its prefix nobody holds, and nobody may still touch", "rt",
        lambda s: implies(s.declared("blocks", "may_drop"),
                          both(nobody_holds(s), nobody_touches(s))),
    )  # fmt: skip
    yield from p.each(
        "S2", "a block with a hold keeps its prefix, or loses it on its way into quarantine",
        lambda before, after: implies(
            both(before.b.cached, no(nobody_holds(before)), no(nobody_holds(after))),
            either(both(after.b.cached, after.b.hashed_as == before.b.hashed_as),
                   both(no(after.b.cached), after.b.quarantined > before.b.quarantined))),
    )  # fmt: skip
    yield from p.each(
        "S2", "a block that is taken fresh was held by nobody",
        lambda before, after: implies(
            both(before.pick.named, before.pick.fresh, before.place.position < 0,
                 after.place.position >= 0),
            both(nobody_holds(before), nobody_touches(before))),
        of=lambda transition: any(call.machine == "request" for call in transition.calls),
    )  # fmt: skip
    yield from p.each(
        "S2", "a reset never frees a referenced block: what is held or touched afterwards keeps "
        "its prefix and stays out of the pool",
        lambda before, after: implies(
            either(no(nobody_holds(after)), no(nobody_touches(after))),
            both(same(after.b.cached, before.b.cached), after.b.count > 0)),
        of=is_reset,
    )  # fmt: skip
    yield from p.each(
        "S2", "a reset that is done leaves no hold outside quarantine",
        lambda before, after: implies(before.reset.refusing == 0, both(
            no(after.held.by_request), no(after.held.by_step), after.others.request == 0,
            implies(after.held.by_transfer, after.held.in_quarantine))),
        of=is_reset,
    )  # fmt: skip


def s3(p: Proofs) -> Iterator[Condition]:
    """Each (hold, block) is released at most once, exactly once when its owner ends."""
    yield from p.each(
        "S3", "the count falls by one for each hold that ends, and for nothing else",
        lambda before, after: after.b.count - before.b.count == holds(after) - holds(before),
    )  # fmt: skip
    yield from p.always(
        "S3", "a request that let go, and a transfer that ended outside quarantine, hold nothing",
        "rt",
        lambda s: both(implies(s.r.covered == 0, no(s.held.by_request)),
                       implies(among(s.t.state, (ABSENT, *ENDED)), no(s.held.by_transfer)),
                       implies(s.r.newest_step <= s.e.processed, no(s.held.by_step))),
    )  # fmt: skip
    yield from p.always(
        "S3", "in quarantine the hold stays", "t",
        lambda s: implies(both(s.t.state == QUARANTINED, s.copy.carried), s.held.by_transfer),
    )  # fmt: skip
    yield from _late_signals(p)


def _late_signals(p: Proofs) -> Iterator[Condition]:
    s = p.state
    T, R = TransferEvent, RequestEvent  # noqa: N806
    over = (ABSENT, *ENDED)
    ends = (T.BEGIN, T.LAND, T.FAIL, T.CANCEL, T.GIVE_UP, T.LEASE_OVER)

    def unmoved(machine: str, event: IntEnum, words: str, given: BoolTerm) -> Condition:
        name = event.name.lower()
        goal = no(p.goes(s, machine, int(event)))
        return p.premise(
            "S3", "late signals", f"{name} {words} changes nothing", goal, given, about=name
        )

    for signal in (*ends, T.FENCE):
        yield unmoved("transfer", signal, "that comes late", among(s.t.state, over))
    for signal in ends:
        yield unmoved("transfer", signal, "in quarantine", s.t.state == QUARANTINED)
    for told in (R.TRANSFER_LANDED, R.TRANSFER_FAILED):
        yield unmoved("request", told, "of another transfer", s.r.waits_for != s.ask.transfer)
    for output in (R.PUBLISH, R.OUTPUT, R.STOP):
        yield unmoved("request", output, "of a stale step", s.ask.step <= s.r.stale_step)
    yield unmoved(
        "engine",
        EngineEvent.STEP_PROCESSED,
        "out of order",
        s.engine_ask.step != s.e.processed + 1,
    )


def s4(p: Proofs) -> Iterator[Condition]:
    """State and facts agree."""
    yield from p.always(
        "S4", "RUNNING and WAITING_FOR_REMOTE_KVS are resident; PREEMPTED, FINISHED_* are not",
        "r",
        lambda s: both(
            implies(among(s.r.state, (RUNNING, WAITING_FOR_REMOTE_KVS)), s.r.covered > 0),
            implies(among(s.r.state, (PREEMPTED, *FINISHED)), s.r.covered == 0)),
    )  # fmt: skip
    yield from p.always(
        "S4", "it waits for a transfer exactly in WAITING_FOR_REMOTE_KVS, which is QUEUED, "
        "IN_FLIGHT or CANCELLING", "rt",
        lambda s: both(same(s.r.waits_for != 0, s.r.state == WAITING_FOR_REMOTE_KVS),
                       implies(s.r.waits_for == s.copy.number, among(s.t.state, OPEN))),
    )  # fmt: skip
    yield from p.always(
        "S4", "hashed ≤ computed ≤ covered by its hold; all 0 when not resident", "r",
        lambda s: both(
            s.r.hashed * s.e.block_size <= s.r.computed,
            s.r.computed <= s.declared("lanes", "capacity", covered=s.r.covered,
                                       block_size=s.e.block_size),
            implies(s.r.covered == 0, both(s.r.computed == 0, s.r.hashed == 0))),
    )  # fmt: skip


#: The container that is right for each state.
CONTAINERS = {
    **dict.fromkeys((WAITING, PREEMPTED), IN_WAITING),
    RUNNING: IN_RUNNING,
    **dict.fromkeys(
        (
            WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
            WAITING_FOR_REMOTE_KVS,
            WAITING_FOR_STREAMING_REQ,
        ),
        IN_BLOCKED,
    ),
}

#: The event that takes a request out of each container.
SERVES = {IN_WAITING: ADMIT, IN_RUNNING: LAUNCH, IN_BLOCKED: DEADLINE}


def s5(p: Proofs) -> Iterator[Condition]:
    """Every live request is in exactly the container that its state says; counters count."""
    s = p.state
    for state in RequestState:
        right = CONTAINERS.get(int(state), NOWHERE)
        container = s.declared("request", "container", state=terms.number(int(state)))
        yield p.premise(
            "S5", "containers", f"{state.name} is in the container that serves it",
            container == right, about=state.name,
        )  # fmt: skip
        if right != NOWHERE:
            event = RequestEvent(SERVES[right])
            yield p.premise(
                "S5", "containers", f"there {event.name.lower()} can take it",
                p.goes(s, "request", event), s.r.state == int(state), about=state.name,
                possible=True,
            )  # fmt: skip
    yield from p.each(
        "S5", "a live request stays live or is finished, and what is finished is only forgotten",
        lambda before, after: both(
            implies(among(before.r.state, LIVE), among(after.r.state, (*LIVE, *FINISHED))),
            implies(among(before.r.state, FINISHED),
                    either(after.r.state == before.r.state, after.r.state == UNKNOWN))),
    )  # fmt: skip


def s10(p: Proofs) -> Iterator[Condition]:
    """A cached block's hashed_as is its content_of and it is written."""
    yield from p.always(
        "S10", "a hit is complete, nobody writes to it, and it is what the index says", "",
        lambda s: implies(s.declared("blocks", "may_hit"), both(
            s.b.content_of > 0, s.b.hashed_as == s.b.content_of, no(s.b.being_written))),
    )  # fmt: skip
    yield from p.each(
        "S10", "who takes a hit gets its own prefix",
        lambda before, after: implies(
            both(before.pick.named, no(before.pick.fresh), no(before.pick.loaded),
                 before.place.position < 0, after.place.position >= 0),
            both(after.b.content_of == after.place.prefix, after.b.cached)),
        of=lambda transition: any(call.machine == "request" for call in transition.calls),
    )  # fmt: skip
    yield from p.each(
        "S10", "what is published was written by then",
        lambda before, after: implies(
            both(no(before.b.cached), after.b.cached),
            both(after.b.content_of > 0, after.b.hashed_as == after.b.content_of,
                 no(after.b.being_written))),
    )  # fmt: skip
