"""The promises of the request's events."""

from __future__ import annotations

from collections.abc import Mapping

from ...statemachine.answers import (
    HAND_OVER,
    IGNORE,
    MAKE_HITS,
    RELEASE,
    STOP_WAITING,
    TAKE,
    TRIM,
    WAIT,
)
from ...statemachine.states import (
    ACTIVE,
    DRAINING,
    FINISHED,
    FINISHED_ABORTED,
    FINISHED_ERROR,
    FINISHED_IGNORED,
    FINISHED_LENGTH_CAPPED,
    FINISHED_REPETITION,
    FINISHED_STOPPED,
    LIVE,
    PAUSED,
    PAUSING,
    PREEMPTED,
    RUNNING,
    SLEEPING,
    UNKNOWN,
    WAIT_FOR_ALL,
    WAITING,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
    WAKING,
    RequestEvent,
)
from ..symbolic import terms
from ..symbolic.terms import BoolTerm, IntTerm, Term
from .logic import among, both, either, no
from .promises import Case, Promise, Sets, never
from .state import View

E = RequestEvent
ADMISSIBLE = (WAITING, PREEMPTED)
COMPUTING = (RUNNING, PREEMPTED)
PARKED = WAITING_FOR_STREAMING_REQ
LOADING = WAITING_FOR_REMOTE_KVS
GRAMMAR = WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR

Facts = Mapping[str, Term | int | bool]

# --- what several promises say ---------------------------------------------------------------


def _lets_go(s: View) -> Facts:
    return {"covered": 0, "computed": 0, "written": 0, "hashed": 0, "reserved": 0}


def _ends_hold(s: View) -> Mapping[int, BoolTerm]:
    """Released, or handed to the newest step if that is in flight."""
    in_flight = s.r.newest_step > s.e.processed
    return {
        RELEASE: both(s.r.covered != 0, no(in_flight)),
        HAND_OVER: both(s.r.covered != 0, in_flight),
    }


def _drops_queue(s: View) -> Facts:
    return {"input_open": False, "queued_chunks": 0, "queued_tokens": 0}


def _finishes(s: View) -> Facts:
    return {**_lets_go(s), **_drops_queue(s), "waits_for": 0}


def _ends_all(s: View) -> Mapping[int, BoolTerm]:
    return {**_ends_hold(s), STOP_WAITING: s.r.waits_for != 0}


def _stops(s: View) -> Facts:
    return {**_finishes(s), "stale_step": s.r.newest_step}


def _usable(s: View) -> IntTerm:
    """Tokens that the whole pool can hold, quarantine apart."""
    return (s.e.pool_blocks - s.e.quarantined) * s.e.block_size


def _works(s: View) -> BoolTerm:
    return among(s.e.mode, (ACTIVE, DRAINING))


def _goes_on(s: View) -> BoolTerm:
    return either(_works(s), both(s.e.mode == PAUSING, s.e.pausing == WAIT_FOR_ALL))


def _memory(s: View) -> BoolTerm:
    return both(s.e.weights_resident, s.e.cache_resident)


def _counts(s: View) -> BoolTerm:
    """The step is one of the request's, and not stale."""
    return both(s.ask.step > s.r.stale_step, s.ask.step <= s.r.newest_step)


def _consistent(s: View) -> BoolTerm:
    """The blocks asked for do not contradict each other."""
    x = s.ask
    return both(
        x.blocks >= 0, x.hits >= 0, x.hits <= x.blocks, x.fresh >= 0, x.fresh <= x.blocks,
        x.reserve >= 0, s.r.covered + x.blocks > 0, either(s.r.covered == 0, x.hits == 0),
    )  # fmt: skip


def _takes(s: View) -> Facts:
    """Its hold grows by the blocks asked for; hits count as computed."""
    hits = s.ask.hits > 0

    def hit(value: IntTerm, otherwise: IntTerm) -> IntTerm:
        return terms.choice(hits, value, otherwise)

    tokens = s.ask.hits * s.e.block_size
    return {
        "covered": s.r.covered + s.ask.blocks,
        "computed": hit(tokens, s.r.computed),
        "written": hit(tokens, s.r.written),
        "hashed": hit(s.ask.hits, s.r.hashed),
    }


def _new_hold(s: View) -> Facts:
    """What was in flight before a new hold is stale."""
    return {
        "stale_step": terms.choice(s.r.covered == 0, s.r.newest_step, s.r.stale_step),
        **_takes(s),
    }


def _taking(s: View) -> Mapping[int, BoolTerm]:
    return {TAKE: terms.TRUE}


# --- the promises -----------------------------------------------------------------------------


def _prompt_fits(s: View) -> BoolTerm:
    return both(s.ask.tokens < s.e.model_length, s.ask.tokens <= _usable(s))


