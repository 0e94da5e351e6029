"""What the transfer's and the engine's events do where the design makes a promise."""

import itertools

import pytest
from kvproof.statemachine import (
    ENGINE,
    TRANSFER,
    Answer,
    EngineAsk,
    EngineFacts,
    EngineMode,
    TransferAsk,
    TransferFacts,
    TransferState,
    answer_of,
)
from kvproof.statemachine import EngineEvent as E
from kvproof.statemachine import TransferEvent as T
from kvproof.statemachine.answers import QUARANTINE, RELEASE, TAKE
from kvproof.statemachine.states import (
    ABORT_ALL,
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
)


def engine(**facts: int) -> EngineFacts:
    return EngineFacts(
        **{"mode": ACTIVE, "weights_resident": 1, "cache_resident": 1, "steps_ahead": 2, **facts}
    )


def tell(event: T, t: TransferFacts, e: EngineFacts | None = None, **ask: int) -> int:
    return TRANSFER.fire(event, t, e or engine(), TransferAsk(**ask))


def ask(event: E, e: EngineFacts, **told: int) -> Answer:
    return Answer(answer_of(ENGINE.fire(event, e, EngineAsk(**told))))


# --- transfers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LOAD, STORE])
def test_a_transfer_holds_its_blocks_from_its_start_to_its_end(kind: int) -> None:
    t = TransferFacts()
    assert tell(T.START, t, kind=kind, published=1, unshared=1) & TAKE
    assert not tell(T.BEGIN, t) & RELEASE
    assert tell(T.LAND, t) & RELEASE
    assert (t.state, tell(T.LAND, t) & RELEASE) == (LANDED, 0)


def test_a_store_starts_on_published_blocks_only_and_a_load_on_its_own_fresh_ones() -> None:
    assert answer_of(tell(T.START, TransferFacts(), kind=STORE, unshared=1)) == Answer.REJECT
    assert answer_of(tell(T.START, TransferFacts(), kind=LOAD, published=1)) == Answer.REJECT
    assert answer_of(tell(T.START, TransferFacts(), kind=0, published=1)) == Answer.REJECT


@pytest.mark.parametrize("why", [{"mode": PAUSED}, {"cache_resident": 0}, {"pending_reset": 1}])
def test_no_transfer_starts_while_paused_asleep_or_before_a_pending_reset(
    why: dict[str, int],
) -> None:
    t = TransferFacts()
    code = tell(T.START, t, engine(**why), kind=STORE, published=1)
    assert (answer_of(code), t.state) == (Answer.NOT_NOW, 0)


def test_a_load_is_joined_until_it_is_cancelled() -> None:
    for state in TransferState:
        code = tell(T.JOIN, TransferFacts(state=state, kind=LOAD, waiters=1))
        joined = answer_of(code) == Answer.GO
        assert joined == (state in (QUEUED, IN_FLIGHT))


def test_nobody_waits_for_a_store() -> None:
    assert answer_of(tell(T.JOIN, TransferFacts(state=QUEUED, kind=STORE))) == Answer.REJECT


def test_what_never_began_is_fenced_at_once_and_what_began_is_asked_to_stop() -> None:
    for event, told in ((T.CANCEL, {}), (T.LEASE_OVER, {"expired": 1})):
        queued, working = TransferFacts(state=QUEUED), TransferFacts(state=IN_FLIGHT)
        assert tell(event, queued, **told) & RELEASE
        assert not tell(event, working, **told) & RELEASE
        assert (queued.state, working.state) == (FENCED, CANCELLING)


@pytest.mark.parametrize(
    ("event", "end", "command"),
    [
        (T.LAND, LANDED, RELEASE),
        (T.FAIL, FAILED, RELEASE),
        (T.FENCE, FENCED, RELEASE),
        (T.GIVE_UP, QUARANTINED, QUARANTINE),
    ],
)
def test_a_cancelled_transfer_ends_in_one_of_four_ways(event: T, end: int, command: int) -> None:
    t = TransferFacts(state=CANCELLING, kind=LOAD)
    assert tell(event, t) & (RELEASE | QUARANTINE) == command
    assert t.state == end


def test_quarantine_ends_by_its_confirmation_only() -> None:
    for event in (T.LAND, T.FAIL, T.CANCEL, T.GIVE_UP, T.LEASE_OVER, T.RETIRE):
        t = TransferFacts(state=QUARANTINED, kind=LOAD)
        assert answer_of(tell(event, t, expired=1)) in (Answer.IGNORE, Answer.NOT_NOW)
        assert t.state == QUARANTINED
    assert tell(T.FENCE, t) & RELEASE


