"""The safety obligations S1–S8 and S10: what they say beyond their invariants.

Each function yields the conditions of one obligation's own statement. The invariants that carry
them are in `invariants` and `contents`; S9, which is about the tables alone, is in `rows`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...statemachine.reset import CLIENT, DONE, ITSELF, PARTIAL, REFUSED
from ...statemachine.states import (
    ABSENT,
    ACTIVE,
    ADMIT,
    CANCELLING,
    DEADLINE,
    FAILED,
    FENCED,
    FINISHED,
    IN_BLOCKED,
    IN_FLIGHT,
    IN_RUNNING,
    IN_WAITING,
    KEEP_ALL,
    LANDED,
    LAUNCH,
    LAUNCH_STEP,
    LIVE,
    NOWHERE,
    PAUSE_FAILED,
    PAUSED,
    PAUSING,
    PREEMPTED,
    QUARANTINED,
    QUEUED,
    RESUME,
    RUNNING,
    SLEEP,
    SLEEP_FAILED,
    SLEEPING,
    START,
    UNKNOWN,
    WAITING,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
    WAKE_FAILED,
    WAKING,
    WEIGHTS_CHANGED,
    RequestEvent,
    RequestState,
    TransferEvent,
)
from ..symbolic import terms
from ..symbolic.terms import BoolTerm, IntTerm
from .conditions import Condition
from .logic import among, both, either, implies, no, one, same, total
from .proofs import Proofs
from .state import View
from .system import Transition

OPEN = (QUEUED, IN_FLIGHT, CANCELLING)
ENDED = (LANDED, FAILED, FENCED)
ASLEEP = (SLEEPING, WAKING)


def _nobody_holds(s: View) -> BoolTerm:
    second = s.at(request="2", transfer="2")
    named = [
        no(each)
        for view in (s.at(), second)
        for each in (view.held.by_request, view.held.by_step, view.held.by_transfer)
    ]
    return both(
        *named,
        s.others.request == 0,
        s.others.step == 0,
        s.others.load == 0,
        s.others.store == 0,
    )


def _nobody_touches(s: View) -> BoolTerm:
    return both(s.place.touching <= s.e.processed, no(s.copy.working))


def _holds(s: View) -> IntTerm:
    second = s.at(request="2", transfer="2")
    named = [
        one(each)
        for view in (s.at(), second)
        for each in (view.held.by_request, view.held.by_step, view.held.by_transfer)
    ]
    return total([*named, s.others.request, s.others.step, s.others.load, s.others.store])


def s1(p: Proofs) -> Iterator[Condition]:
    """A block's count equals the number of holds that cover it."""
    yield from p.always(
        "S1", "the count is 0 exactly when nobody holds the block", "",
        lambda s: same(s.b.count == 0, _nobody_holds(s)),
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
            terms.constant(not foreign, "bool"), about=machine,
        )  # fmt: skip


def s2(p: Proofs) -> Iterator[Condition]:
    """A block with a hold is never freed, re-hashed or handed out."""
    yield from p.always(
        "S2", "what the pool hands out nobody holds, and nobody may still touch", "rt",
        lambda s: implies(s.declared("blocks", "may_hand_out"),
                          both(_nobody_holds(s), _nobody_touches(s), s.b.quarantined == 0)),
    )  # fmt: skip
    yield from p.always(
        "S2", "what may lose its prefix nobody holds, and nobody may still touch", "rt",
        lambda s: implies(s.declared("blocks", "may_drop"),
                          both(_nobody_holds(s), _nobody_touches(s))),
    )  # fmt: skip
    yield from p.each(
        "S2", "a block with a hold keeps its prefix, or loses it on its way into quarantine",
        lambda before, after: implies(
            both(before.b.cached, no(_nobody_holds(before)), no(_nobody_holds(after))),
            either(both(after.b.cached, after.b.hashed_as == before.b.hashed_as),
                   both(no(after.b.cached), after.b.quarantined > before.b.quarantined))),
    )  # fmt: skip
    yield from p.each(
        "S2", "a block that is taken fresh was held by nobody",
        lambda before, after: implies(
            both(before.pick.named, before.pick.fresh, before.place.position < 0,
                 after.place.position >= 0),
            both(_nobody_holds(before), _nobody_touches(before))),
        of=lambda transition: any(call.machine == "request" for call in transition.calls),
    )  # fmt: skip
    yield from p.each(
        "S2", "a reset never frees a referenced block: what is held or touched afterwards keeps "
        "its prefix and stays out of the pool",
        lambda before, after: implies(
            either(no(_nobody_holds(after)), no(_nobody_touches(after))),
            both(same(after.b.cached, before.b.cached), after.b.count > 0)),
        of=_is_reset,
    )  # fmt: skip
    yield from p.each(
        "S2", "a reset that is done leaves no hold outside quarantine",
        lambda before, after: implies(before.reset.refusing == 0, both(
            no(after.held.by_request), no(after.held.by_step), after.others.request == 0,
            implies(after.held.by_transfer, after.held.in_quarantine))),
        of=_is_reset,
    )  # fmt: skip


