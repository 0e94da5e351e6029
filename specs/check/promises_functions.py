"""The promises of the functions beside the tables: blocks, the reset, the policy, the containers.

Each says what a function returns, and what every fact is worth afterwards that it may change, in
terms of its arguments and of the facts before: written down independently of the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import z3

from ...statemachine.answers import HAND_OVER, QUARANTINE, RELEASE, TAKE, TRIM
from ...statemachine.reset import CLIENT, DONE, ITSELF, NO_EVENT, NOTHING, PARTIAL, REFUSED
from ...statemachine.states import (
    CANCELLING,
    IN_BLOCKED,
    IN_FLIGHT,
    IN_RUNNING,
    IN_WAITING,
    NOWHERE,
    PREEMPT,
    PREEMPTED,
    QUEUED,
    RECLAIM,
    RUNNING,
    WAITING,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
)
from ..symbolic import terms
from ..symbolic.terms import BoolTerm, IntTerm, Term
from .logic import among, both, either, no, one
from .state import View


class Given:
    """The arguments that are no records, by the names of the parameters."""

    def __init__(self, arguments: Mapping[str, Term]) -> None:
        self._arguments = arguments

    def __getattr__(self, name: str) -> Term:
        return self._arguments[name]

    def has(self, command: int) -> BoolTerm:
        """The command is one of those given."""
        quotient: IntTerm = self.commands / terms.number(command)
        return quotient % terms.number(2) == 1


Returned = Callable[[Given, View], Term | None]
Facts = Callable[[Given, View], Mapping[str, Term | int | bool]]


@dataclass(frozen=True)
class FunctionPromise:
    """What one function returns, and which facts it sets, by `record.field`; all others stay."""

    module: str
    name: str
    returns: Returned = lambda x, s: None
    sets: Facts = lambda x, s: {}

    @property
    def key(self) -> tuple[str, str]:
        """Where the function is."""
        return self.module, self.name


def _if(condition: BoolTerm, then: int, otherwise: Term | int) -> Term:
    """A number, or another one."""
    other = otherwise if terms.is_term(otherwise) else terms.number(int(otherwise))
    return z3.If(condition, terms.number(int(then)), other)


# --- blocks ---------------------------------------------------------------------------------------


def _handed_out(s: View, fresh: BoolTerm) -> Mapping[str, Term]:
    """Where it is taken for new content, nothing is left of the old one."""
    return {
        "b.cached": both(s.b.cached, no(fresh)),
        "b.hashed_as": _if(fresh, 0, s.b.hashed_as),
        "b.content_of": _if(fresh, 0, s.b.content_of),
    }


def _forgotten(s: View, where: BoolTerm) -> Mapping[str, Term]:
    return {
        "b.cached": both(s.b.cached, no(where)),
        "b.hashed_as": _if(where, 0, s.b.hashed_as),
    }


def _obeyed_by_request(x: Given, s: View) -> Mapping[str, Term]:
    """Taken once; then cut, released or handed over, of which the first that is given counts."""
    taken = both(x.has(TAKE), x.wanted, no(s.held.by_request))
    held = either(s.held.by_request, taken)
    cut = both(held, x.has(TRIM), no(x.kept))
    ended = both(held, no(cut), x.has(RELEASE))
    handed = both(held, no(cut), no(ended), x.has(HAND_OVER))
    return {
        "held.by_request": both(held, no(cut), no(ended), no(handed)),
        "held.by_step": either(s.held.by_step, handed),
        "held.step": z3.If(handed, x.newest_step, s.held.step),
        "b.count": s.b.count + one(taken) - one(cut) - one(ended),
        **_handed_out(s, both(taken, x.fresh)),
    }


def _step_ended(x: Given, s: View) -> Mapping[str, Term]:
    ends = both(s.held.by_step, s.held.step == x.step)
    return {
        "held.by_step": both(s.held.by_step, no(ends)),
        "held.step": _if(ends, 0, s.held.step),
        "b.count": s.b.count - one(ends),
    }


def _obeyed_by_transfer(x: Given, s: View) -> Mapping[str, Term]:
    """Taken once; then ended, with its quarantine if it is in one, or put into quarantine once."""
    taken = both(x.has(TAKE), x.wanted, no(s.held.by_transfer))
    held = either(s.held.by_transfer, taken)
    ended = both(held, x.has(RELEASE))
    isolated = both(held, no(ended), x.has(QUARANTINE), no(s.held.in_quarantine))
    confirmed = both(ended, s.held.in_quarantine)
    written = either(s.b.being_written, both(taken, x.writes))
    return {
        "held.by_transfer": both(held, no(ended)),
        "held.in_quarantine": either(both(s.held.in_quarantine, no(ended)), isolated),
        "b.being_written": both(written, no(both(ended, x.writes))),
        "b.quarantined": s.b.quarantined - one(confirmed) + one(isolated),
        "b.count": s.b.count + one(taken) - one(ended),
        **_forgotten(s, isolated),
    }


def _complete(s: View) -> BoolTerm:
    """Not a hit yet, and nobody may still write to it."""
    return both(no(s.b.cached), no(s.b.being_written), s.b.quarantined == 0)


BLOCKS = (
    FunctionPromise("blocks", "acquire", sets=lambda x, s: {"b.count": s.b.count + 1}),
    FunctionPromise("blocks", "release", sets=lambda x, s: {"b.count": s.b.count - 1}),
    FunctionPromise(
        "blocks", "may_hand_out", lambda x, s: both(s.b.count == 0, s.b.quarantined == 0)
    ),
    FunctionPromise(
        "blocks",
        "hand_out",
        sets=lambda x, s: {"b.count": s.b.count + 1, **_handed_out(s, terms.TRUE)},
    ),
    FunctionPromise("blocks", "fill", sets=lambda x, s: {"b.content_of": x.prefix}),
    FunctionPromise("blocks", "may_hit", lambda x, s: both(s.b.cached, s.b.quarantined == 0)),
    FunctionPromise(
        "blocks",
        "publish",
        sets=lambda x, s: {
            "b.cached": either(s.b.cached, _complete(s)),
            "b.hashed_as": z3.If(_complete(s), x.prefix, s.b.hashed_as),
        },
    ),
    FunctionPromise("blocks", "may_drop", lambda x, s: s.b.count == 0),
    FunctionPromise("blocks", "drop", sets=lambda x, s: _forgotten(s, s.b.count == 0)),
    FunctionPromise(
        "blocks",
        "quarantine",
        sets=lambda x, s: {
            "b.quarantined": s.b.quarantined + 1,
            **_forgotten(s, terms.TRUE),
        },
    ),
    FunctionPromise(
        "blocks", "end_quarantine", sets=lambda x, s: {"b.quarantined": s.b.quarantined - 1}
    ),
    FunctionPromise("blocks", "request_command", sets=_obeyed_by_request),
    FunctionPromise("blocks", "step_processed", sets=_step_ended),
    FunctionPromise("blocks", "transfer_command", sets=_obeyed_by_transfer),
)

# --- the reset ------------------------------------------------------------------------------------

_LET_GO = (RUNNING, WAITING, WAITING_FOR_STREAMING_REQ)


def _forced(state: Term) -> Term:
    reclaimed = among(state, (WAITING, WAITING_FOR_STREAMING_REQ))
    return _if(state == RUNNING, PREEMPT, _if(reclaimed, RECLAIM, NO_EVENT))


def _ends_by(state: Term) -> Term:
    itself = among(state, (RUNNING, WAITING, WAITING_FOR_REMOTE_KVS))
    return _if(state == WAITING_FOR_STREAMING_REQ, CLIENT, _if(itself, ITSELF, NOTHING))


RESET = (
    FunctionPromise("reset", "forced_event", lambda x, s: _forced(x.state)),
    FunctionPromise(
        "reset",
        "sent_event",
        lambda x, s: _if(either(x.refusing > 0, no(x.resident)), NO_EVENT, _forced(x.state)),
    ),
    FunctionPromise("reset", "drops_prefixes", lambda x, s: x.refusing == 0),
    FunctionPromise(
        "reset",
        "request_refuses",
        lambda x, s: both(x.resident, no(both(x.force, among(x.state, _LET_GO)))),
    ),
    FunctionPromise(
        "reset", "transfer_refuses", lambda x, s: among(x.state, (QUEUED, IN_FLIGHT, CANCELLING))
    ),
    FunctionPromise("reset", "request_ends_by", lambda x, s: _ends_by(x.state)),
    FunctionPromise(
        "reset",
        "outcome",
        lambda x, s: _if(
            x.refusing > 0, REFUSED, _if(both(x.tier_asked, no(x.tier_cleared)), PARTIAL, DONE)
        ),
    ),
    FunctionPromise("reset", "clears_tier", lambda x, s: both(x.tier_asked, x.refusing == 0)),
    FunctionPromise(
        "reset",
        "may_wait",
        lambda x, s: both(x.wait_asked, x.refusing > 0, x.refusing_by_client == 0),
    ),
)

# --- the policy -----------------------------------------------------------------------------------


def _ahead(priority: Term, arrival: Term, of_priority: Term, of_arrival: Term) -> BoolTerm:
    """Lower priority value first, then whoever came first."""
    return either(priority < of_priority, both(priority == of_priority, arrival < of_arrival))


def _for_ahead(x: Given) -> BoolTerm:
    return _ahead(x.for_priority, x.for_arrival, x.priority, x.arrival)


POLICY = (
    FunctionPromise(
        "policy",
        "ahead",
        lambda x, s: _ahead(x.priority, x.arrival, x.other_priority, x.other_arrival),
    ),
    FunctionPromise("policy", "may_be_victim", lambda x, s: _for_ahead(x)),
    FunctionPromise(
        "policy",
        "makes_way_for_waiting",
        lambda x, s: both(_for_ahead(x), either(x.stalled, x.priority > x.for_priority)),
    ),
    FunctionPromise("policy", "must_reclaim_parked", lambda x, s: x.free < x.needed),
    FunctionPromise(
        "policy", "must_reclaim_waiting", lambda x, s: both(x.free < x.needed, _for_ahead(x))
    ),
    FunctionPromise("policy", "must_reclaim_held_back", lambda x, s: x.free < x.needed),
    FunctionPromise("policy", "enough", lambda x, s: x.free + x.promised >= x.needed),
    FunctionPromise("policy", "leaves_room_to_grow", lambda x, s: x.free - x.running >= x.needed),
    FunctionPromise("policy", "may_load", lambda x, s: x.loads_failed < x.loads_limit),
    FunctionPromise(
        "policy",
        "never_fits",
        lambda x, s: x.tokens > (x.pool_blocks - x.quarantined) * x.block_size,
    ),
    FunctionPromise("policy", "cancel_unwaited", lambda x, s: both(x.kind_is_load, x.waiters == 0)),
)

# --- containers -----------------------------------------------------------------------------------

_BLOCKED = (
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
)

CONTAINERS = (
    FunctionPromise(
        "request",
        "container",
        lambda x, s: _if(
            among(x.state, (WAITING, PREEMPTED)),
            IN_WAITING,
            _if(
                x.state == RUNNING,
                IN_RUNNING,
                _if(among(x.state, _BLOCKED), IN_BLOCKED, NOWHERE),
            ),
        ),
    ),
)

FUNCTION_PROMISES = (*BLOCKS, *RESET, *POLICY, *CONTAINERS)