def test_a_record_is_retired_when_nobody_waits_and_its_hold_has_ended() -> None:
    for state in TransferState:
        t = TransferFacts(state=state, kind=LOAD, waiters=1)
        assert answer_of(tell(T.RETIRE, t)) != Answer.GO
        tell(T.LEAVE, t)
        goes = answer_of(tell(T.RETIRE, t)) == Answer.GO
        assert goes == (state in (LANDED, FAILED, FENCED))


def test_signals_and_leases_are_processed_in_every_mode_but_the_last() -> None:
    for mode, event in itertools.product(EngineMode, (E.SIGNAL, E.LEASE)):
        assert (ask(event, engine(mode=mode)) is Answer.GO) == (mode != STOPPED)


# --- steps --------------------------------------------------------------------------------------


def test_steps_are_numbered_and_processed_in_order() -> None:
    e = engine()
    assert [ask(E.LAUNCH_STEP, e) for _ in range(3)] == [Answer.GO, Answer.GO, Answer.NOT_NOW]
    assert ask(E.STEP_PROCESSED, e, step=2) is Answer.IGNORE
    assert [ask(E.STEP_PROCESSED, e, step=n) for n in (1, 1, 2, 3)] == [
        Answer.GO,
        Answer.IGNORE,
        Answer.GO,
        Answer.IGNORE,
    ]


def test_no_step_starts_without_weights_and_cache_in_any_mode() -> None:
    for mode, weights, cache in itertools.product(EngineMode, (0, 1), (0, 1)):
        e = engine(mode=mode, pausing=WAIT_FOR_ALL, weights_resident=weights, cache_resident=cache)
        if ask(E.LAUNCH_STEP, e) is Answer.GO:
            assert (weights, cache) == (1, 1)
            assert mode in (ACTIVE, PAUSING, DRAINING)


# --- pause --------------------------------------------------------------------------------------


def test_a_pause_is_reached_when_nothing_is_in_flight_and_by_its_mode_nothing_runs() -> None:
    for pausing, in_flight, running in itertools.product(
        (ABORT_ALL, WAIT_FOR_ALL, KEEP_ALL), (0, 1), (0, 1)
    ):
        e = engine(launched=in_flight)
        assert ask(E.PAUSE, e, pausing=pausing) is Answer.GO
        reached = ask(E.PAUSE_REACHED, e, running=running) is Answer.GO
        assert reached == (in_flight == 0 and (pausing == KEEP_ALL or running == 0))
        assert e.mode == (PAUSED if reached else PAUSING)


def test_a_pause_that_fails_and_one_that_is_resumed_go_back_to_active() -> None:
    for event in (E.PAUSE_FAILED, E.RESUME):
        e = engine()
        before = e.copy()
        ask(E.PAUSE, e, pausing=KEEP_ALL)
        assert ask(event, e) is Answer.GO
        assert e == before


def test_a_second_pause_joins_or_is_refused() -> None:
    e = engine()
    ask(E.PAUSE, e, pausing=KEEP_ALL)
    assert ask(E.PAUSE, e, pausing=KEEP_ALL) is Answer.IGNORE
    assert ask(E.PAUSE, e, pausing=ABORT_ALL) is Answer.REJECT


# --- sleep and wake -----------------------------------------------------------------------------


@pytest.mark.parametrize("left", [{"holders": 1}, {"holds": 1}])
def test_sleep_is_refused_while_a_hold_is_left(left: dict[str, int]) -> None:
    e = engine(mode=PAUSED, pausing=KEEP_ALL)
    before = e.copy()
    assert ask(E.SLEEP, e, level=1, **left) is Answer.NOT_NOW
    assert e == before


def test_sleep_is_refused_while_a_block_is_in_quarantine() -> None:
    assert ask(E.SLEEP, engine(mode=PAUSED, quarantined=1), level=1) is Answer.NOT_NOW


def test_a_sleep_that_did_the_pausing_resumes_when_it_wakes_or_fails() -> None:
    e = engine()
    before = e.copy()
    ask(E.SLEEP, e, level=2, pausing=KEEP_ALL)
    ask(E.PAUSE_REACHED, e)
    failed = e.copy()
    assert ask(E.SLEEP_FAILED, failed) is Answer.GO
    assert failed == before
    assert ask(E.SLEEP, e, level=2) is Answer.GO
    assert (e.mode, e.sleep_level, e.weights_resident, e.cache_resident) == (SLEEPING, 2, 0, 0)
    ask(E.WAKE, e, tags=WEIGHTS + CACHE)
    ask(E.WOKE, e, tags=WEIGHTS + CACHE)
    assert e == before


