"""The safety obligations of the engine: resets (S6), hits after them (S7), memory (S8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...statemachine.reset import CLIENT, DONE, ITSELF, NO_EVENT, PARTIAL, REFUSED
from ...statemachine.states import (
    ACTIVE,
    KEEP_ALL,
    LAUNCH,
    LAUNCH_STEP,
    PAUSED,
    PAUSING,
    PREEMPT,
    PREEMPTED,
    RECLAIM,
    RESUME,
    RUNNING,
    SLEEP,
    SLEEPING,
    START,
    WAITING,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
    WAKING,
    WEIGHTS_CHANGED,
    EngineEvent,
)
from ..symbolic import terms
from ..symbolic.terms import BoolTerm, IntTerm
from .conditions import Condition
from .logic import among, both, either, implies, no, same
from .phrases import OPEN, is_reset, nobody_holds
from .proofs import Proofs, StepFormula
from .state import View
from .system import Transition

ASLEEP = (SLEEPING, WAKING)


def s6(p: Proofs) -> Iterator[Condition]:
    """A refused reset changes nothing; a tier is cleared only after the device."""
    yield from p.each(
        "S6", "a refused reset changes nothing",
        lambda before, after: implies(before.reset.refusing > 0, both(
            *(after.value(*name.split(".")) == before.value(*name.split("."))
              for name in p.variables.state))),
        of=is_reset,
    )  # fmt: skip
    yield from p.each(
        "S6", "a tier is cleared only when every request has let go and no block of the device is "
        "a hit",
        lambda before, after: implies(
            both(before.more.tier_present, no(after.more.tier_present)),
            both(before.reset.refusing == 0, before.reset.tier_asked, after.r.covered == 0,
                 no(after.declared("blocks", "may_hit")))),
        of=is_reset,
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

    sent = s.declared(
        "reset", "sent_event", refusing=s.reset.refusing, state=s.r.state,
        resident=s.r.covered > 0,
    )  # fmt: skip
    goes_on = both(s.reset.refusing == 0, s.r.covered > 0)
    parked = among(s.r.state, (WAITING, WAITING_FOR_STREAMING_REQ))
    for words, goal in (
        ("nobody is sent anything while somebody refuses, nor who holds nothing",
         implies(no(goes_on), sent == NO_EVENT)),
        ("what runs is preempted", implies(both(goes_on, s.r.state == RUNNING), sent == PREEMPT)),
        ("what waits or is parked is reclaimed", implies(both(goes_on, parked), sent == RECLAIM)),
        ("what waits for a load is left alone",
         implies(s.r.state == WAITING_FOR_REMOTE_KVS, sent == NO_EVENT)),
    ):  # fmt: skip
        yield p.premise("S6", "what is sent", words, goal, s.reset.refusing >= 0)


def _choose(condition: BoolTerm, then: int, otherwise: int) -> IntTerm:
    return terms.choice(condition, terms.number(then), terms.number(otherwise))


def s7(p: Proofs) -> Iterator[Condition]:
    """After a reset no earlier block can be a hit; after weights_changed, in no tier."""
    yield from p.each(
        "S7", "after a reset that is done no block of the device is a hit",
        lambda before, after: implies(before.reset.refusing == 0,
                                      no(after.declared("blocks", "may_hit"))),
        of=is_reset,
    )  # fmt: skip
    yield from p.each(
        "S7", "after a reset that cleared the tier none of its entries is there",
        lambda before, after: implies(
            both(before.reset.refusing == 0, before.reset.tier_asked, before.reset.tier_cleared),
            no(after.more.tier_present)),
        of=is_reset,
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
            both(nobody_holds(before), before.b.quarantined == 0, before.r.covered == 0,
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
    sleeping = both(among(s.e.mode, (PAUSING, PAUSED)), s.e.sleep_paused)
    for event, given, mode in (
        (EngineEvent.PAUSE_FAILED, s.e.mode == PAUSING, ACTIVE),
        (EngineEvent.SLEEP_FAILED, sleeping, ACTIVE),
        (EngineEvent.WAKE_FAILED, s.e.mode == WAKING, SLEEPING),
    ):
        name = event.name.lower()
        yield p.premise(
            "S8", "failed calls", f"{name} goes back", p.goes(s, "engine", event), given,
            about=name,
        )  # fmt: skip
        yield from p.each(
            "S8", f"{name} leaves everything as it was before the call", _back_to(p, mode),
            part="failed calls", of=_goes("engine", event),
        )  # fmt: skip


def _back_to(p: Proofs, mode: int) -> StepFormula:
    """The engine is back in a mode, without the pause if it has one in no other, all else equal."""
    pause = ("e.pausing", "e.sleep_paused")
    kept = [name for name in p.variables.state if name not in ("e.mode", *pause)]

    def formula(before: View, after: View) -> BoolTerm:
        unpaused = both(after.e.pausing == 0, no(after.e.sleep_paused))
        names = kept if mode == ACTIVE else [*kept, *pause]
        return both(
            after.e.mode == mode,
            unpaused if mode == ACTIVE else terms.TRUE,
            *(after.value(*name.split(".")) == before.value(*name.split(".")) for name in names),
        )

    return formula


def _goes(machine: str, event: int) -> Callable[[Transition], bool]:
    return lambda transition: transition.goes(machine, event)
