"""What the request's events do, one by one, where the design makes a promise."""

import random

import pytest
from kvproof.statemachine import (
    REQUEST,
    Answer,
    Ask,
    EngineFacts,
    RequestFacts,
    RequestState,
    answer_of,
)
from kvproof.statemachine import RequestEvent as E
from kvproof.statemachine.answers import HAND_OVER, MAKE_HITS, RELEASE, STOP_WAITING, TRIM, WAIT
from kvproof.statemachine.states import (
    ACTIVE,
    DRAINING,
    FINISHED,
    FINISHED_ABORTED,
    FINISHED_ERROR,
    FINISHED_IGNORED,
    FINISHED_LENGTH_CAPPED,
    FINISHED_STOPPED,
    KEEP_ALL,
    PAUSED,
    PAUSING,
    PREEMPTED,
    RUNNING,
    UNKNOWN,
    WAIT_FOR_ALL,
    WAITING,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
)

from .records import random_record

PARKED = WAITING_FOR_STREAMING_REQ
LOADING = WAITING_FOR_REMOTE_KVS


def engine(**facts: int) -> EngineFacts:
    known = {
        "mode": ACTIVE, "weights_resident": 1, "cache_resident": 1, "block_size": 4,
        "pool_blocks": 10, "model_length": 64, "loads_limit": 3,
    }  # fmt: skip
    return EngineFacts(**{**known, **facts})


def fire(event: E, r: RequestFacts, e: EngineFacts | None = None, **ask: int) -> int:
    return REQUEST.fire(event, r, e or engine(), Ask(**ask))


def why(event: E, r: RequestFacts, e: EngineFacts | None = None, **ask: int) -> str:
    return REQUEST.row(fire(event, r, e, **ask)).why


def test_whatever_ends_residency_lets_go_in_the_same_way() -> None:
    chance = random.Random(2)
    ended = set()
    for _ in range(4000):
        event = E(chance.randrange(len(E)))
        state = chance.choice((RUNNING, WAITING, LOADING, PARKED))
        r = random_record(RequestFacts, chance, state=state, covered=2, waits_for=1)
        e = random_record(EngineFacts, chance, mode=ACTIVE)
        ask = random_record(Ask, chance, transfer=1)
        in_flight = r.newest_step > e.processed
        code = REQUEST.fire(event, r, e, ask)
        if r.covered > 0 or answer_of(code) != Answer.GO:
            assert not code & (RELEASE | HAND_OVER)
            continue
        ended.add((event.name, RequestState(state).name))
        assert bool(code & HAND_OVER) == in_flight
        assert bool(code & RELEASE) == (not in_flight)
        assert (r.computed, r.written, r.hashed, r.reserved) == (0, 0, 0, 0)
    assert {event for event, _ in ended} == {
        "PREEMPT", "STOP", "ABORT", "ERROR", "RECLAIM", "DEADLINE", "CLOSE_INPUT", "TRANSFER_FAILED"
    }  # fmt: skip


def test_a_request_that_can_never_fit_is_ignored_at_once() -> None:
    for tokens, end in ((40, WAITING), (41, FINISHED_IGNORED), (64, FINISHED_IGNORED)):
        r = RequestFacts()
        fire(E.ADD, r, tokens=tokens)
        assert r.state == end
    r = RequestFacts()
    fire(E.ADD, r, engine(pool_blocks=99), tokens=64, resumable=1)
    assert (r.state, r.input_open) == (FINISHED_IGNORED, False)


def test_an_id_that_is_live_or_remembered_is_not_taken_again() -> None:
    for state in RequestState:
        code = fire(E.ADD, RequestFacts(state=state), tokens=3)
        assert (answer_of(code) == Answer.REJECT) == (state != UNKNOWN)


def test_a_request_with_a_grammar_waits_for_it() -> None:
    r = RequestFacts()
    fire(E.ADD, r, tokens=3, grammar=1)
    assert r.state == WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    failed = r.copy()
    fire(E.GRAMMAR_READY, r)
    fire(E.GRAMMAR_FAILED, failed)
    assert (r.state, failed.state) == (WAITING, FINISHED_ERROR)


