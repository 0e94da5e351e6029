"""The promises of the transfer's and the engine's events."""

from __future__ import annotations

from collections.abc import Mapping

from ...statemachine.answers import IGNORE, NOT_NOW, QUARANTINE, RELEASE, TAKE
from ...statemachine.states import (
    ABORT_ALL,
    ABSENT,
    ACTIVE,
    CACHE,
    CANCELLING,
    DRAINING,
    FAILED,
    FENCED,
    IN_FLIGHT,
    KEEP_ALL,
    LANDED,
    LOAD,
    PAUSED,
    PAUSING,
    QUARANTINED,
    QUEUED,
    SLEEPING,
    STOPPED,
    STORE,
    WAIT_FOR_ALL,
    WAKING,
    WEIGHTS,
    EngineEvent,
    TransferEvent,
)
from ..symbolic import terms
from ..symbolic.terms import BoolTerm, Term
from .logic import among, both, either, no
from .promises import Case, Promise, Sets, never
from .state import View

T = TransferEvent
E = EngineEvent
ENDED = (LANDED, FAILED, FENCED)
WORKING = (IN_FLIGHT, CANCELLING)
KNOWN = (QUEUED, IN_FLIGHT, CANCELLING, LANDED, FAILED, FENCED, QUARANTINED)
MODES = (ACTIVE, PAUSING, PAUSED, SLEEPING, WAKING, DRAINING, STOPPED)
TAKEN_IN = (ACTIVE, PAUSING, PAUSED, SLEEPING, WAKING)
STEPPING = (ACTIVE, PAUSING, DRAINING)
ASLEEP = (SLEEPING, WAKING)
ENDING = (DRAINING, STOPPED)


def _released(s: View) -> Mapping[int, BoolTerm]:
    return {RELEASE: terms.TRUE}


def _known_kind(s: View) -> BoolTerm:
    return among(s.transfer_ask.kind, (LOAD, STORE))


def _may_start(s: View) -> BoolTerm:
    return both(among(s.e.mode, (ACTIVE, DRAINING)), s.e.cache_resident, no(s.e.pending_reset))


def _right_blocks(s: View) -> BoolTerm:
    """A load has its blocks for itself, a store reads published ones."""
    x = s.transfer_ask
    return either(both(x.kind == LOAD, x.unshared), both(x.kind == STORE, x.published))


def _set(**facts: int | bool) -> Sets:
    return lambda s: facts


# fmt: off
TRANSFER_PROMISES = (
    Promise(T.START, (
        Case((ABSENT,), QUEUED, lambda s: both(_known_kind(s), _may_start(s), _right_blocks(s)),
             lambda s: {"kind": s.transfer_ask.kind, "waiters": 0}, lambda s: {TAKE: terms.TRUE}),),
        rejects=lambda s: either(no(_known_kind(s)), both(_may_start(s), no(_right_blocks(s))))),
    Promise(T.BEGIN, (Case((QUEUED,), IN_FLIGHT),), IGNORE),
    Promise(T.JOIN, (
        Case((QUEUED, IN_FLIGHT), None, lambda s: s.t.kind == LOAD,
             lambda s: {"waiters": s.t.waiters + 1}),), NOT_NOW,
        rejects=lambda s: s.t.kind != LOAD),
    Promise(T.LEAVE, (
        Case(KNOWN, None, lambda s: s.t.waiters > 0, lambda s: {"waiters": s.t.waiters - 1}),),
        IGNORE, ignores=lambda s: s.t.waiters <= 0),
    Promise(T.LAND, (Case(WORKING, LANDED, commands=_released),), IGNORE),
    Promise(T.FAIL, (Case(WORKING, FAILED, commands=_released),), IGNORE),
    Promise(T.CANCEL, (
        Case((QUEUED,), FENCED, commands=_released), Case((IN_FLIGHT,), CANCELLING)), IGNORE),
    Promise(T.FENCE, (Case((CANCELLING, QUARANTINED), FENCED, commands=_released),), IGNORE),
    Promise(T.GIVE_UP, (
        Case((CANCELLING,), QUARANTINED, commands=lambda s: {QUARANTINE: terms.TRUE}),), IGNORE),
    Promise(T.LEASE_OVER, (
        Case((QUEUED,), FENCED, lambda s: s.transfer_ask.expired, commands=_released),
        Case((IN_FLIGHT,), CANCELLING, lambda s: s.transfer_ask.expired)), IGNORE),
    Promise(T.RETIRE, (
        Case(ENDED, ABSENT, lambda s: s.t.waiters <= 0, _set(kind=0)),
        Case((ABSENT,), None, never)), NOT_NOW, ignores=lambda s: s.t.state == ABSENT),
)
# fmt: on


