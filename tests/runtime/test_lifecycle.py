"""The lifecycle alone writes; lanes are events; check() sees what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kvproof.runtime import steps as steps_module
from kvproof.runtime.api import EngineConfig
from kvproof.runtime.columns import FACTS
from kvproof.runtime.lifecycle import Lifecycle, Stop
from kvproof.statemachine import EngineEvent, RefusedError, RequestEvent, RequestState
from kvproof.statemachine.states import ACTIVE, FINISHED_STOPPED, KEEP_ALL


def lifecycle(**config: object) -> Lifecycle:
    options: dict[str, object] = {
        "num_blocks": 12, "block_size": 4, "max_model_len": 40, "check": True,
        "steps_in_flight": 2,
    }  # fmt: skip
    return Lifecycle(EngineConfig(**(options | config)))  # type: ignore[arg-type]


def ids(*tokens: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(tokens, dtype=np.int32)


def add(engine: Lifecycle, name: str, length: int, token: int = 1, **options: object) -> int:
    row = engine.add(name, np.full(length, token, dtype=np.int32), **options)  # type: ignore[arg-type]
    engine.set_limit(row, engine.config.max_model_len)
    return row


def running(engine: Lifecycle, name: str, length: int, token: int = 1) -> int:
    row = add(engine, name, length, token)
    assert engine.admit(row, (), -(-length // 4)).went
    return row


def launch(engine: Lifecycle, rows: list[int], tokens: list[int], grow: list[int]) -> int:
    launched = engine.launch(np.array(rows), np.array(tokens), np.array(grow))
    assert launched is not None
    engine.check()
    return launched.step


# --- read-only ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FACTS, "tables", "tokens", "counts", "target", "limit"])
def test_a_write_through_the_view_raises(name: str) -> None:
    engine = lifecycle()
    running(engine, "a", 5)
    column = getattr(engine.view, name)
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 7
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        column.flags.writeable = True


def test_the_views_stay_read_only_when_room_is_made_for_more_requests() -> None:
    engine = lifecycle()
    for number in range(100):
        add(engine, str(number), 3, number)
    assert engine.sequence(70).tolist() == [70] * 3
    with pytest.raises(ValueError, match="read-only"):
        engine.view.state[0] = 7
    engine.check()


def test_asking_what_an_engine_event_would_do_does_not_do_it() -> None:
    engine = lifecycle()
    assert engine.engine_would(EngineEvent.PAUSE, pausing=KEEP_ALL)
    assert not engine.engine_would(EngineEvent.RESUME)
    assert engine.mode == ACTIVE
    assert not engine.ignored
    assert engine.engine_event(EngineEvent.PAUSE, pausing=KEEP_ALL).went


def test_the_engine_record_that_is_handed_out_is_a_copy() -> None:
    engine = lifecycle()
    engine.engine.mode = 6
    assert engine.mode == 1


CORRUPTIONS: dict[str, Callable[[Lifecycle, int], None]] = {
    "a count": lambda engine, row: engine._ledger.counts.__setitem__(0, 2),
    "a count of a free block": lambda engine, row: engine._ledger.counts.__setitem__(11, 1),
    "a table": lambda engine, row: engine._tables.__setitem__((row, 0), 7),
    "a table beyond the hold": lambda engine, row: engine._tables.__setitem__((row, 5), 7),
    "the free list": lambda engine, row: engine._ledger.pool.put_uncached([0]),
    "the index": lambda engine, row: engine._ledger.index._key.__setitem__(9, b"key"),
    "quarantine": lambda engine, row: engine._ledger.quarantined.__setitem__(0, 1),
    "being written": lambda engine, row: engine._ledger.being_written.__setitem__(0, 1),
    "the running rows": lambda engine, row: engine._running.remove(0, 1, row),
    "the waiting rows": lambda engine, row: engine._waiting.add(0, 1, row),
    "the blocked rows": lambda engine, row: engine._blocked.__setitem__(row, None),
    "what a step will deliver": lambda engine, row: engine._target.__setitem__(row, 3),
    "what is reserved": lambda engine, row: setattr(engine, "_reserved", 2),
    "a step": lambda engine, row: engine._steps.clear(),
}


@pytest.mark.parametrize("what", CORRUPTIONS)
def test_what_is_corrupted_behind_its_back_fails_the_check(what: str) -> None:
    engine = lifecycle()
    row = running(engine, "a", 8)
    launch(engine, [row], [8], [0])
    engine.check()
    CORRUPTIONS[what](engine, row)
    with pytest.raises(AssertionError):
        engine.check()


# --- lanes and events -----------------------------------------------------------------------------


def test_steady_decoding_by_lanes_is_what_the_events_say() -> None:
    """Each call is replayed through its events, two steps in flight, tables growing."""
    engine = lifecycle(num_blocks=24)
    rows = [running(engine, name, length, length) for name, length in (("a", 3), ("b", 8))]
    launch(engine, rows, [3, 8], [0, 0])
    for step in range(1, 20):
        grow = [int(engine.view.computed[row] + 1 > engine.view.covered[row] * 4) for row in rows]
        launch(engine, rows, [1, 1], grow)
        settled = engine.settle(step, ids(50 + step, 70 + step))
        engine.check()
        assert settled.rows.tolist() == rows
    assert engine.sequence(rows[0]).tolist() == [3] * 3 + list(range(51, 70))
    assert engine.view.hashed[rows].tolist() == [5, 6]


def test_a_lane_that_computes_a_token_too_few_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = lifecycle()
    row = running(engine, "a", 5)
    monkeypatch.setattr(steps_module, "advance", lambda tokens, more: tokens + more - 1)
    with pytest.raises(AssertionError, match="computed is 4, the events say 5"):
        launch(engine, [row], [5], [0])


def test_a_lane_that_delivers_stale_output_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn ends with a step in flight and the next one starts: that step's token is stale."""
    engine = lifecycle()
    row = add(engine, "a", 5, resumable=True)
    engine.admit(row, (), 2)
    launch(engine, [row], [5], [0])
    launch(engine, [row], [1], [0])
    engine.chunk(row, ids(3, 3))
    engine.settle(1, ids(9), judge=lambda *_: [Stop(row, FINISHED_STOPPED)])
    engine.admit(row, (), 0)
    monkeypatch.setattr(steps_module, "fresh_output", lambda step, stale: step > stale - 9)
    with pytest.raises(AssertionError, match="the step is stale"):
        engine.settle(2, ids(9))