def test_growth_takes_no_hits_and_never_more_than_is_free() -> None:
    r = RequestFacts(state=RUNNING, covered=2, computed=7)
    assert answer_of(fire(E.GROW, r, blocks=2, hits=1, fresh=2, free=9)) == Answer.REJECT
    assert answer_of(fire(E.GROW, r, blocks=2, fresh=0, free=1)) == Answer.NOT_NOW
    assert (r.covered, r.computed) == (2, 7)
    assert answer_of(fire(E.GROW, r, blocks=2, fresh=2, free=2)) == Answer.GO
    assert (r.covered, r.computed) == (4, 7)


def test_an_admission_names_every_block_as_a_hit_or_as_fresh() -> None:
    r = RequestFacts(state=WAITING, prompt=9)
    assert answer_of(fire(E.ADMIT, r, blocks=3, hits=1, fresh=1, free=9)) == Answer.REJECT
    assert answer_of(fire(E.ADMIT, r, blocks=3, hits=1, fresh=2, free=9)) == Answer.GO
    assert (r.state, r.covered, r.computed, r.written, r.hashed) == (RUNNING, 3, 4, 4, 1)


def test_a_request_that_let_go_is_admitted_only_when_its_last_step_is_processed() -> None:
    r = RequestFacts(state=RUNNING, covered=2, computed=8, newest_step=5)
    assert fire(E.PREEMPT, r, engine(launched=5, processed=4), forced=1) & HAND_OVER
    ask = {"blocks": 2, "fresh": 2, "free": 9}
    assert (
        why(E.ADMIT, r, engine(launched=5, processed=4), **ask) == "its last step is not processed"
    )
    fire(E.ADMIT, r, engine(launched=5, processed=5), **ask)
    assert (r.state, r.stale_step) == (RUNNING, 5)
    assert why(E.OUTPUT, r, step=5, tokens=1) == "the step is stale"


def test_what_was_sampled_before_a_preemption_still_counts() -> None:
    r = RequestFacts(state=RUNNING, covered=2, computed=8, newest_step=5, delivered=3)
    e = engine(launched=5, processed=4)
    fire(E.PREEMPT, r, e, forced=1)
    fire(E.OUTPUT, r, e, step=5, tokens=1)
    assert (r.state, r.delivered) == (PREEMPTED, 4)


def test_a_preempted_request_can_stop_and_is_then_in_no_container() -> None:
    r = RequestFacts(state=PREEMPTED, newest_step=5, delivered=3)
    code = fire(E.STOP, r, step=5, reason=FINISHED_STOPPED)
    assert r.state == FINISHED_STOPPED
    assert not code & (RELEASE | HAND_OVER)


def test_a_turns_end_keeps_the_table_but_not_what_a_stale_step_computes() -> None:
    r = RequestFacts(
        state=RUNNING, covered=3, computed=10, written=9, hashed=2, newest_step=6, stale_step=1,
        resumable=1, input_open=1, prompt=7, delivered=3,
    )  # fmt: skip
    fire(E.STOP, r, engine(launched=6, processed=5), step=5)
    assert (r.state, r.covered, r.computed, r.hashed, r.stale_step) == (PARKED, 3, 9, 2, 6)
    assert why(E.OUTPUT, r, step=6, tokens=1) == "its turn or life is over"
    assert why(E.PUBLISH, r, engine(processed=6), step=6, tokens=1) == "the step is stale"


def session(**facts: int) -> RequestFacts:
    known = {"resumable": 1, "input_open": 1, "prompt": 5, "delivered": 4, "newest_step": 3}
    return RequestFacts(**{**known, **facts})


def test_a_queued_chunk_starts_the_next_turn_at_the_turns_end() -> None:
    r = session(state=RUNNING, covered=3)
    fire(E.CHUNK, r, tokens=2)
    fire(E.CHUNK, r, tokens=6)
    assert (r.queued_chunks, r.queued_tokens) == (2, 8)
    assert answer_of(fire(E.STOP, r, step=3, tokens=7)) == Answer.GO  # any first chunk that fits
    assert (r.state, r.prompt, r.turn_start, r.queued_chunks) == (WAITING, 12, 4, 1)
    r.state = RUNNING
    r.newest_step = 4
    assert answer_of(fire(E.STOP, r, step=4, tokens=3)) == Answer.REJECT
    assert answer_of(fire(E.STOP, r, step=4, tokens=1)) == Answer.GO
    assert (r.queued_chunks, r.queued_tokens) == (0, 0)