def _begins(s: View) -> Facts:
    return {
        "prompt": s.ask.tokens, "resumable": s.ask.resumable, "input_open": s.ask.resumable,
        "priority": s.ask.priority, "arrival": s.ask.arrival,
    }  # fmt: skip


def _admitted(s: View) -> BoolTerm:
    return both(
        _consistent(s), s.ask.blocks <= s.ask.hits + s.ask.fresh, _memory(s),
        either(_works(s), both(s.r.state == PREEMPTED, _goes_on(s))),
        either(s.r.covered != 0, both(no(s.e.pending_reset), s.r.newest_step <= s.e.processed)),
        s.ask.fresh <= s.ask.free,
    )  # fmt: skip


def _loads(s: View) -> BoolTerm:
    return both(
        _consistent(s), s.ask.blocks > 0, s.ask.transfer > 0, _works(s), _memory(s),
        no(s.e.pending_reset), s.r.newest_step <= s.e.processed,
        s.r.loads_failed < s.e.loads_limit, s.ask.remote_tokens > s.r.computed,
        s.ask.remote_tokens > s.ask.hits * s.e.block_size, s.ask.joinable,
        s.ask.fresh + s.ask.reserve <= s.ask.free,
    )  # fmt: skip


def _spare(s: View) -> BoolTerm:
    return both(s.ask.blocks > 0, s.ask.blocks < s.r.covered,
                s.r.computed <= s.ask.blocks * s.e.block_size)  # fmt: skip


def _this_step(s: View) -> BoolTerm:
    return both(s.ask.step == s.e.launched, s.ask.step > s.r.newest_step,
                s.ask.step > s.e.processed)  # fmt: skip


def _is_written(s: View) -> BoolTerm:
    return both(
        s.ask.step <= s.e.processed, s.ask.tokens > 0, s.r.written + s.ask.tokens <= s.r.computed,
        s.ask.blocks >= s.r.hashed, s.ask.blocks * s.e.block_size <= s.r.written + s.ask.tokens,
    )  # fmt: skip


def _its_transfer(s: View) -> BoolTerm:
    return both(s.ask.transfer > 0, s.r.waits_for == s.ask.transfer)


def _landing(s: View) -> BoolTerm:
    return both(
        s.ask.tokens >= s.r.computed, s.ask.tokens <= s.r.covered * s.e.block_size,
        s.ask.blocks >= s.r.hashed, s.ask.blocks * s.e.block_size <= s.ask.tokens,
    )  # fmt: skip


def _within_hold(s: View) -> BoolTerm:
    return both(s.ask.blocks >= 0, s.ask.blocks <= s.r.covered)


def _falls_back(s: View) -> Facts:
    """To the valid prefix, which is nothing if no block is valid."""
    tokens = s.ask.blocks * s.e.block_size
    return {
        "loads_failed": s.r.loads_failed + 1, "reserved": 0, "waits_for": 0,
        "computed": terms.choice(s.ask.blocks == 0, terms.number(0), tokens),
        "written": terms.choice(s.ask.blocks == 0, terms.number(0), tokens),
        "hashed": s.ask.blocks, "covered": s.ask.blocks,
    }  # fmt: skip


def _cut(s: View) -> Mapping[int, BoolTerm]:
    kept = s.ask.blocks != 0
    return {
        **{command: both(no(kept), when) for command, when in _ends_hold(s).items()},
        TRIM: both(kept, s.ask.blocks < s.r.covered),
        MAKE_HITS: kept,
        STOP_WAITING: s.r.waits_for != 0,
    }


def _over(s: View) -> BoolTerm:
    """No further turn can come."""
    return either(no(s.r.resumable), both(no(s.r.input_open), s.r.queued_chunks == 0),
                  s.ask.at_limit)  # fmt: skip


def _queued(s: View) -> BoolTerm:
    return s.r.queued_chunks > 0


def _first_queued(s: View) -> BoolTerm:
    return both(
        s.ask.tokens > 0, s.ask.tokens + s.r.queued_chunks - 1 <= s.r.queued_tokens,
        either(s.r.queued_chunks > 1, s.ask.tokens == s.r.queued_tokens),
    )  # fmt: skip


def _fits_with(s: View, tokens: IntTerm) -> BoolTerm:
    known = s.r.prompt + s.r.delivered
    return both(known + tokens < s.e.model_length, known + tokens <= _usable(s))


def _turn_ends(s: View) -> Facts:
    """The table stays; what is in flight is stale, and no longer counts as computed."""
    return {"stale_step": s.r.newest_step, "computed": s.r.written}


def _next_turn(s: View) -> Facts:
    return {
        **_turn_ends(s), "prompt": s.r.prompt + s.ask.tokens, "turn_start": s.r.delivered,
        "queued_chunks": s.r.queued_chunks - 1, "queued_tokens": s.r.queued_tokens - s.ask.tokens,
    }  # fmt: skip