def test_a_lane_that_forgets_the_step_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = lifecycle()
    row = running(engine, "a", 5)
    monkeypatch.setattr(steps_module, "NEWEST_STEP", steps_module.LIMIT)
    with pytest.raises(AssertionError, match="newest_step is 0, the events say 1"):
        launch(engine, [row], [5], [0])


def test_a_lane_that_takes_a_disturbed_step_for_a_steady_one_is_caught() -> None:
    """Between launch and result a request was preempted: nothing of it is written any more."""
    engine = lifecycle()
    first, second = running(engine, "a", 5), running(engine, "b", 6)
    step = launch(engine, [first, second], [5, 6], [0, 0])
    before = engine._disturbances
    assert engine.preempt(second, allowed=True).went
    assert engine._disturbances > before
    engine._disturbances = before
    with pytest.raises(AssertionError, match="PUBLISH of 'b' in PREEMPTED"):
        engine.settle(step, ids(1, 1))


def test_a_result_without_a_token_disturbs_the_step_that_was_launched_on_it() -> None:
    """The second step expects a token that never came: nothing is delivered in its place."""
    engine = lifecycle(check=False)
    row = running(engine, "a", 5)
    first = launch(engine, [row], [5], [0])
    second = launch(engine, [row], [1], [0])
    assert engine.settle(first, ids(-1)).rows.tolist() == []
    settled = engine.settle(second, ids(9))
    assert settled.lengths.tolist() == [6], "as many as are known, not as were expected"
    assert engine.sequence(row).tolist() == [1, 1, 1, 1, 1, 9]