def test_a_queued_chunk_that_no_longer_fits_ends_the_session_as_too_long() -> None:
    r = session(state=RUNNING, covered=3, queued_chunks=1, queued_tokens=30, delivered=10)
    fire(E.STOP, r, step=3, tokens=30)
    assert (r.state, r.queued_chunks, r.input_open) == (FINISHED_LENGTH_CAPPED, 0, False)


def test_a_closed_session_finishes_what_it_has_and_then_stops() -> None:
    r = session(state=RUNNING, covered=3)
    fire(E.CHUNK, r, tokens=2)
    fire(E.CLOSE_INPUT, r)
    assert answer_of(fire(E.CHUNK, r, tokens=1)) == Answer.REJECT
    assert answer_of(fire(E.CLOSE_INPUT, r)) == Answer.IGNORE
    fire(E.STOP, r, step=3, tokens=2)
    assert r.state == WAITING
    r.state = RUNNING
    r.newest_step = 4
    fire(E.STOP, r, step=4, reason=FINISHED_LENGTH_CAPPED)
    assert r.state == FINISHED_LENGTH_CAPPED


def test_a_parked_session_that_is_closed_is_finished() -> None:
    r = session(state=PARKED, covered=3)
    assert fire(E.CLOSE_INPUT, r, engine(processed=3)) & RELEASE
    assert r.state == FINISHED_STOPPED


def test_a_session_at_its_limit_ends_although_chunks_are_queued() -> None:
    r = session(state=RUNNING, covered=3, queued_chunks=1, queued_tokens=2)
    fire(E.STOP, r, step=3, tokens=2, at_limit=1, reason=FINISHED_LENGTH_CAPPED)
    assert (r.state, r.queued_chunks) == (FINISHED_LENGTH_CAPPED, 0)


def test_a_reclaimed_session_keeps_its_tokens_and_needs_free_blocks_only() -> None:
    r = session(state=PARKED, covered=3, computed=8, written=8, hashed=2)
    assert fire(E.RECLAIM, r, engine(processed=3)) & RELEASE
    assert (r.state, r.computed, r.prompt, r.delivered) == (PARKED, 0, 5, 4)
    fire(E.CHUNK, r, tokens=2)
    fire(E.ADMIT, r, engine(processed=3), blocks=3, fresh=3, free=3)
    assert (r.state, r.prompt) == (RUNNING, 7)


def loading(**facts: int) -> RequestFacts:
    known = {"state": LOADING, "covered": 4, "computed": 4, "waits_for": 7, "reserved": 1}
    return RequestFacts(**{**known, **facts})


def test_an_admission_to_load_waits_and_reserves_room_to_run() -> None:
    r = RequestFacts(state=WAITING, prompt=18)
    ask = {
        "blocks": 4, "hits": 1, "fresh": 3, "free": 4, "reserve": 1, "transfer": 7, "joinable": 1,
        "remote_tokens": 16,
    }  # fmt: skip
    assert why(E.ADMIT_REMOTE, r, **{**ask, "free": 3}).startswith("too few blocks")
    assert fire(E.ADMIT_REMOTE, r, **ask) & WAIT
    assert r == loading(prompt=18, written=4, hashed=1)


def test_a_landed_load_leaves_its_waiter_resident_with_its_room() -> None:
    r = loading()
    code = fire(E.TRANSFER_LANDED, r, transfer=7, tokens=16, blocks=4)
    assert (r.state, r.computed, r.hashed, r.waits_for, r.reserved) == (WAITING, 16, 4, 0, 1)
    assert code & STOP_WAITING
    assert code & MAKE_HITS


def test_a_failed_load_leaves_its_waiter_the_valid_prefix_only() -> None:
    r = loading()
    code = fire(E.TRANSFER_FAILED, r, transfer=7, blocks=2)
    assert (r.state, r.covered, r.computed, r.hashed) == (WAITING, 2, 8, 2)
    assert (r.loads_failed, r.reserved, r.waits_for) == (1, 0, 0)
    assert code & TRIM