def _chunk_taken(s: View) -> BoolTerm:
    return both(s.r.resumable, s.r.input_open, s.ask.tokens > 0,
                _fits_with(s, s.r.queued_tokens + s.ask.tokens))  # fmt: skip


def _clock_runs(s: View) -> BoolTerm:
    return no(among(s.e.mode, (PAUSING, PAUSED, SLEEPING, WAKING)))


def _set(**facts: int | bool) -> Sets:
    return lambda s: facts


_UNPARKED = tuple(state for state in LIVE if state != PARKED)
_BLANK: Sets = _set(
    newest_step=0, stale_step=0, prompt=0, delivered=0, turn_start=0, loads_failed=0,
    resumable=False, priority=0, arrival=0,
)  # fmt: skip

# fmt: off
PROMISES = (
    Promise(E.ADD, (
        Case((UNKNOWN,), FINISHED_IGNORED, lambda s: both(s.ask.tokens > 0, no(_prompt_fits(s))),
             lambda s: {**_begins(s), **_drops_queue(s)}),
        Case((UNKNOWN,), GRAMMAR,
             lambda s: both(s.ask.tokens > 0, _prompt_fits(s), s.ask.grammar), _begins),
        Case((UNKNOWN,), WAITING,
             lambda s: both(s.ask.tokens > 0, _prompt_fits(s), no(s.ask.grammar)), _begins)),
        rejects=lambda s: s.ask.tokens <= 0),
    Promise(E.GRAMMAR_READY, (Case((GRAMMAR,), WAITING),), IGNORE),
    Promise(E.GRAMMAR_FAILED, (
        Case((GRAMMAR,), FINISHED_ERROR, sets=_finishes, commands=_ends_all),), IGNORE),
    Promise(E.ADMIT, (
        Case(ADMISSIBLE, RUNNING, _admitted, lambda s: {**_new_hold(s), "reserved": 0}, _taking),),
        rejects=lambda s: no(both(_consistent(s), s.ask.blocks <= s.ask.hits + s.ask.fresh))),
    Promise(E.ADMIT_REMOTE, (
        Case(ADMISSIBLE, LOADING, _loads,
             lambda s: {**_new_hold(s), "waits_for": s.ask.transfer, "reserved": s.ask.reserve},
             lambda s: {TAKE: terms.TRUE, WAIT: terms.TRUE}),),
        rejects=lambda s: no(both(_consistent(s), s.ask.blocks > 0, s.ask.transfer > 0))),
    Promise(E.GROW, (
        Case((RUNNING,), None,
             lambda s: both(s.ask.blocks > 0, s.ask.hits == 0, _goes_on(s),
                            s.ask.blocks <= s.ask.free),
             lambda s: {"covered": s.r.covered + s.ask.blocks}, _taking),),
        rejects=lambda s: no(both(s.ask.blocks > 0, s.ask.hits == 0))),
    Promise(E.TRIM, (
        Case((RUNNING,), None, lambda s: both(_spare(s), s.r.newest_step <= s.e.processed),
             lambda s: {"covered": s.ask.blocks}, lambda s: {TRIM: terms.TRUE}),),
        rejects=lambda s: no(_spare(s))),
    Promise(E.LAUNCH, (
        Case((RUNNING,), None,
             lambda s: both(_this_step(s), s.ask.tokens > 0, _memory(s),
                            s.r.computed + s.ask.tokens <= s.r.covered * s.e.block_size),
             lambda s: {"newest_step": s.ask.step, "computed": s.r.computed + s.ask.tokens}),),
        rejects=lambda s: no(both(_this_step(s), s.ask.tokens > 0))),
    Promise(E.PUBLISH, (
        Case(LIVE, None, lambda s: both(s.r.covered > 0, _counts(s), _is_written(s)),
             lambda s: {"written": s.r.written + s.ask.tokens, "hashed": s.ask.blocks},
             lambda s: {MAKE_HITS: terms.TRUE}),), IGNORE,
        rejects=lambda s: both(s.r.covered > 0, _counts(s), no(_is_written(s))),
        ignores=lambda s: either(s.r.covered <= 0, no(_counts(s)))),
    Promise(E.TRANSFER_LANDED, (
        Case((LOADING,), WAITING, lambda s: both(_its_transfer(s), _landing(s)),
             lambda s: {"computed": s.ask.tokens, "written": s.ask.tokens,
                        "hashed": s.ask.blocks, "waits_for": 0},
             lambda s: {MAKE_HITS: terms.TRUE, STOP_WAITING: s.r.waits_for != 0}),), IGNORE,
        rejects=lambda s: both(_its_transfer(s), no(_landing(s))),
        ignores=lambda s: no(_its_transfer(s))),
    Promise(E.TRANSFER_FAILED, (
        Case((LOADING,), FINISHED_ERROR, lambda s: both(_its_transfer(s), s.ask.fatal),
             _finishes, _ends_all),
        Case((LOADING,), WAITING,
             lambda s: both(_its_transfer(s), no(s.ask.fatal), _within_hold(s)),
             _falls_back, _cut)), IGNORE,
        rejects=lambda s: both(_its_transfer(s), no(s.ask.fatal), no(_within_hold(s))),
        ignores=lambda s: no(_its_transfer(s))),
    Promise(E.OUTPUT, (
        Case(COMPUTING, None, lambda s: both(_counts(s), s.ask.tokens > 0),
             lambda s: {"delivered": s.r.delivered + s.ask.tokens}),), IGNORE,
        rejects=lambda s: both(_counts(s), s.ask.tokens <= 0),
        ignores=lambda s: no(_counts(s))),
    Promise(E.PREEMPT, (
        Case((RUNNING,), PREEMPTED, lambda s: either(s.ask.allowed, s.ask.forced),
             _lets_go, _ends_hold),)),
    Promise(E.STOP, (
        Case(COMPUTING, FINISHED_STOPPED,
             lambda s: both(_counts(s), _over(s), s.ask.reason == FINISHED_STOPPED),
             _stops, _ends_all),
        Case(COMPUTING, FINISHED_REPETITION,
             lambda s: both(_counts(s), _over(s), s.ask.reason == FINISHED_REPETITION),
             _stops, _ends_all),
        Case(COMPUTING, FINISHED_LENGTH_CAPPED,
             lambda s: both(_counts(s), either(
                 both(_over(s),
                      no(among(s.ask.reason, (FINISHED_STOPPED, FINISHED_REPETITION)))),
                 both(no(_over(s)), _queued(s), _first_queued(s),
                      no(_fits_with(s, s.ask.tokens))))),
             _stops, _ends_all),
        Case(COMPUTING, PARKED, lambda s: both(_counts(s), no(_over(s)), no(_queued(s))),
             _turn_ends),
        Case(COMPUTING, WAITING,
             lambda s: both(_counts(s), no(_over(s)), _queued(s), _first_queued(s),
                            _fits_with(s, s.ask.tokens)), _next_turn)), IGNORE,
        rejects=lambda s: both(_counts(s), no(_over(s)), _queued(s), no(_first_queued(s))),
        ignores=lambda s: no(_counts(s))),
    Promise(E.CHUNK, (
        Case((PARKED,), WAITING, _chunk_taken,
             lambda s: {"prompt": s.r.prompt + s.ask.tokens, "turn_start": s.r.delivered}),
        Case(_UNPARKED, None, _chunk_taken,
             lambda s: {"queued_chunks": s.r.queued_chunks + 1,
                        "queued_tokens": s.r.queued_tokens + s.ask.tokens})),
        rejects=lambda s: no(_chunk_taken(s))),
    Promise(E.CLOSE_INPUT, (
        Case((PARKED,), FINISHED_STOPPED, lambda s: both(s.r.resumable, s.r.input_open),
             _finishes, _ends_all),
        Case(_UNPARKED, None, lambda s: both(s.r.resumable, s.r.input_open),
             _set(input_open=False))), IGNORE,
        rejects=lambda s: no(s.r.resumable),
        ignores=lambda s: both(s.r.resumable, no(s.r.input_open))),
    Promise(E.RECLAIM, (
        Case((PARKED, WAITING), None, lambda s: s.r.covered > 0, _lets_go, _ends_hold),),
        ignores=lambda s: s.r.covered <= 0),
    Promise(E.ABORT, (
        Case(LIVE, FINISHED_ABORTED, sets=_finishes, commands=_ends_all),), IGNORE),
    Promise(E.ERROR, (
        Case(LIVE, FINISHED_ERROR, sets=_finishes, commands=_ends_all),), IGNORE),
    Promise(E.DEADLINE, (
        Case((GRAMMAR,), FINISHED_ERROR, lambda s: both(s.ask.expired, _clock_runs(s)),
             _finishes, _ends_all),
        Case((LOADING,), WAITING, lambda s: s.ask.expired,
             lambda s: {**_lets_go(s), "waits_for": 0, "loads_failed": s.e.loads_limit}, _ends_all),
        Case((PARKED,), FINISHED_ABORTED, lambda s: both(s.ask.expired, _clock_runs(s)),
             _finishes, _ends_all)), IGNORE),
    Promise(E.FORGET, (
        Case(FINISHED, UNKNOWN, lambda s: both(s.ask.idle, s.r.newest_step <= s.e.processed),
             _BLANK),
        Case((UNKNOWN,), None, never)), ignores=lambda s: s.r.state == UNKNOWN),
)
# fmt: on
