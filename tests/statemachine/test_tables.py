"""The three tables: total, without dead rows, and clear about what they refuse."""

import dataclasses
import random

import pytest
from kvproof.statemachine import (
    ENGINE,
    REQUEST,
    TRANSFER,
    Answer,
    Container,
    Machine,
    RequestEvent,
    RequestState,
    Row,
    SpecificationError,
    Table,
    answer_of,
    container,
    row_of,
)
from kvproof.statemachine.answers import GO, REJECT
from kvproof.statemachine.states import (
    FINISHED,
    LIVE,
    UNKNOWN,
    WAITING,
    EngineEvent,
    EngineMode,
    HoldKind,
    PauseMode,
    TransferEvent,
    TransferState,
)
from kvproof.statemachine.table import check_total

from .records import MACHINES, NAMES, cells, random_records

every_machine = pytest.mark.parametrize("machine", MACHINES, ids=NAMES)


@every_machine
def test_every_event_is_answered_in_every_state(machine: Machine) -> None:
    check_total(machine.table)
    chance = random.Random(1)
    for state, event in cells(machine):
        code = machine.cell(state, event)(*random_records(machine, state, chance))
        row = machine.row(code)
        assert row.trigger == event
        assert state in row.source
        assert answer_of(code) == row.answer


@every_machine
def test_every_row_decides_about_something(machine: Machine) -> None:
    chance = random.Random(7)
    decided: set[int] = set()
    wanted = set(range(len(machine.table.rows)))
    for _ in range(20_000):
        for state, event in cells(machine):
            open_rows = [n for n, _ in machine.table.cell(state, event) if n not in decided]
            if open_rows:
                code = machine.cell(state, event)(*random_records(machine, state, chance))
                decided.add(row_of(code))
        if decided == wanted:
            break
    assert [(n, machine.table.rows[n].why) for n in sorted(wanted - decided)] == []


@every_machine
def test_every_row_says_why(machine: Machine) -> None:
    assert [row for row in machine.table.rows if not row.why] == []


@every_machine
def test_a_refusal_has_neither_effect_nor_end(machine: Machine) -> None:
    for row in machine.table.rows:
        if row.answer != GO:
            assert not row.before, row
            assert row.dest is None, row


@every_machine
def test_every_state_can_be_reached_and_left_by_some_row(machine: Machine) -> None:
    table = machine.table
    reached = {row.dest for _, row in table.go_rows()}
    born = {"request": {UNKNOWN}, "transfer": {0}, "engine": {EngineMode.ACTIVE}}[table.name]
    last = {"engine": {EngineMode.STOPPED}}.get(table.name, set())
    for state in table.states:
        assert state in reached | born, state
        leaving = [
            row for _, row in table.go_rows() if state in row.source and row.dest is not None
        ]
        assert leaving or state in last, state


def without(table: Table, number: int) -> Table:
    """The table, one row less."""
    return dataclasses.replace(table, rows=table.rows[:number] + table.rows[number + 1 :])


@every_machine
def test_a_table_without_one_of_its_last_rows_is_not_total(machine: Machine) -> None:
    table = machine.table
    for number, row in enumerate(table.rows):
        if not row.conditions and not row.unless:
            with pytest.raises(SpecificationError, match="has no row for every case"):
                without(table, number)


def test_a_row_that_is_never_reached_is_an_error() -> None:
    first = Row(RequestEvent.ABORT, LIVE, answer=REJECT, why="always")
    with pytest.raises(SpecificationError, match="never reached"):
        dataclasses.replace(REQUEST.table, rows=(first, *REQUEST.table.rows))


def test_a_refusal_that_changes_something_is_an_error() -> None:
    faulty = Row(RequestEvent.ABORT, LIVE, dest=WAITING, answer=REJECT, why="and yet it moves")
    with pytest.raises(SpecificationError, match="REJECT and yet changes something"):
        dataclasses.replace(REQUEST.table, rows=(faulty, *REQUEST.table.rows))


def test_states_and_events_have_the_same_values_as_constants_and_as_enums() -> None:
    from kvproof.statemachine import states

    for enum in (RequestState, RequestEvent, TransferState, TransferEvent, EngineMode, EngineEvent):
        for member in enum:
            if member not in (EngineEvent.ADD, EngineEvent.CHUNK):  # a request's event, by name
                assert getattr(states, member.name) == member.value, member
    assert (states.REQUEST_HOLD, states.STEP_HOLD) == (HoldKind.REQUEST, HoldKind.STEP)
    assert (states.LOAD, states.STORE) == (HoldKind.LOAD, HoldKind.STORE)
    assert tuple(PauseMode) == (states.ABORT_ALL, states.WAIT_FOR_ALL, states.KEEP_ALL)


def test_a_state_is_unknown_or_live_or_finished() -> None:
    assert sorted((UNKNOWN, *LIVE, *FINISHED)) == sorted(RequestState)


def test_the_container_of_a_request_follows_from_its_state() -> None:
    where = {state.name: Container(container(state)).name for state in RequestState}
    assert where == {
        "UNKNOWN": "NONE",
        "WAITING": "WAITING",
        "PREEMPTED": "WAITING",
        "RUNNING": "RUNNING",
        "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR": "BLOCKED",
        "WAITING_FOR_REMOTE_KVS": "BLOCKED",
        "WAITING_FOR_STREAMING_REQ": "BLOCKED",
        **{RequestState(state).name: "NONE" for state in FINISHED},
    }


def test_a_live_request_is_always_in_a_container() -> None:
    assert all(container(state) != Container.NONE for state in LIVE)


def test_what_is_legal_in_a_state_is_named() -> None:
    assert REQUEST.table.legal_events(RequestState.WAITING_FOR_STREAMING_REQ) == [
        "publish", "chunk", "close_input", "reclaim", "abort", "error", "deadline",
    ]  # fmt: skip
    assert REQUEST.table.legal_events(RequestState.FINISHED_STOPPED) == ["forget"]
    assert TRANSFER.table.legal_events(TransferState.QUARANTINED) == ["leave", "fence"]
    assert ENGINE.table.legal_events(EngineMode.STOPPED) == ["step_processed"]


def test_answers_have_the_same_values_as_constants_and_as_enum() -> None:
    from kvproof.statemachine import answers

    assert list(Answer) == [answers.GO, answers.NOT_NOW, answers.IGNORE, answers.REJECT]
    for command in answers.Command:
        assert getattr(answers, str(command.name)) == command
        assert command & answers.COMMAND_MASK == command
        assert answer_of(command) == GO