def _memory(s: View) -> BoolTerm:
    return both(s.e.weights_resident, s.e.cache_resident)


def _steps(s: View) -> BoolTerm:
    return either(
        among(s.e.mode, (ACTIVE, DRAINING)),
        both(s.e.mode == PAUSING, s.e.pausing == WAIT_FOR_ALL),
    )


def _next(s: View) -> BoolTerm:
    return both(s.engine_ask.step == s.e.processed + 1, s.engine_ask.step <= s.e.launched)


def _pause_known(s: View) -> BoolTerm:
    return among(s.engine_ask.pausing, (ABORT_ALL, WAIT_FOR_ALL, KEEP_ALL))


def _level_known(s: View) -> BoolTerm:
    return among(s.engine_ask.level, (1, 2))


def _tags_known(s: View) -> BoolTerm:
    return among(s.engine_ask.tags, (WEIGHTS, CACHE, WEIGHTS + CACHE))


def _in_flight(s: View) -> BoolTerm:
    return s.e.launched > s.e.processed


def _idle(s: View) -> BoolTerm:
    return both(no(_in_flight(s)), either(s.e.pausing == KEEP_ALL, s.engine_ask.running <= 0))


def _may_sleep(s: View) -> BoolTerm:
    x = s.engine_ask
    return both(_level_known(s), no(_in_flight(s)), x.holders <= 0, s.e.quarantined <= 0,
                x.holds <= 0)  # fmt: skip


def _all_back(s: View) -> BoolTerm:
    return both(either(s.e.weights_resident, s.engine_ask.tags != CACHE),
                either(s.e.cache_resident, s.engine_ask.tags != WEIGHTS))  # fmt: skip


def _restored(s: View) -> Mapping[str, Term | int | bool]:
    return {"weights_resident": either(s.e.weights_resident, s.engine_ask.tags != CACHE),
            "cache_resident": either(s.e.cache_resident, s.engine_ask.tags != WEIGHTS)}  # fmt: skip


_UNPAUSED: Sets = _set(pausing=0, sleep_paused=False)

