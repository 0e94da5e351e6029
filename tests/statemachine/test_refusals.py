"""An event that does not go changes nothing, and a wrong caller is told what would be right."""

import random

import pytest
from kvproof.statemachine import (
    ENGINE,
    REQUEST,
    TRANSFER,
    Answer,
    Ask,
    EngineFacts,
    LifecycleError,
    Machine,
    RefusedError,
    RequestEvent,
    RequestFacts,
    RequestState,
    answer_of,
    commands_of,
)
from kvproof.statemachine.states import ACTIVE, RUNNING, WAITING_FOR_STREAMING_REQ

from .records import MACHINES, NAMES, cells, random_records

every_machine = pytest.mark.parametrize("machine", MACHINES, ids=NAMES)


@every_machine
def test_an_event_that_does_not_go_changes_no_record(machine: Machine) -> None:
    chance = random.Random(3)
    refused = 0
    for state, event in cells(machine):
        for _ in range(30):
            records = random_records(machine, state, chance)
            before = [record.copy() for record in records]
            code = machine.cell(state, event)(*records)
            if answer_of(code) != Answer.GO:
                refused += 1
                assert records == before, machine.row(code)
                assert commands_of(code) == 0
    assert refused > 1000


@every_machine
def test_an_event_that_goes_writes_its_subject_and_nothing_else(machine: Machine) -> None:
    chance = random.Random(4)
    for state, event in cells(machine):
        for _ in range(30):
            records = random_records(machine, state, chance)
            before = [record.copy() for record in records]
            code = machine.cell(state, event)(*records)
            assert records[1:] == before[1:]
            dest = machine.row(code).dest
            end = getattr(records[0], machine.table.state_field)
            assert end == (state if dest is None else dest)


@every_machine
def test_a_rejection_says_subject_state_event_reason_and_what_is_legal(machine: Machine) -> None:
    chance = random.Random(5)
    seen = set()
    for state, event in cells(machine):
        for _ in range(20):
            code = machine.cell(state, event)(*random_records(machine, state, chance))
            if answer_of(code) != Answer.REJECT:
                continue
            error = machine.refusal(code, "subject-7", state, event)
            seen.add(error.event)
            assert isinstance(error, RefusedError)
            assert isinstance(error, LifecycleError)
            assert (error.machine, error.subject) == (machine.table.name, "subject-7")
            assert error.state == machine.table.states(state).name
            assert error.event == machine.table.events(event).name.lower()
            assert error.why == machine.row(code).why
            assert list(error.legal) == machine.table.legal_events(state)
            for part in (error.subject, error.state, error.event, error.why, *error.legal):
                assert part in str(error)
    assert seen


def test_the_text_of_a_rejection_reads_as_a_sentence() -> None:
    r = RequestFacts(state=RUNNING, covered=1)
    code = REQUEST.fire(RequestEvent.CHUNK, r, EngineFacts(mode=ACTIVE), Ask(tokens=3))
    error = REQUEST.refusal(code, "chat-12", RUNNING, RequestEvent.CHUNK)
    assert str(error) == (
        "request 'chat-12' in RUNNING refuses chunk: it is not a session. Legal here: "
        "grow, trim, launch, publish, output, preempt, stop, chunk, close_input, abort, error."
    )


def test_a_chunk_that_is_too_long_is_told_from_one_that_comes_too_late() -> None:
    e = EngineFacts(mode=ACTIVE, block_size=4, pool_blocks=8, model_length=20)

    def why(ask: Ask, **facts: int) -> str:
        r = RequestFacts(state=WAITING_FOR_STREAMING_REQ, resumable=True, prompt=9, **facts)
        return REQUEST.row(REQUEST.fire(RequestEvent.CHUNK, r, e, ask)).why

    assert why(Ask(tokens=30), input_open=True) == "longer than the model or the pool can ever take"
    assert why(Ask(tokens=3), input_open=False) == "its input is closed"
    assert why(Ask(tokens=0), input_open=True) == "the chunk is empty"
    assert why(Ask(tokens=3), input_open=True) == "it starts the next turn"


def test_a_state_that_is_none_of_the_machine_is_our_own_fault() -> None:
    with pytest.raises(AssertionError, match="no such state"):
        ENGINE.fire(0, EngineFacts(mode=0), None)


def test_late_signals_are_ignored_in_every_state_that_does_not_wait_for_them() -> None:
    signals = [
        (REQUEST, RequestEvent.TRANSFER_LANDED, "WAITING_FOR_REMOTE_KVS"),
        (REQUEST, RequestEvent.TRANSFER_FAILED, "WAITING_FOR_REMOTE_KVS"),
        (REQUEST, RequestEvent.GRAMMAR_READY, "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR"),
        (TRANSFER, TRANSFER.table.events["LAND"], "IN_FLIGHT CANCELLING"),
        (TRANSFER, TRANSFER.table.events["FAIL"], "IN_FLIGHT CANCELLING"),
        (TRANSFER, TRANSFER.table.events["FENCE"], "CANCELLING QUARANTINED"),
        (TRANSFER, TRANSFER.table.events["GIVE_UP"], "CANCELLING"),
    ]
    chance = random.Random(6)
    for machine, event, waiting in signals:
        for state in machine.table.states:
            if state.name not in waiting.split():
                code = machine.cell(state, event)(*random_records(machine, state, chance))
                assert answer_of(code) == Answer.IGNORE, (event, state)


def test_a_signal_for_another_transfer_is_ignored_by_a_request_that_waits() -> None:
    r = RequestFacts(state=RequestState.WAITING_FOR_REMOTE_KVS, covered=2, waits_for=7)
    for event in (RequestEvent.TRANSFER_LANDED, RequestEvent.TRANSFER_FAILED):
        code = REQUEST.fire(event, r, EngineFacts(block_size=4), Ask(transfer=6, tokens=8))
        assert REQUEST.row(code).why == "it waits for another transfer"
