"""Phrases that several obligations use: what they say of the block, in one place."""

from __future__ import annotations

from ...statemachine.states import CANCELLING, FAILED, FENCED, IN_FLIGHT, LANDED, QUEUED
from ..symbolic.terms import BoolTerm, IntTerm
from .logic import both, no, one, total
from .state import View
from .system import Transition

#: States of a transfer that has not ended.
OPEN = (QUEUED, IN_FLIGHT, CANCELLING)
#: States in which it has, and its hold with it.
ENDED = (LANDED, FAILED, FENCED)


def nobody_holds(s: View) -> BoolTerm:
    """No hold of any kind covers the block."""
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


def nobody_touches(s: View) -> BoolTerm:
    """Neither a launched step nor a worker may still touch the block."""
    return both(s.place.touching <= s.e.processed, no(s.copy.working))


def holds(s: View) -> IntTerm:
    """How many holds cover the block."""
    second = s.at(request="2", transfer="2")
    named = [
        one(each)
        for view in (s.at(), second)
        for each in (view.held.by_request, view.held.by_step, view.held.by_transfer)
    ]
    return total([*named, s.others.request, s.others.step, s.others.load, s.others.store])


def is_reset(transition: Transition) -> bool:
    """A reset that is decided."""
    return transition.action == "reset"


def is_reclaim(transition: Transition) -> bool:
    """A request that is reclaimed."""
    return transition.action == "reclaim"