def test_a_lane_call_that_the_declaration_would_refuse_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when the lane itself has lost the look at what it is told."""
    monkeypatch.setattr(steps_module, "some", lambda truths: False)
    engine = lifecycle()
    row = running(engine, "a", 5)
    with pytest.raises(AssertionError, match="its hold does not cover the tokens"):
        launch(engine, [row], [9], [0])


def test_within_a_settled_step_turns_stop_before_step_holds_end() -> None:
    """Output and stop of step N see N as processed; what N was handed is free afterwards."""
    engine = lifecycle()
    a, b = running(engine, "a", 5), running(engine, "b", 5, 2)
    launch(engine, [a, b], [5, 5], [0, 0])
    engine.preempt(b, forced=True)
    seen: list[tuple[int, list[int], int]] = []

    def judge(rows, tokens, lengths, limits):  # type: ignore[no-untyped-def]
        seen.append((engine.processed, rows.tolist(), engine.ledger.pool.free))
        return [Stop(a, FINISHED_STOPPED)]

    engine.settle(1, ids(9, 8), judge=judge)
    assert seen == [(1, [a, b], 8)], "the STEP hold of b had not ended yet"
    assert engine.ledger.pool.free == 12
    assert engine.sequence(b).tolist()[-1] == 8, "a preempted request's output counts"
    engine.check()


def test_steps_are_settled_in_order_only() -> None:
    engine = lifecycle()
    row = running(engine, "a", 5)
    launch(engine, [row], [5], [0])
    launch(engine, [row], [1], [0])
    with pytest.raises(RefusedError, match="step 2 is not the oldest"):
        engine.settle(2, ids(9))
    engine.check()
    assert engine.settle(1, ids(9)).tokens.tolist() == [9]


def test_a_failed_row_ends_and_the_others_of_its_step_go_on() -> None:
    engine = lifecycle()
    a, b = running(engine, "a", 5), running(engine, "b", 5, 2)
    launch(engine, [a, b], [5, 5], [0, 0])
    settled = engine.settle(1, ids(-1, 8), failed=[a])
    assert settled.failed == (a,)
    assert settled.rows.tolist() == [b]
    assert engine.state_of(a) == RequestState.FINISHED_ERROR
    engine.check()


# --- events ---------------------------------------------------------------------------------------


def test_a_refusal_names_request_state_and_event_and_changes_nothing() -> None:
    engine = lifecycle()
    row = running(engine, "a", 5)
    before = engine._facts.copy()
    with pytest.raises(RefusedError, match="request 'a' in RUNNING refuses chunk: it is not a"):
        engine.chunk(row, ids(1))
    assert np.array_equal(before, engine._facts)
    with pytest.raises(RefusedError, match="id is live"):
        engine.add("a", ids(1))
    with pytest.raises(RefusedError, match="the prompt is empty"):
        engine.add("b", ids())
    assert engine.row_of("b") is None
    engine.check()


def test_what_is_not_now_changes_nothing_and_is_no_error() -> None:
    engine = lifecycle(num_blocks=2)
    running(engine, "a", 8)
    row = add(engine, "b", 4, 2)
    outcome = engine.admit(row, (), 1)
    assert outcome.not_now
    assert not outcome.went
    assert engine.state_of(row) == RequestState.WAITING
    engine.check()


def test_ignored_events_are_counted_by_name() -> None:
    engine = lifecycle()
    row = running(engine, "a", 5)
    assert engine.abort(row).went
    assert not engine.abort(row).went
    assert not engine.transfer(99, 4).went
    assert engine.ignored == {"request.abort": 1, "transfer.land": 1}


def test_a_row_gets_no_tenant_before_its_last_step_is_processed() -> None:
    engine = lifecycle()
    row = running(engine, "a", 5)
    launch(engine, [row], [5], [0])
    engine.abort(row)
    assert engine.forget(row, idle=True).not_now
    with pytest.raises(RefusedError, match="a step or transfer of its last life is left"):
        engine.add("a", ids(1))
    assert add(engine, "b", 5) != row
    engine.settle(1, ids(9))
    assert engine.forget(row, idle=True).went
    assert add(engine, "a", 5) == row
    assert engine.length(row) == 5
    engine.check()


def test_hits_are_published_prefixes_and_the_last_token_is_never_hit() -> None:
    engine = lifecycle()
    row = running(engine, "a", 8)
    same = add(engine, "b", 8)
    longer = add(engine, "c", 9)
    launch(engine, [row], [8], [0])
    assert engine.hits(longer) == [], "what a launched step writes is no hit yet"
    engine.settle(1, ids(9))
    assert engine.hits(longer) == engine.table(row)[:2].tolist()
    assert engine.hits(same) == engine.table(row)[:1].tolist()


def test_shared_prefix_blocks_are_counted_once_for_each_hold() -> None:
    engine = lifecycle()
    row = running(engine, "a", 8)
    launch(engine, [row], [8], [0])
    engine.settle(1, ids(9))
    sharing = [add(engine, name, 9) for name in "bcd"]
    for each in sharing:
        assert engine.admit(each, engine.hits(each), 1).went
    assert engine.view.counts[engine.table(row)[:2]].tolist() == [4, 4]
    launch(engine, [row, *sharing], [1] * 4, [1, 0, 0, 0])
    for each in (row, *sharing):
        engine.preempt(each, forced=True)
    engine.check()
    assert engine.view.counts[engine.ledger.step_holds[2][0].blocks].tolist()[:2] == [4, 4]
    engine.settle(2, ids(1, 1, 1, 1))
    engine.check()
    assert engine.ledger.pool.free == 12


def test_a_table_is_trimmed_beyond_what_is_computed_only() -> None:
    engine = lifecycle()
    row = add(engine, "a", 5)
    engine.admit(row, (), 4)
    launch(engine, [row], [5], [0])
    assert engine.trim(row, 2).not_now, "a step is in flight"
    engine.settle(1, ids(9))
    with pytest.raises(RefusedError, match="only blocks beyond the computed tokens"):
        engine.trim(row, 1)
    assert engine.trim(row, 2).went
    assert engine.ledger.pool.free == 10
    engine.check()


def test_the_last_transitions_of_a_request_are_remembered() -> None:
    engine = lifecycle()
    row = running(engine, "a", 5)
    engine.preempt(row, forced=True)
    events = [entry[1] for entry in engine.history_of(row)]
    assert events == [RequestEvent.ADD, RequestEvent.ADMIT, RequestEvent.PREEMPT]


def test_a_reset_that_leaves_something_computed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = lifecycle()
    row = running(engine, "a", 8)
    launch(engine, [row], [8], [0])
    engine.settle(1, ids(9))
    monkeypatch.setattr(steps_module, "HASHED", steps_module.WRITTEN)
    with pytest.raises(AssertionError, match="hashed is 2, the events say 0"):
        engine.reset(force=True)