def test_a_sleep_after_a_pause_wakes_into_the_pause() -> None:
    e = engine()
    ask(E.PAUSE, e, pausing=KEEP_ALL)
    ask(E.PAUSE_REACHED, e)
    paused = e.copy()
    assert ask(E.SLEEP_FAILED, e) is Answer.IGNORE
    ask(E.SLEEP, e, level=1)
    ask(E.WAKE, e, tags=WEIGHTS + CACHE)
    ask(E.WOKE, e, tags=WEIGHTS + CACHE)
    assert e == paused


def test_a_pause_during_a_sleep_keeps_the_engine_paused_when_it_wakes() -> None:
    for mode in (SLEEPING, WAKING):
        e = engine(mode=mode, pausing=KEEP_ALL, sleep_paused=1, sleep_level=1)
        assert ask(E.PAUSE, e, pausing=KEEP_ALL) is Answer.GO
        e.mode = WAKING
        ask(E.WOKE, e, tags=WEIGHTS + CACHE)
        assert e.mode == PAUSED


def test_memory_comes_back_tag_by_tag() -> None:
    e = engine(mode=SLEEPING, sleep_level=2, weights_resident=0, cache_resident=0, pausing=KEEP_ALL)
    ask(E.WAKE, e, tags=WEIGHTS)
    ask(E.WOKE, e, tags=WEIGHTS)
    assert (e.mode, e.weights_resident, e.cache_resident, e.sleep_level) == (SLEEPING, 1, 0, 2)
    ask(E.WAKE, e, tags=CACHE)
    assert ask(E.WAKE_FAILED, e) is Answer.GO
    assert (e.mode, e.cache_resident) == (SLEEPING, 0)
    ask(E.WAKE, e, tags=CACHE)
    ask(E.WOKE, e, tags=CACHE)
    assert (e.mode, e.weights_resident, e.cache_resident, e.sleep_level) == (PAUSED, 1, 1, 0)


def test_an_engine_that_sleeps_is_not_resumed_and_sleeps_at_one_level() -> None:
    e = engine(mode=SLEEPING, sleep_level=1)
    assert ask(E.RESUME, e) is Answer.REJECT
    assert ask(E.SLEEP, e, level=1) is Answer.IGNORE
    assert ask(E.SLEEP, e, level=2) is Answer.REJECT


# --- reset, weights, the end --------------------------------------------------------------------


def test_weights_change_only_when_paused_with_nothing_held_and_move_the_epoch() -> None:
    for mode in EngineMode:
        e = engine(mode=mode)
        assert ask(E.WEIGHTS_CHANGED, e, holds=1) is not Answer.GO
        goes = ask(E.WEIGHTS_CHANGED, e, holds=0) is Answer.GO
        assert goes == (mode in (PAUSED, SLEEPING))
        assert e.epoch == goes


def test_an_engine_that_shuts_down_takes_nothing_new_and_decides_its_reset() -> None:
    e = engine(pending_reset=1)
    assert ask(E.SHUTDOWN, e) is Answer.GO
    assert (e.mode, e.pending_reset) == (DRAINING, 0)
    for event in (E.ADD, E.CHUNK, E.PAUSE, E.SLEEP, E.WAKE, E.RESUME, E.RESET_PENDING):
        assert ask(event, e, level=1, pausing=1, tags=1) is Answer.REJECT
    assert ask(E.RESET, e) is Answer.GO


def test_a_shutdown_ends_the_pause_so_that_what_was_kept_can_end() -> None:
    e = engine()
    ask(E.PAUSE, e, pausing=KEEP_ALL)
    ask(E.PAUSE_REACHED, e)
    ask(E.SHUTDOWN, e)
    assert (e.mode, e.pausing) == (DRAINING, 0)
    assert ask(E.LAUNCH_STEP, e) is Answer.GO


def test_an_engine_stops_when_nothing_is_left() -> None:
    for live, holds, in_flight in itertools.product((0, 1), repeat=3):
        e = engine(mode=DRAINING, launched=in_flight)
        stopped = ask(E.DRAINED, e, live=live, holds=holds) is Answer.GO
        assert stopped == (live + holds + in_flight == 0)
        assert e.mode == (STOPPED if stopped else DRAINING)
