"""What an engine developer may not do with a lifecycle is refused, and nothing has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kvproof.runtime.lifecycle import Stop
from kvproof.statemachine import RefusedError
from kvproof.statemachine.states import (
    BEGIN,
    FAIL,
    FINISHED_ABORTED,
    FINISHED_STOPPED,
    JOIN,
    LAND,
    LAUNCH_STEP,
    PAUSE,
    WAITING,
)

from .lifecycles import Peopled, ids, numbers, picture

Call = Callable[[Peopled], Any]


def launch(rows: Any, tokens: Any, grow: Any) -> Call:
    """Rows may be named by their requests."""

    def call(p: Peopled) -> Any:
        named = [getattr(p, row) if isinstance(row, str) else row for row in rows]
        return p.engine.launch(np.array(named), tokens, grow)

    return call


def admit(hits: Callable[[Peopled], Any], new: Any = 1, row: str = "waiting") -> Call:
    return lambda p: p.engine.admit(getattr(p, row), hits(p), new)


def add(tokens: Any, request_id: Any = "new", **options: Any) -> Call:
    return lambda p: p.engine.add(request_id, tokens, **options)


def settle(step: int, tokens: Any, failed: Any = ()) -> Call:
    return lambda p: p.engine.settle(step, tokens, failed)


def store(blocks: Callable[[Peopled], Any], keys: int = 1) -> Call:
    return lambda p: p.engine.start_store(p.engine.keys(p.running, 2)[:keys], blocks(p))


REFUSED: dict[str, tuple[Call, str]] = {
    "launch: a row twice": (
        launch(["fresh", "fresh"], numbers(1, 1), numbers(0, 0)), "named twice"),
    "launch: a row that waits": (launch(["waiting"], numbers(1), numbers(0)), "does not run"),
    "launch: a row that is parked": (launch(["parked"], numbers(1), numbers(0)), "does not run"),
    "launch: a row of no request": (launch([50], numbers(1), numbers(0)), "does not run"),
    "launch: a row that there is not": (launch([9999], numbers(1), numbers(0)), "no request's"),
    "launch: a row below 0": (launch([-1], numbers(1), numbers(0)), "no request's"),
    "launch: beyond the hold": (launch(["fresh"], numbers(9), numbers(0)), "does not cover"),
    "launch: more than is known": (launch(["fresh"], numbers(6), numbers(0)), "will be known"),
    "launch: more than 64 bits can add up": (
        launch(["running"], numbers(2**63 - 1), numbers(0)), "can add up"),
    "launch: no tokens": (launch(["fresh"], numbers(0), numbers(0)), "no tokens"),
    "launch: less than no tokens": (launch(["fresh"], numbers(-3), numbers(0)), "no tokens"),
    "launch: one good row and a bad one": (
        launch(["fresh", "running"], numbers(5, 0), numbers(0, 0)), "no tokens"),
    "launch: more blocks than a table has": (
        launch(["fresh"], numbers(5), numbers(99)), "room for 10 blocks"),
    "launch: more blocks than are free": (
        launch(["fresh", "running", "session"], numbers(5, 1, 1), numbers(8, 7, 8)), "are free"),
    "launch: less than no blocks": (
        launch(["fresh"], numbers(1), numbers(-1)), "room for 10 blocks"),
    "launch: of unequal length": (launch(["fresh"], numbers(1, 1), numbers(0)), "each row"),
    "launch: half a token": (launch(["fresh"], np.array([0.5]), numbers(0)), "integers"),
    "launch: in two dimensions": (launch(["fresh"], numbers(1)[None], numbers(0)), "integers"),
    "launch: nothing": (lambda p: p.engine.launch(None, None, None), "integers"),  # type: ignore[arg-type]
    "settle: a step that there is not": (settle(9, ids(1)), "not the oldest"),
    "settle: a step again": (settle(2, ids(1, 1)), "not the oldest"),
    "settle: too many results": (settle(3, ids(1, 1, 1)), "no token for each"),
    "settle: too few results": (settle(3, ids(1)), "no token for each"),
    "settle: halves": (settle(3, np.array([0.5, 1.0])), "no token for each"),
    "settle: in two dimensions": (settle(3, ids(1, 1)[None]), "no token for each"),
    "settle: tokens of 64 bits": (settle(3, numbers(1, 2**40)), "no token for each"),
    "settle: a failed row of another step": (settle(3, ids(1, 1), [63]), "not all of the rows"),
    "admit: a block that nobody published": (admit(lambda p: [31]), "not the published"),
    "admit: a block that there is not": (admit(lambda p: [99]), "not the published"),
    "admit: a block below 0": (admit(lambda p: [-1]), "not the published"),
    "admit: a block twice": (admit(lambda p: [p.hit, p.hit]), "not the published"),
    "admit: blocks in another order": (admit(lambda p: [p.second, p.hit]), "not the published"),
    "admit: what is a hit for others": (admit(lambda p: [p.hit], row="preempted"), "not the pub"),
    "admit: its last token": (admit(lambda p: [p.hit, p.second, 9]), "never hit"),
    "admit: less than no blocks": (admit(lambda p: [], -1), "no number"),
    "admit: no block": (admit(lambda p: [], 0), "contradict"),
    "admit: half a block": (admit(lambda p: [], 0.5), "no number"),
    "admit: half a hit": (admit(lambda p: [0.5]), "no block ids"),
    "admit: more blocks than a table has": (admit(lambda p: [], 11), "room for 10 blocks"),
    "admit: hits for a hold that has begun": (
        admit(lambda p: [p.hit], row="again"), "contradict"),
    "admit: a row of no request": (lambda p: p.engine.admit(50, (), 1), "no request's"),
    "grow: more blocks than a table has": (lambda p: p.engine.grow(p.fresh, 9), "10 blocks"),
    "grow: less than no blocks": (lambda p: p.engine.grow(p.fresh, -1), "no number"),
    "grow: a row below 0": (lambda p: p.engine.grow(-1, 1), "no request's"),
    "trim: to nothing": (lambda p: p.engine.trim(p.fresh, 0), "spare|beyond the computed"),
    "trim: to half a block": (lambda p: p.engine.trim(p.fresh, 1.5), "no number of blocks"),  # type: ignore[arg-type]
    "add: in two dimensions": (add(np.zeros((3, 2), dtype=np.int32)), "no list of ids"),
    "add: halves": (add([0.5, 1]), "no list of ids"),
    "add: a word": (add("word"), "no list of ids"),
    "add: tokens of 64 bits": (add([1, 2**40]), "no list of ids"),
    "add: nothing": (add([]), "the prompt is empty"),
    "add: a priority of more than 64 bits": (add([1], priority=2**70), "64-bit integer"),
    "add: a truth value for a priority": (add([1], priority=True), "64-bit integer"),
    "add: a word for a priority": (add([1], priority="high"), "64-bit integer"),
    "add: a word for a salt": (add([1], salt="salt"), "its salt no bytes"),
    "add: a number for an id": (add([1], 7), "its id is no text"),
    "add: no id": (add([1], ""), "its id is no text, or empty"),
    "add: an id that is live": (add([1], "waiting"), "the id is live"),
    "chunk: in two dimensions": (
        lambda p: p.engine.chunk(p.parked, ids(1)[None]), "no list of ids"),
    "chunk: for a row that there is not": (
        lambda p: p.engine.chunk(9999, ids(1)), "no request's"),
    "stop: by a number that is no state": (
        lambda p: p.engine.stop(p.running, 3, 12345), "no way in which a turn ends"),
    "stop: by a state that is no end": (
        lambda p: p.engine.stop(p.running, 3, WAITING), "no way in which a turn ends"),
    "stop: by an end that no output has": (
        lambda p: p.engine.stop(p.running, 3, FINISHED_ABORTED), "no way in which a turn ends"),
    "stop: a row below 0": (lambda p: p.engine.stop(-1, 3, FINISHED_STOPPED), "no request's"),
    "abort: a row below 0": (lambda p: p.engine.abort(-1), "no request's"),
    "abort: a row that there is not": (lambda p: p.engine.abort(9999), "no request's"),
    "forget: what is live": (lambda p: p.engine.forget(p.waiting, idle=True), "it is live"),
    "set_limit: a row of no request": (lambda p: p.engine.set_limit(50, 9), "no request's"),
    "set_limit: less than nothing": (lambda p: p.engine.set_limit(p.waiting, -1), "no length"),
    "keys: of tokens that are not known": (lambda p: p.engine.keys(p.waiting, 3), "not full"),
    "keys: of no request": (lambda p: p.engine.keys(50, 0), "no request's"),
    "reset: with a step in flight": (lambda p: p.engine.reset(True), "processed first"),
    "let go of all: with a step in flight": (
        lambda p: p.engine.let_go_of_all(), "processed first"),
    "engine: no event": (lambda p: p.engine.engine_event(99), "is no event"),
    "engine: an event below 0": (lambda p: p.engine.engine_event(-1), "is no event"),
    "engine: a step that nobody launches": (
        lambda p: p.engine.engine_event(LAUNCH_STEP), "launch and settle"),
    "engine: what it is not told": (
        lambda p: p.engine.engine_event(PAUSE, colour=1), "nothing of 'colour'"),
    "transfer: no event": (lambda p: p.engine.transfer(p.load, 55), "no signal"),
    "transfer: what follows from requests": (
        lambda p: p.engine.transfer(p.load, JOIN), "no signal"),
    "transfer: a word for the valid blocks": (
        lambda p: p.engine.transfer(p.load, FAIL, valid_blocks="x"), "no number of blocks"),  # type: ignore[arg-type]
    "transfer: half a valid block": (
        lambda p: p.engine.transfer(p.load, FAIL, valid_blocks=1.5), "no number of blocks"),  # type: ignore[arg-type]
    "load: another's keys": (
        lambda p: p.engine.admit_loading(p.twin, (), p.engine.keys(p.running, 2), 1), "follow on"),
    "load: its last token": (
        lambda p: p.engine.admit_loading(p.preempted, (), p.engine.keys(p.running, 2), 1),
        "follow on"),
    "load: less than nothing reserved": (
        lambda p: p.engine.admit_loading(p.twin, (), p.engine.keys(p.twin, 2), -1), "follow on"),
    "join: another's blocks": (
        lambda p: p.engine.admit_joining(p.twin, (), p.load, [p.hit], 1), "in that load"),
    "join: half a block reserved": (
        lambda p: p.engine.admit_joining(
            p.twin, (), p.load, p.engine.table(p.loading).tolist(), 1.5),
        "no number of blocks"),
    "join: in another order": (
        lambda p: p.engine.admit_joining(
            p.twin, (), p.load, p.engine.table(p.loading)[::-1].tolist(), 1),
        "in that load"),
    "store: a block that nobody published": (store(lambda p: [31]), "published"),
    "store: a block that there is not": (store(lambda p: [99]), "does not exist"),
    "store: a block below 0": (store(lambda p: [-1]), "does not exist"),
    "store: a block twice": (store(lambda p: [p.hit, p.hit], 2), "named twice"),
    "store: a key too many": (store(lambda p: [p.hit], 2), "each with its key"),
    "store: nothing": (store(lambda p: [], 0), "each with its key"),
}  # fmt: skip


@pytest.mark.parametrize("check", [True, False], ids=["check", "bare"])
@pytest.mark.parametrize("what", REFUSED)
def test_what_a_caller_may_not_do_is_refused_and_nothing_has_changed(
    what: str, check: bool
) -> None:
    people = Peopled(check)
    call, why = REFUSED[what]
    before = picture(people.engine)
    with pytest.raises(RefusedError, match=why):
        call(people)
    assert picture(people.engine) == before
    people.engine.check()


@pytest.mark.parametrize("check", [True, False], ids=["check", "bare"])
@pytest.mark.parametrize(
    ("stop", "why"),
    [
        (lambda p: Stop(63, FINISHED_STOPPED), "no row of the step"),
        (lambda p: Stop(p.fresh, FINISHED_STOPPED), "no row of the step"),
        (lambda p: Stop(p.running, 12345), "no way in which a turn ends"),
        (lambda p: Stop(p.running, WAITING), "no way in which a turn ends"),
        (lambda p: p.running, "no row of the step"),
    ],
)
def test_a_stop_that_cannot_be_stops_nobody_and_the_step_is_settled(
    stop: Any, why: str, check: bool
) -> None:
    """Its tokens were delivered before the judge was asked, so the step stands."""
    people = Peopled(check)
    engine, good = people.engine, Stop(people.session, FINISHED_STOPPED)
    with pytest.raises(RefusedError, match=why):
        engine.settle(3, ids(1, 2), judge=lambda *_: [good, stop(people)])
    assert engine.processed == 3
    assert engine.sequence(people.running)[-1] == 1
    assert {people.running, people.session} <= set(engine.running)
    engine.check()


@pytest.mark.parametrize("check", [True, False], ids=["check", "bare"])
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_judge_that_raises_stops_nobody_and_the_step_is_settled(
    check: bool, error: type[BaseException]
) -> None:
    people = Peopled(check)

    def judge(*_: Any) -> Any:
        raise error

    people.engine.preempt(people.session, forced=True)
    assert people.engine.hold_counts()["STEP"] == 1
    with pytest.raises(error):
        people.engine.settle(3, ids(1, 2), [people.session], judge=judge)
    assert people.engine.hold_counts()["STEP"] == 0
    assert people.session in people.engine.finished, "what the device failed has failed"
    people.engine.check()


def test_lists_are_taken_for_arrays_and_the_callers_arrays_are_not_kept() -> None:
    people = Peopled()
    engine = people.engine
    engine.settle(3, [1, 2])  # type: ignore[arg-type]
    rows, tokens = numbers(people.running), numbers(1)
    launched = engine.launch(rows, tokens, [0])  # type: ignore[arg-type]
    rows[0] = tokens[0] = 77
    assert launched is not None
    assert launched.rows.tolist() == [people.running]
    assert launched.counts.tolist() == [1]
    chunk = ids(1, 2)
    engine.chunk(people.session, chunk)
    chunk[0] = 77
    assert engine._queued[people.session][-1].tolist() == [1, 2]
    engine.check()


def test_rows_that_ran_in_the_last_step_and_run_no_more_are_refused() -> None:
    """A lane asks no second time about the same rows, unless something has happened to them."""
    people = Peopled()
    engine = people.engine
    engine.settle(3, ids(1, 2))
    rows = engine.running.array
    engine.launch(rows, numbers(1, 1, 5), numbers(0, 0, 0))
    engine.settle(4, ids(1, 2, 3))
    for event in (BEGIN, LAND):  # nothing but the load refuses a reset
        assert engine.transfer(people.load, event).went
    assert engine.reset(True).done
    with pytest.raises(RefusedError, match="does not run"):
        engine.launch(rows, numbers(1, 1, 1), numbers(0, 0, 0))
    engine.check()


@pytest.mark.parametrize("fault", ["_must_run", "_must_be_free"])
def test_a_lane_that_does_not_look_at_what_it_is_told_is_caught(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    people = Peopled()
    monkeypatch.setattr(type(people.engine), fault, lambda *told: None)
    row = people.again if fault == "_must_run" else people.fresh
    more = 0 if fault == "_must_run" else 99
    with pytest.raises((AssertionError, ValueError, IndexError)):
        people.engine.launch(numbers(row), numbers(1), numbers(more))