def _is_reset(transition: Transition) -> bool:
    return transition.action == "reset"


def s3(p: Proofs) -> Iterator[Condition]:
    """Each (hold, block) is released at most once, exactly once when its owner ends."""
    yield from p.each(
        "S3", "the count falls by one for each hold that ends, and for nothing else",
        lambda before, after: after.b.count - before.b.count == _holds(after) - _holds(before),
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
    for event in (T.BEGIN, T.LAND, T.FAIL, T.CANCEL, T.FENCE, T.GIVE_UP, T.LEASE_OVER):
        yield p.premise(
            "S3", "late signals", f"a late {event.name.lower()} changes nothing",
            no(p.goes(s, "transfer", event)), among(s.t.state, over), about=event.name.lower(),
        )  # fmt: skip
    for event in (T.BEGIN, T.LAND, T.FAIL, T.CANCEL, T.GIVE_UP, T.LEASE_OVER):
        yield p.premise(
            "S3", "late signals", f"in quarantine a {event.name.lower()} changes nothing",
            no(p.goes(s, "transfer", event)), s.t.state == QUARANTINED, about=event.name.lower(),
        )  # fmt: skip
    for event in (R.TRANSFER_LANDED, R.TRANSFER_FAILED):
        yield p.premise(
            "S3", "late signals", f"{event.name.lower()} of a transfer that it does not wait for "
            "changes nothing", no(p.goes(s, "request", event)), s.r.waits_for != s.ask.transfer,
            about=event.name.lower(),
        )  # fmt: skip
    for event in (R.PUBLISH, R.OUTPUT, R.STOP):
        yield p.premise(
            "S3", "late signals", f"{event.name.lower()} of a stale step changes nothing",
            no(p.goes(s, "request", event)), s.ask.step <= s.r.stale_step,
            about=event.name.lower(),
        )  # fmt: skip
    yield p.premise(
        "S3", "late signals", "a step is processed once, in its order",
        no(p.goes(s, "engine", 5)), s.engine_ask.step != s.e.processed + 1, about="step_processed",
    )  # fmt: skip


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


def s6(p: Proofs) -> Iterator[Condition]:
    """A refused reset changes nothing; a tier is cleared only after the device."""
    yield from p.each(
        "S6", "a refused reset changes nothing",
        lambda before, after: implies(before.reset.refusing > 0, both(
            *(after.value(*name.split(".")) == before.value(*name.split("."))
              for name in p.variables.state))),
        of=_is_reset,
    )  # fmt: skip
    yield from p.each(
        "S6", "a tier is cleared only when every request has let go and no block of the device is "
        "a hit",
        lambda before, after: implies(
            both(before.more.tier_present, no(after.more.tier_present)),
            both(before.reset.refusing == 0, before.reset.tier_asked, after.r.covered == 0,
                 no(after.declared("blocks", "may_hit")))),
        of=_is_reset,
    )  # fmt: skip
    s = p.state
    outcome = s.declared(
        "reset", "outcome", refusing=s.reset.refusing, tier_asked=s.reset.tier_asked,
        tier_cleared=s.reset.tier_cleared,
    )  # fmt: skip
    refused = s.reset.refusing > 0
    failed = both(s.reset.tier_asked, no(s.reset.tier_cleared))
    for words, goal in (
        ("refused exactly when a holder refuses", same(outcome == REFUSED, refused)),
        ("partial exactly when the device is done and the tier is not",
         same(outcome == PARTIAL, both(no(refused), failed))),
        ("done otherwise", same(outcome == DONE, both(no(refused), no(failed)))),
    ):  # fmt: skip
        yield p.premise("S6", "outcome", words, goal, s.reset.refusing >= 0)
    yield from _who_refuses(p)


def _who_refuses(p: Proofs) -> Iterator[Condition]:
    s = p.state
    plain = s.declared(
        "reset", "request_refuses", state=s.r.state, resident=s.r.covered > 0, force=terms.FALSE
    )
    transfer = s.declared("reset", "transfer_refuses", state=s.t.state)
    ends = s.declared("reset", "request_ends_by", state=s.r.state)
    wait = s.declared(
        "reset", "may_wait", refusing=s.reset.refusing, refusing_by_client=s.bulk.left,
        wait_asked=s.reset.tier_asked,
    )  # fmt: skip
    for words, goal in (
        ("without the force flag every resident request refuses", same(plain, s.r.covered > 0)),
        ("a transfer refuses until it has ended; quarantine is an end",
         same(transfer, among(s.t.state, OPEN))),
        ("who refuses ends by itself, a parked session by its client",
         implies(plain, ends == _choose(s.r.state == WAITING_FOR_STREAMING_REQ, CLIENT, ITSELF))),
        ("a refused reset may wait only if all that refuses ends by itself",
         implies(wait, both(s.reset.refusing > 0, s.bulk.left == 0, s.reset.tier_asked))),
        ("and may then",
         implies(both(s.reset.refusing > 0, s.bulk.left == 0, s.reset.tier_asked), wait)),
    ):  # fmt: skip
        yield p.premise("S6", "holders", words, goal, s.bulk.left >= 0)


def _choose(condition: BoolTerm, then: int, otherwise: int) -> IntTerm:
    return terms.choice(condition, terms.number(then), terms.number(otherwise))


def s7(p: Proofs) -> Iterator[Condition]:
    """After a reset no earlier block can be a hit; after weights_changed, in no tier."""
    yield from p.each(
        "S7", "after a reset that is done no block of the device is a hit",
        lambda before, after: implies(before.reset.refusing == 0,
                                      no(after.declared("blocks", "may_hit"))),
        of=_is_reset,
    )  # fmt: skip
    yield from p.each(
        "S7", "after a reset that cleared the tier none of its entries is there",
        lambda before, after: implies(
            both(before.reset.refusing == 0, before.reset.tier_asked, before.reset.tier_cleared),
            no(after.more.tier_present)),
        of=_is_reset,
    )  # fmt: skip
    yield from p.each(
        "S7", "after weights_changed no key of device or tier carries the present epoch, and "
        "nobody is resident who could publish what older weights computed",
        lambda before, after: both(
            implies(after.b.cached, after.more.epoch != after.e.epoch),
            implies(after.more.tier_present, after.more.tier_epoch != after.e.epoch),
            after.r.covered == 0),
        of=lambda transition: transition.goes("engine", WEIGHTS_CHANGED),
    )  # fmt: skip
    yield from p.each(
        "S7", "the epoch never comes back", lambda before, after: after.e.epoch >= before.e.epoch
    )


def s8(p: Proofs) -> Iterator[Condition]:
    """Memory is discarded only when nothing is left; failed calls go back."""
    s = p.state
    yield from p.each(
        "S8", "memory is discarded only when no hold and no quarantined block is left",
        lambda before, after: implies(
            either(both(before.e.weights_resident, no(after.e.weights_resident)),
                   both(before.e.cache_resident, no(after.e.cache_resident))),
            both(_nobody_holds(before), before.b.quarantined == 0, before.r.covered == 0,
                 before.e.launched == before.e.processed, no(before.copy.working))),
    )  # fmt: skip
    yield from p.each(
        "S8", "no step runs without weights and cache",
        lambda before, after: both(before.e.weights_resident, before.e.cache_resident),
        of=lambda transition: transition.goes("engine", LAUNCH_STEP)
        or transition.goes("request", LAUNCH),
    )  # fmt: skip
    yield from p.each(
        "S8", "no transfer starts without the cache",
        lambda before, after: before.e.cache_resident,
        of=lambda transition: transition.goes("transfer", START),
    )  # fmt: skip
    yield from p.each(
        "S8", "PAUSED is reached with every step processed, and nothing RUNNING or PREEMPTED "
        "unless the pause keeps all",
        lambda before, after: implies(
            both(before.e.mode == PAUSING, after.e.mode == PAUSED),
            both(after.e.launched == after.e.processed,
                 either(after.e.pausing == KEEP_ALL,
                        no(among(after.r.state, (RUNNING, PREEMPTED)))))),
    )  # fmt: skip
    yield from _failed_calls(p)
    for words, event, given in (
        ("resume while asleep is refused", RESUME, among(s.e.mode, ASLEEP)),
        ("sleep is refused while a block is in quarantine, as a forced reset's holders refuse it",
         SLEEP, both(s.e.mode != ACTIVE, either(s.e.quarantined > 0, s.engine_ask.holders > 0,
                                                s.engine_ask.holds > 0))),
    ):  # fmt: skip
        yield p.premise("S8", "refusals", words, no(p.goes(s, "engine", event)), given)


def _failed_calls(p: Proofs) -> Iterator[Condition]:
    """A call that fails leaves mode, memory, cache and admission as they were."""
    s = p.state
    kept = tuple(
        name for name in p.variables.state if name not in ("e.mode", "e.pausing", "e.sleep_paused")
    )
    for event, given, mode in (
        (PAUSE_FAILED, s.e.mode == PAUSING, ACTIVE),
        (SLEEP_FAILED, both(among(s.e.mode, (PAUSING, PAUSED)), s.e.sleep_paused), ACTIVE),
        (WAKE_FAILED, s.e.mode == WAKING, SLEEPING),
    ):
        name = p.declaration.machine("engine").table.events(event).name.lower()
        yield p.premise(
            "S8", "failed calls", f"{name} goes back", p.goes(s, "engine", event), given,
            about=name,
        )  # fmt: skip
        yield from p.each(
            "S8", f"{name} leaves everything as it was before the call",
            lambda before, after, mode=mode: both(
                after.e.mode == mode,
                implies(terms.constant(mode == ACTIVE, "bool"),
                        both(after.e.pausing == 0, no(after.e.sleep_paused))),
                implies(terms.constant(mode == SLEEPING, "bool"),
                        both(after.e.pausing == before.e.pausing,
                             same(after.e.sleep_paused, before.e.sleep_paused))),
                *(after.value(*each.split(".")) == before.value(*each.split("."))
                  for each in kept)),
            part="failed calls",
            of=lambda transition, event=event: transition.goes("engine", event),
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