def test_a_failed_load_of_which_nothing_is_valid_lets_go() -> None:
    r = loading()
    assert fire(E.TRANSFER_FAILED, r, transfer=7, blocks=0) & RELEASE
    assert (r.state, r.covered, r.computed) == (WAITING, 0, 0)


def test_after_the_limit_of_failed_loads_only_recomputing_is_allowed() -> None:
    r = loading(loads_failed=2, prompt=18)
    fire(E.TRANSFER_FAILED, r, transfer=7, blocks=0)
    ask = {"blocks": 4, "fresh": 4, "free": 9, "transfer": 8, "joinable": 1, "remote_tokens": 16}
    assert why(E.ADMIT_REMOTE, r, **ask) == "too many loads failed for it: recompute"
    assert answer_of(fire(E.ADMIT, r, blocks=4, fresh=4, free=9)) == Answer.GO


def test_a_load_that_takes_too_long_is_given_up_for_good() -> None:
    r = loading(prompt=18)
    code = fire(E.DEADLINE, r, expired=1)
    assert (r.state, r.covered, r.loads_failed) == (WAITING, 0, 3)
    assert code & RELEASE
    assert code & STOP_WAITING


def test_an_abort_while_loading_leaves_the_transfer_to_itself() -> None:
    r = loading()
    code = fire(E.ABORT, r)
    assert (r.state, r.waits_for) == (FINISHED_ABORTED, 0)
    assert code & RELEASE
    assert code & STOP_WAITING


@pytest.mark.parametrize("mode", [PAUSING, PAUSED])
@pytest.mark.parametrize("state", [WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR, PARKED])
def test_the_deadlines_of_clients_stand_still_while_paused(mode: int, state: int) -> None:
    r = RequestFacts(state=state)
    assert answer_of(fire(E.DEADLINE, r, engine(mode=mode), expired=1)) == Answer.NOT_NOW
    assert answer_of(fire(E.DEADLINE, r, engine(mode=DRAINING), expired=1)) == Answer.GO


def test_the_deadline_of_a_load_runs_while_paused() -> None:
    assert answer_of(fire(E.DEADLINE, loading(), engine(mode=PAUSED), expired=1)) == Answer.GO


def test_a_pause_that_waits_for_all_admits_what_was_preempted_and_nothing_new() -> None:
    ask = {"blocks": 2, "fresh": 2, "free": 9}
    for pausing, goes in ((WAIT_FOR_ALL, Answer.GO), (KEEP_ALL, Answer.NOT_NOW)):
        e = engine(mode=PAUSING, pausing=pausing)
        assert answer_of(fire(E.ADMIT, RequestFacts(state=PREEMPTED), e, **ask)) == goes
        assert answer_of(fire(E.ADMIT, RequestFacts(state=WAITING), e, **ask)) == Answer.NOT_NOW


@pytest.mark.parametrize("asleep", ["weights_resident", "cache_resident"])
def test_nothing_is_admitted_or_launched_while_memory_is_asleep(asleep: str) -> None:
    e = engine(mode=DRAINING, launched=1, **{asleep: 0})
    waiting = RequestFacts(state=WAITING, prompt=9)
    assert why(E.ADMIT, waiting, e, blocks=2, fresh=2, free=9) == "weights or cache are asleep"
    running = RequestFacts(state=RUNNING, covered=2)
    assert why(E.LAUNCH, running, e, step=1, tokens=1) == "weights or cache are asleep"


def test_a_finished_id_is_forgotten_only_when_nothing_of_it_is_left() -> None:
    for state in FINISHED:
        r = RequestFacts(state=state, newest_step=4, prompt=5, delivered=2, loads_failed=1)
        assert answer_of(fire(E.FORGET, r, engine(processed=4), idle=0)) == Answer.NOT_NOW
        assert answer_of(fire(E.FORGET, r, engine(processed=3), idle=1)) == Answer.NOT_NOW
        fire(E.FORGET, r, engine(processed=4), idle=1)
        assert r == RequestFacts()
