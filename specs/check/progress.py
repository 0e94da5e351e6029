"""The progress obligations P1–P6: each premise named, and discharged by itself.

Progress is by ranking: the goal stays pending until it is reached, no event enlarges the set that
is to become empty, a completion shrinks it, while it is not empty there is a helpful event, and
that stays possible until it happens. That such an event does happen is what the fairness
assumptions say (`fairness`); that the set is finite is said once, in docs/proofs.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...statemachine.states import (
    ADMIT,
    ADMIT_REMOTE,
    CANCELLING,
    CHUNK,
    DEADLINE,
    FAIL,
    FENCE,
    GIVE_UP,
    IN_BLOCKED,
    IN_FLIGHT,
    IN_RUNNING,
    LAND,
    LEASE_OVER,
    PREEMPTED,
    QUARANTINED,
    QUEUED,
    RECLAIM,
    RESET_DECIDED,
    SHUTDOWN,
    STEP_PROCESSED,
    WAITING,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
)
from ..symbolic import terms
from ..symbolic.terms import BoolTerm, IntTerm
from .conditions import Condition
from .logic import among, both, either, implies, no, same
from .phrases import OPEN, is_reclaim
from .proofs import Proofs
from .state import View

RECLAIMABLE = (WAITING, WAITING_FOR_STREAMING_REQ)
OUTSIDE = (
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
)


def _refuses(s: View) -> BoolTerm:
    return s.declared(
        "reset", "request_refuses", state=s.r.state, resident=s.r.covered > 0, force=terms.TRUE
    )


def _transfer_refuses(s: View) -> BoolTerm:
    return s.declared("reset", "transfer_refuses", state=s.t.state)


def _steps_processed(s: View) -> BoolTerm:
    return s.e.launched == s.e.processed


def p1(p: Proofs) -> Iterator[Condition]:
    """When a forced reset is refused there is a transfer to name."""
    yield from p.always(
        "P1", "only a request that waits for a transfer refuses a forced reset", "r",
        lambda s: implies(_refuses(s), s.r.waits_for > 0), part="no request by itself",
    )  # fmt: skip
    yield from p.always(
        "P1", "beside it its transfer refuses, and is named", "rt",
        lambda s: implies(both(_refuses(s), s.r.waits_for == s.copy.number), _transfer_refuses(s)),
        part="its transfer is named",
    )  # fmt: skip
    yield from p.always(
        "P1", "once the launched steps are processed no STEP hold is left", "r",
        lambda s: implies(_steps_processed(s), both(no(s.held.by_step), s.others.step == 0)),
        part="no step refuses",
    )  # fmt: skip
    yield from p.always(
        "P1", "a transfer in quarantine refuses nothing", "t",
        lambda s: implies(s.t.state == QUARANTINED, no(_transfer_refuses(s))),
        part="quarantine is passed over",
    )  # fmt: skip
    yield _steps_can_be_processed("P1", p)


def _steps_can_be_processed(obligation: str, p: Proofs) -> Condition:
    s = p.state
    return p.premise(
        obligation, "steps first", "a launched step can be processed in every mode",
        p.goes(s, "engine", STEP_PROCESSED, engine_ask__step=s.e.processed + 1),
        s.e.launched > s.e.processed,
    )  # fmt: skip


def _rank(s: View) -> IntTerm:
    """How many ends a transfer has before it."""
    return terms.choice(
        s.t.state == QUEUED,
        terms.number(3),
        terms.choice(
            s.t.state == IN_FLIGHT,
            terms.number(2),
            terms.choice(s.t.state == CANCELLING, terms.number(1), terms.number(0)),
        ),
    )


def p2(p: Proofs) -> Iterator[Condition]:
    """A pending forced reset succeeds if the transfers in flight all end."""
    s = p.state
    pending = s.e.pending_reset
    yield from p.each(
        "P2", "the reset stays pending until it is decided, or the engine shuts down",
        lambda before, after: implies(before.e.pending_reset, after.e.pending_reset),
        part="stays pending",
        of=lambda transition: not (
            transition.goes("engine", RESET_DECIDED) or transition.goes("engine", SHUTDOWN)
        ),
    )  # fmt: skip
    yield from p.each(
        "P2", "no transfer comes into flight, and none goes back",
        lambda before, after: implies(
            both(before.e.pending_reset, after.e.pending_reset),
            both(*(_rank(after.at(transfer=each)) <= _rank(before.at(transfer=each))
                   for each in ("", "2")))),
        part="never enlarged",
    )  # fmt: skip
    yield from p.each(
        "P2", "each end takes a transfer out of flight",
        lambda before, after: both(among(before.t.state, (*OPEN, QUARANTINED)),
                                   no(among(after.t.state, OPEN))),
        part="an end shrinks it",
        of=lambda transition: any(
            transition.goes("transfer", event) for event in (LAND, FAIL, FENCE, GIVE_UP)
        ),
    )  # fmt: skip
    for state, words, events in (
        (IN_FLIGHT, "in flight it can land or fail", (LAND, FAIL)),
        (CANCELLING, "when cancelled it can land, fail, be fenced or be given up",
         (LAND, FAIL, FENCE, GIVE_UP)),
    ):  # fmt: skip
        yield p.premise(
            "P2", "can end", words, both(*(p.goes(s, "transfer", event) for event in events)),
            pending, s.t.state == state,
        )  # fmt: skip
    yield from p.each(
        "P2", "until then that stays so: only its own events move a transfer",
        lambda before, after: after.t.state == before.t.state, part="stays possible",
        of=lambda transition: not any(call.machine == "transfer" for call in transition.calls),
    )  # fmt: skip
    yield from p.always(
        "P2", "when no transfer is in flight nobody refuses a forced reset", "rt",
        lambda s: implies(both(_refuses(s), s.r.waits_for == s.copy.number),
                          among(s.t.state, OPEN)),
        part="done when empty",
    )  # fmt: skip
    yield _steps_can_be_processed("P2", p)
    yield from leases(p)


def leases(p: Proofs) -> Iterator[Condition]:
    """With leases an end needs nobody's word (`fairness`: without, a lost one is for ever)."""
    s = p.state
    yield p.premise(
        "P2", "with leases", "a lease that is over, or giving up, can always move an open transfer",
        either(p.goes(s, "transfer", LEASE_OVER, transfer_ask__expired=True),
               p.goes(s, "transfer", GIVE_UP)),
        among(s.t.state, OPEN),
    )  # fmt: skip
    yield from p.each(
        "P2", "and then it is nearer to its end",
        lambda before, after: _rank(after) < _rank(before), part="with leases",
        of=lambda transition: any(
            transition.goes("transfer", event) for event in (LEASE_OVER, GIVE_UP)
        ),
    )  # fmt: skip