# fmt: off
ENGINE_PROMISES = (
    Promise(E.ADD, (Case(TAKEN_IN),)),
    Promise(E.CHUNK, (Case(TAKEN_IN),)),
    Promise(E.SIGNAL, (Case((*TAKEN_IN, DRAINING)),), IGNORE),
    Promise(E.LEASE, (Case((*TAKEN_IN, DRAINING)),), IGNORE),
    Promise(E.LAUNCH_STEP, (
        Case(STEPPING, None,
             lambda s: both(_steps(s), _memory(s),
                            s.e.launched - s.e.processed < s.e.steps_ahead),
             lambda s: {"launched": s.e.launched + 1}),), NOT_NOW),
    Promise(E.STEP_PROCESSED, (
        Case(MODES, None, _next, lambda s: {"processed": s.engine_ask.step}),),
        ignores=lambda s: no(_next(s))),
    Promise(E.PAUSE, (
        Case((ACTIVE,), PAUSING, _pause_known,
             lambda s: {"pausing": s.engine_ask.pausing, "sleep_paused": False}),
        Case((PAUSED, *ASLEEP), None, lambda s: both(_pause_known(s), s.e.sleep_paused),
             _set(sleep_paused=False)),
        Case((PAUSING,), None, never)),
        rejects=lambda s: either(no(_pause_known(s)), both(s.e.mode == PAUSING, no(both(
            s.engine_ask.pausing == s.e.pausing, no(s.e.sleep_paused))))),
        ignores=lambda s: both(_pause_known(s), no(s.e.sleep_paused), either(
            both(s.e.mode == PAUSING, s.engine_ask.pausing == s.e.pausing),
            among(s.e.mode, (PAUSED, *ASLEEP))))),
    Promise(E.PAUSE_REACHED, (Case((PAUSING,), PAUSED, _idle),), IGNORE),
    Promise(E.PAUSE_FAILED, (Case((PAUSING,), ACTIVE, sets=_UNPAUSED),), IGNORE),
    Promise(E.RESUME, (
        Case((PAUSED, PAUSING), ACTIVE, sets=_UNPAUSED), Case((ACTIVE,), None,
             never)), ignores=lambda s: s.e.mode == ACTIVE),
    Promise(E.SLEEP, (
        Case((ACTIVE,), PAUSING, lambda s: both(_level_known(s), _pause_known(s)),
             lambda s: {"pausing": s.engine_ask.pausing, "sleep_paused": True}),
        Case((PAUSED,), SLEEPING, _may_sleep,
             lambda s: {"sleep_level": s.engine_ask.level, "weights_resident": False,
                        "cache_resident": False}),
        Case((PAUSING, *ASLEEP), None, never)),
        rejects=lambda s: either(
            no(_level_known(s)), both(s.e.mode == ACTIVE, no(_pause_known(s))),
            both(among(s.e.mode, ASLEEP), s.engine_ask.level != s.e.sleep_level)),
        ignores=lambda s: both(among(s.e.mode, ASLEEP), _level_known(s),
                               s.engine_ask.level == s.e.sleep_level)),
    Promise(E.SLEEP_FAILED, (
        Case((PAUSING, PAUSED), ACTIVE, lambda s: s.e.sleep_paused, _UNPAUSED),), IGNORE,
        ignores=lambda s: no(s.e.sleep_paused)),
    Promise(E.WAKE, (
        Case((SLEEPING,), WAKING, _tags_known), Case((WAKING, ACTIVE, PAUSING, PAUSED), None,
             never)),
        rejects=lambda s: both(among(s.e.mode, ASLEEP), no(_tags_known(s))),
        ignores=lambda s: among(s.e.mode, (ACTIVE, PAUSING, PAUSED))),
    Promise(E.WOKE, (
        Case((WAKING,), SLEEPING, lambda s: both(_tags_known(s), no(_all_back(s))), _restored),
        Case((WAKING,), ACTIVE,
             lambda s: both(_tags_known(s), _all_back(s), s.e.sleep_paused),
             lambda s: {**_restored(s), "sleep_level": 0, "pausing": 0, "sleep_paused": False}),
        Case((WAKING,), PAUSED,
             lambda s: both(_tags_known(s), _all_back(s), no(s.e.sleep_paused)),
             lambda s: {**_restored(s), "sleep_level": 0})), IGNORE,
        rejects=lambda s: no(_tags_known(s))),
    Promise(E.WAKE_FAILED, (Case((WAKING,), SLEEPING),), IGNORE),
    Promise(E.RESET, (Case((*TAKEN_IN, DRAINING)),)),
    Promise(E.RESET_PENDING, (
        Case(TAKEN_IN, None, lambda s: no(s.e.pending_reset), _set(pending_reset=True)),),
        ignores=lambda s: s.e.pending_reset),
    Promise(E.RESET_DECIDED, (
        Case(TAKEN_IN, None, lambda s: s.e.pending_reset, _set(pending_reset=False)),), IGNORE,
        ignores=lambda s: no(s.e.pending_reset)),
    Promise(E.WEIGHTS_CHANGED, (
        Case((PAUSED, SLEEPING), None,
             lambda s: both(s.engine_ask.holds <= 0, no(_in_flight(s))),
             lambda s: {"epoch": s.e.epoch + 1}),)),
    Promise(E.SHUTDOWN, (Case(TAKEN_IN, DRAINING,
             sets=_set(pending_reset=False, pausing=0, sleep_paused=False)),), IGNORE),
    Promise(E.DRAINED, (
        Case((DRAINING,), STOPPED,
             lambda s: both(s.engine_ask.live <= 0, s.engine_ask.holds <= 0, no(_in_flight(s)))),),
        IGNORE),
)
# fmt: on
