"""What users of the `transitions` library get: hooks, nesting and diagrams work on the tables."""

from typing import Any

import pytest
from kvproof.statemachine import (
    ENGINE,
    REQUEST,
    Answer,
    Ask,
    EngineFacts,
    Machine,
    RequestFacts,
    answer_of,
    as_transitions_machine,
)
from kvproof.statemachine.states import ACTIVE, RUNNING, WAITING
from transitions import MachineError
from transitions.extensions import GraphMachine, HierarchicalMachine

from .records import MACHINES, NAMES


def awake() -> EngineFacts:
    """An engine in which everything may run."""
    return EngineFacts(
        mode=ACTIVE, weights_resident=True, cache_resident=True, block_size=4, pool_blocks=8
    )


def test_an_event_is_called_by_its_name_and_leaves_its_code() -> None:
    subject, _ = as_transitions_machine(REQUEST.table, WAITING)
    r, ask = RequestFacts(state=WAITING, prompt=5), Ask(blocks=2, fresh=2, free=8)
    same = r.copy()
    assert subject.admit(r, awake(), ask)
    assert subject.state == "RUNNING"
    assert subject.code == REQUEST.fire(3, same, awake(), ask)
    assert r == same


def test_a_refusal_leaves_the_state_and_has_its_answer() -> None:
    subject, _ = as_transitions_machine(REQUEST.table, RUNNING)
    r = RequestFacts(state=RUNNING, covered=1)
    subject.admit(r, awake(), Ask(blocks=1, fresh=1, free=8))
    assert answer_of(subject.code) == Answer.REJECT
    assert (subject.state, r) == ("RUNNING", RequestFacts(state=RUNNING, covered=1))


def test_hooks_see_the_events_that_go() -> None:
    seen: list[tuple[str, str]] = []

    def note(*records: Any) -> None:
        seen.append((subject.state, Answer(answer_of(subject.code)).name))

    subject, machine = as_transitions_machine(REQUEST.table, WAITING, after_state_change=note)
    machine.on_enter_RUNNING(lambda *records: seen.append(("entered", subject.state)))
    r = RequestFacts(state=WAITING, prompt=5)
    subject.admit(r, awake(), Ask(blocks=2, fresh=2, free=8))
    subject.preempt(r, awake(), Ask(forced=True))
    assert seen == [("entered", "RUNNING"), ("RUNNING", "GO"), ("PREEMPTED", "GO")]


def test_a_user_nests_states_of_their_own_beside_the_declared_ones() -> None:
    subject, machine = as_transitions_machine(
        REQUEST.table, WAITING, machine_cls=HierarchicalMachine
    )
    machine.add_states({"name": "held", "children": ["byoperator", "byquota"]})
    machine.add_transition("hold_back", "WAITING", "held_byquota")
    machine.add_transition("let_through", "held", "WAITING")  # from each of its children
    r = RequestFacts(state=WAITING, prompt=5)
    subject.hold_back()
    assert subject.state == "held_byquota"
    with pytest.raises(MachineError):
        subject.admit(r, awake(), Ask(blocks=2, fresh=2, free=8))
    subject.let_through()
    subject.admit(r, awake(), Ask(blocks=2, fresh=2, free=8))
    assert subject.state == "RUNNING"


@pytest.mark.parametrize("machine", MACHINES, ids=NAMES)
def test_the_library_draws_every_state_and_event(machine: Machine) -> None:
    table = machine.table
    subject, _ = as_transitions_machine(
        table, min(table.states), machine_cls=GraphMachine, graph_engine="mermaid"
    )
    drawn = str(subject.get_graph().source)
    assert drawn.startswith("---\nState Machine\n---\nstateDiagram-v2")
    assert [state.name for state in table.states if state.name not in drawn] == []
    moving = {row.trigger.name.lower() for _, row in table.go_rows() if row.dest is not None}
    assert [event for event in moving if event not in drawn] == []


def test_an_engine_goes_to_sleep_and_wakes_in_the_library_too() -> None:
    from kvproof.statemachine import EngineAsk

    subject, _ = as_transitions_machine(ENGINE.table, ACTIVE)
    e = awake()
    subject.sleep(e, EngineAsk(level=1, pausing=3))
    subject.pause_reached(e, EngineAsk())
    subject.sleep(e, EngineAsk(level=1))
    assert (subject.state, e.weights_resident, e.cache_resident) == ("SLEEPING", False, False)
    subject.wake(e, EngineAsk(tags=3))
    subject.woke(e, EngineAsk(tags=3))
    assert (subject.state, e.sleep_level, e.pausing) == ("ACTIVE", 0, 0)