def p3(p: Proofs) -> Iterator[Condition]:
    """Reclaiming always makes progress."""
    s = p.state
    holder = both(among(s.r.state, RECLAIMABLE), s.r.covered > 0)
    yield p.premise(
        "P3", "possible", "a resident parked or waiting request can be reclaimed in every mode",
        p.goes(s, "request", RECLAIM), holder,
    )  # fmt: skip

    def reclaimable(view: View) -> BoolTerm:
        return both(among(view.r.state, RECLAIMABLE), view.r.covered > 0)

    yield from p.each(
        "P3", "one reclaimable holder less, and no other request is touched",
        lambda before, after: both(
            reclaimable(before), no(reclaimable(after)), after.r.state == before.r.state,
            *(after.value(*name.split(".")) == before.value(*name.split("."))
              for name in p.variables.state if name.startswith(("r2.", "held2.", "place2.")))),
        part="strictly lowers", of=is_reclaim,
    )  # fmt: skip
    yield from p.each(
        "P3", "what only it held is free, at once or when the step that touches it is processed",
        lambda before, after: implies(
            both(before.held.by_request, before.b.count == 1),
            either(after.declared("blocks", "may_hand_out"),
                   both(after.held.by_step, after.b.count == 1,
                        after.held.step > after.e.processed))),
        part="frees", of=is_reclaim,
    )  # fmt: skip
    yield from p.each(
        "P3", "and when that step is processed it is free",
        lambda before, after: implies(
            both(before.held.by_step, before.b.count == 1,
                 before.held.step == before.engine_ask.step),
            after.declared("blocks", "may_hand_out")),
        part="frees", of=lambda transition: transition.goes("engine", STEP_PROCESSED),
    )  # fmt: skip
    kept = ("prompt", "delivered", "turn_start", "queued_chunks", "queued_tokens")
    yield from p.each(
        "P3", "it keeps its tokens and its input",
        lambda before, after: both(
            same(after.r.input_open, before.r.input_open),
            *(after.value("r", name) == before.value("r", name) for name in kept)),
        part="goes on", of=is_reclaim,
    )  # fmt: skip
    yield p.premise(
        "P3", "goes on", "a chunk that fits takes a parked session to WAITING",
        p.goes(s, "request", CHUNK), s.r.state == WAITING_FOR_STREAMING_REQ, s.ask.tokens > 0,
        s.declared("request_guards", "chunk_fits", x=p.running.records["ask"]),
    )  # fmt: skip
    yield from p.each(
        "P3", "and nowhere else",
        lambda before, after: implies(before.r.state == WAITING_FOR_STREAMING_REQ,
                                      after.r.state == WAITING),
        part="goes on", of=lambda transition: transition.goes("request", CHUNK),
    )  # fmt: skip
    yield from _admission_needs_blocks_only("P3", p)


