"""The part of S9 about lanes: branch-free arithmetic does what the events do.

A lane that serves hundreds of requests in one call must have the effect of the event on each of
them; each is executed on the same facts as the event, and compared.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...statemachine.answers import GO, HAND_OVER, RELEASE
from ...statemachine.states import LAUNCH, OUTPUT, PUBLISH, RUNNING, RequestEvent, RequestState
from ..symbolic import terms
from ..symbolic.terms import BoolTerm, Term
from .conditions import Condition, Hypotheses
from .logic import both, either, implies, no, same
from .proofs import Proofs
from .running import Outcome


def lanes(p: Proofs, nothing: Hypotheses) -> Iterator[Condition]:
    """Each lane equals the effect of its event on the same facts."""

    def condition(words: str, about: str, goal: BoolTerm) -> Condition:
        return Condition("S9", "lanes", words, about, nothing, goal)

    for lane, event, field, fact in (
        ("advance", LAUNCH, "computed", "tokens"),
        ("advance", PUBLISH, "written", "tokens"),
        ("advance", OUTPUT, "delivered", "tokens"),
    ):
        goal = both(
            *(
                implies(
                    outcome.condition,
                    _after(p, outcome, field)
                    == p.state.declared(
                        "lanes",
                        lane,
                        tokens=p.state.value("r", field),
                        more=p.state.value("ask", fact),
                    ),
                )
                for outcome in _outcomes(p, event)
            )
        )
        yield condition(f"{RequestEvent(event).name.lower()} advances {field}", lane, goal)
    s = p.state
    for words, lane, goal in (
        ("capacity is blocks times their size", "capacity",
         s.declared("lanes", "capacity", covered=s.r.covered, block_size=s.e.block_size)
         == s.r.covered * s.e.block_size),
        ("a sequence is its prompt and what was delivered", "length",
         s.declared("lanes", "length", prompt=s.r.prompt, delivered=s.r.delivered)
         == s.r.prompt + s.r.delivered),
        ("a turn's tokens are those delivered since it began", "turn_tokens",
         s.declared("lanes", "turn_tokens", delivered=s.r.delivered, turn_start=s.r.turn_start)
         == s.r.delivered - s.r.turn_start),
    ):  # fmt: skip
        yield condition(words, lane, goal)
    yield condition("launch goes only where the hold need not grow", "must_grow", _must_grow(p))
    yield condition("output counts only if it is fresh", "fresh_output", _fresh(p))
    yield condition("letting go hands over exactly what is in flight", "in_flight", _in_flight(p))
    for lane, function in (("acquired", "acquire"), ("released", "release")):
        effect = p.running.effect("blocks", function)
        counted = p.state.declared("lanes", lane, count=p.state.b.count, times=terms.number(1))
        yield condition(
            f"{function} of one hold is {lane} once",
            lane,
            effect.writes.get("b.count", p.state.b.count) == counted,
        )
        twice = p.state.declared("lanes", lane, count=counted, times=terms.number(1))
        bulk = p.state.declared("lanes", lane, count=p.state.b.count, times=terms.number(2))
        yield condition(f"{lane} twice is {lane} of two", lane, twice == bulk)


def _outcomes(p: Proofs, event: int) -> list[Outcome]:
    return [
        outcome
        for state in RequestState
        for outcome in p.running.cell("request", int(state), event)
        if outcome.answer == GO
    ]


def _after(p: Proofs, outcome: Outcome, field: str) -> Term:
    return outcome.writes.get(f"r.{field}", p.state.value("r", field))


def _must_grow(p: Proofs) -> BoolTerm:
    s = p.state
    grows = s.declared(
        "lanes", "must_grow", computed=s.r.computed, scheduled=s.ask.tokens, covered=s.r.covered,
        block_size=s.e.block_size,
    )  # fmt: skip
    full = s.r.computed + s.ask.tokens > s.declared(
        "lanes", "capacity", covered=s.r.covered, block_size=s.e.block_size
    )
    goes = either(
        *(
            each.condition
            for each in p.running.cell("request", RUNNING, LAUNCH)
            if each.answer == GO
        )
    )
    return both(implies(goes, no(grows)), same(grows, full))


def _fresh(p: Proofs) -> BoolTerm:
    s = p.state
    fresh = s.declared("lanes", "fresh_output", step=s.ask.step, stale_step=s.r.stale_step)
    return both(*(implies(each.condition, fresh) for each in _outcomes(p, OUTPUT)))


def _in_flight(p: Proofs) -> BoolTerm:
    s = p.state
    flying = s.declared("lanes", "in_flight", newest_step=s.r.newest_step, processed=s.e.processed)
    goals = []
    for event in RequestEvent:
        for outcome in _outcomes(p, int(event)):
            if outcome.commands & HAND_OVER:
                goals.append(implies(outcome.condition, flying))
            if outcome.commands & RELEASE:
                goals.append(implies(outcome.condition, no(flying)))
    return both(*goals)
