"""A transition survives being written and read; a line that is none says what is wrong with it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvproof.statemachine import LifecycleError, RequestFacts, Transition, parse_transition
from kvproof.statemachine.trace import TRACE_VERSION, TraceFormatError

names = st.text(max_size=12)
facts = st.dictionaries(st.sampled_from(sorted(RequestFacts.KINDS)), st.integers(), max_size=5)
transitions = st.builds(
    Transition,
    sequence=st.integers(min_value=0),
    time=st.floats(min_value=0, max_value=1e9).map(lambda t: round(t, 6)),
    machine=st.sampled_from(("request", "transfer", "engine")),
    subject=names,
    event=names,
    source=names,
    dest=names,
    answer=st.sampled_from(("go", "not_now", "ignore", "reject")),
    why=names,
    commands=st.lists(names, max_size=3).map(tuple),
    facts=facts,
    engine=facts,
    ask=facts,
    trace=names,
)

EXAMPLE = Transition(
    sequence=4,
    time=12.5,
    machine="request",
    subject="r1",
    event="preempt",
    source="RUNNING",
    dest="PREEMPTED",
    answer="go",
    why="it makes room and recomputes",
    commands=("HAND_OVER",),
    facts={"covered": 3},
    engine={"launched": 2},
    ask={"forced": 1},
)


@given(transitions)
def test_a_transition_is_read_back_as_it_was_written(transition: Transition) -> None:
    line = transition.to_json()
    assert "\n" not in line
    assert parse_transition(line) == transition


def test_a_line_carries_the_schema_version() -> None:
    assert json.loads(EXAMPLE.to_json())["v"] == TRACE_VERSION


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        (EXAMPLE.to_json()[:-9], "not JSON"),
        ("[]", "not a JSON object"),
        ("null", "not a JSON object"),
        ("{}", "schema version None; known is 1"),
        ('{"v": 2}', "schema version 2; known is 1"),
        ('{"v": 1}', "field 'n' is missing"),
    ],
)
def test_a_broken_line_says_what_is_wrong(line: str, message: str) -> None:
    with pytest.raises(TraceFormatError, match=message):
        parse_transition(line)


@pytest.mark.parametrize("name", [n for n in json.loads(EXAMPLE.to_json()) if n != "v"])
@pytest.mark.parametrize("value", [None, object])
def test_a_line_without_one_field_names_it(name: str, value: Any) -> None:
    raw = json.loads(EXAMPLE.to_json())
    if value is None:
        raw[name] = None
    else:
        del raw[name]
    with pytest.raises(TraceFormatError, match=f"field '{name}' is missing or of a wrong type"):
        parse_transition(json.dumps(raw))


@pytest.mark.parametrize("name", ["facts", "engine", "ask"])
def test_a_fact_that_is_no_number_is_refused(name: str) -> None:
    raw = json.loads(EXAMPLE.to_json())
    raw[name] = {"covered": "three"}
    with pytest.raises(TraceFormatError, match=f"'{name}' holds something that is not a whole"):
        parse_transition(json.dumps(raw))


def test_a_command_that_is_no_name_is_refused() -> None:
    raw = json.loads(EXAMPLE.to_json()) | {"commands": [4]}
    with pytest.raises(TraceFormatError, match="'commands'"):
        parse_transition(json.dumps(raw))


def test_a_trace_error_is_one_of_the_lifecycles() -> None:
    assert issubclass(TraceFormatError, LifecycleError)