def admits(s: View) -> BoolTerm:
    """The engine admits: it starts work, has its memory, and no reset is pending."""
    return both(
        s.declared("gates", "starts_work"),
        s.e.weights_resident,
        s.e.cache_resident,
        no(s.e.pending_reset),
    )


def _admission_needs_blocks_only(obligation: str, p: Proofs) -> Iterator[Condition]:
    s = p.state
    yield p.premise(
        obligation, "admission", "admission then needs free blocks only",
        same(p.goes(s, "request", ADMIT, ask__hits=0, ask__reserve=0, ask__transfer=0,
                    ask__fresh=s.ask.blocks),
             s.ask.blocks <= s.ask.free),
        among(s.r.state, (WAITING, PREEMPTED)), admits(s), s.r.newest_step <= s.e.processed,
        s.ask.blocks >= 1,
    )  # fmt: skip


def p4(p: Proofs) -> Iterator[Condition]:
    """Every state that waits for an outside party has a deadline, and leaves."""
    s = p.state
    still = s.declared("gates", "clocks_stand_still")
    yield p.premise(
        "P4", "has a deadline", "grammar and parked sessions: when their time, in which the engine "
        "was not paused, is over",
        p.goes(s, "request", DEADLINE, ask__expired=True),
        among(s.r.state, OUTSIDE), no(still),
    )  # fmt: skip
    yield p.premise(
        "P4", "has a deadline", "a load's waiter: also while the engine is paused",
        p.goes(s, "request", DEADLINE, ask__expired=True), s.r.state == WAITING_FOR_REMOTE_KVS,
    )  # fmt: skip
    yield from p.each(
        "P4", "the state is left, without a hold and without a transfer to wait for",
        lambda before, after: both(no(among(after.r.state, OUTSIDE)), after.r.covered == 0,
                                   after.r.waits_for == 0),
        part="leaves", of=lambda transition: transition.goes("request", DEADLINE),
    )  # fmt: skip
    yield from p.each(
        "P4", "a load that took too long is not tried again",
        lambda before, after: implies(before.r.state == WAITING_FOR_REMOTE_KVS,
                                      no(p.goes(after, "request", ADMIT_REMOTE))),
        part="leaves", of=lambda transition: transition.goes("request", DEADLINE),
    )  # fmt: skip
    yield p.premise(
        "P4", "no other state", "exactly the states of the container *blocked* wait for outsiders",
        same(among(s.r.state, OUTSIDE), s.declared("request", "container", state=s.r.state)
             == IN_BLOCKED),
    )  # fmt: skip
    yield p.premise(
        "P4", "transfers", "an open transfer has its lease, or can be given up",
        either(p.goes(s, "transfer", LEASE_OVER, transfer_ask__expired=True),
               p.goes(s, "transfer", GIVE_UP)),
        among(s.t.state, OPEN),
    )  # fmt: skip


def p6(p: Proofs) -> Iterator[Condition]:
    """Parked sessions take no run slot and give way to every ordinary request."""
    s = p.state
    parked = s.r.state == WAITING_FOR_STREAMING_REQ
    yield p.premise(
        "P6", "no run slot", "a parked session is in no run slot",
        s.declared("request", "container", state=s.r.state) != IN_RUNNING, parked,
    )  # fmt: skip
    yield p.premise(
        "P6", "no run slot", "no step computes it, and what is in flight for it is stale",
        both(s.r.computed == s.r.written, s.r.stale_step == s.r.newest_step), parked,
    )  # fmt: skip
    yield p.premise(
        "P6", "gives way", "whoever lacks blocks, of whatever priority, may have it reclaimed",
        s.declared("policy", "must_reclaim_parked", free=s.ask.free, needed=s.ask.fresh),
        s.ask.fresh > s.ask.free,
    )  # fmt: skip
    yield p.premise(
        "P6", "gives way", "and it can be, in every mode",
        p.goes(s, "request", RECLAIM), parked, s.r.covered > 0,
    )  # fmt: skip
    yield from p.each(
        "P6", "after that it delays nobody: it holds nothing",
        lambda before, after: both(after.r.covered == 0, no(after.held.by_request),
                                   after.r.reserved == 0),
        part="delays until then only", of=is_reclaim,
    )  # fmt: skip
