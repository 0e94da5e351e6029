"""An event by the compiled dispatch, by a `transitions` trigger, and a bare dictionary look-up.

`pytest -m long -s tests/benchmarks/test_dispatch.py` prints the figures of all rows of the three
tables, taken in one run: the state is read, the cell is found and called, guards and effects run.
Only the ratio is asserted; microseconds are the machine's.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from kvproof.statemachine import Answer, Machine, answer_of, as_transitions_machine, row_of
from kvproof.statemachine.facts import Record

from ..statemachine.records import MACHINES, cells, random_records

#: Of the compiled dispatch: records at a time, and how often. Of a trigger: how often.
RECORDS, ROUNDS, TRIGGERS = 200, 9, 15


@dataclass
class Case:
    """One row, and the records for which it decides."""

    machine: Machine
    number: int
    state: int
    event: int
    records: list[Record]
    compiled: list[float] = field(default_factory=list)  # nanoseconds an event
    triggered: list[float] = field(default_factory=list)


def cases(machine: Machine) -> Iterator[Case]:
    """A case for every row of a machine."""
    chance = random.Random(7)
    left = set(range(len(machine.table.rows)))
    while left:
        for state, event in cells(machine):
            if not any(number in left for number, _ in machine.table.cell(state, event)):
                continue
            records = random_records(machine, state, chance)
            before = [record.copy() for record in records]
            number = row_of(machine.cell(state, event)(*records))
            if number in left:
                left.remove(number)
                yield Case(machine, number, state, event, before)


def time_compiled(case: Case) -> float:
    """Nanoseconds an event, the loop over the records taken off."""
    dispatch, width, event = case.machine.dispatch, case.machine.width, case.event
    name, rest = case.machine.table.state_field, case.records[1:]
    subjects = [case.records[0].copy() for _ in range(RECORDS)]
    # As the engine does it: the subject's state is read, and the cell indexed.
    if name == "mode":
        (ask,) = rest
        start = time.perf_counter_ns()
        for e in subjects:
            dispatch[e.mode * width + event](e, ask)  # type: ignore[attr-defined]
    else:
        engine, ask = rest
        start = time.perf_counter_ns()
        for r in subjects:
            dispatch[r.state * width + event](r, engine, ask)  # type: ignore[attr-defined]
    elapsed = time.perf_counter_ns() - start
    start = time.perf_counter_ns()
    for _ in subjects:
        pass
    return (elapsed - (time.perf_counter_ns() - start)) / RECORDS


def time_triggers(case: Case, subject: object, machine: object) -> list[float]:
    """Nanoseconds of single triggers."""
    table = case.machine.table
    trigger = getattr(subject, table.events(case.event).name.lower())
    taken = []
    for _ in range(TRIGGERS):
        records = [case.records[0].copy(), *case.records[1:]]
        machine.set_state(table.states(case.state).name)  # type: ignore[attr-defined]
        start = time.perf_counter_ns()
        trigger(*records)
        taken.append(float(time.perf_counter_ns() - start))
    return taken


def time_look_up() -> float:
    """Nanoseconds of a dictionary look-up by state and event: what any dispatch costs at least."""
    table = {(state, event): state for state in range(13) for event in range(21)}
    pairs = [(state, event) for state in range(13) for event in range(15)]
    rounds = []
    for _ in range(50):
        start = time.perf_counter_ns()
        for state, event in pairs:
            table[state, event]
        rounds.append((time.perf_counter_ns() - start) / len(pairs))
    return statistics.median(rounds)


def spread(values: list[float]) -> str:
    """Median, quartiles and extremes, in microseconds."""
    low, middle, high = statistics.quantiles(values, n=4)
    ends = f"{min(values) / 1e3:7.2f} … {max(values) / 1e3:.2f}"
    return f"{middle / 1e3:8.3f}  {low / 1e3:6.3f} {high / 1e3:6.3f}  {ends}"


def measure() -> list[Case]:
    """Time every row of every machine, the two ways in turn so that both see the same load."""
    measured = []
    for machine in MACHINES:
        subject, of_library = as_transitions_machine(machine.table, min(machine.table.states))
        for case in cases(machine):
            case.compiled = [time_compiled(case) for _ in range(ROUNDS)]
            case.triggered = time_triggers(case, subject, of_library)
            measured.append(case)
    return measured


def report(measured: list[Case], look_up: float, show: Callable[[str], None]) -> float:
    """Print the figures; returns how many times cheaper the compiled dispatch is."""
    compiled = [statistics.median(case.compiled) for case in measured]
    triggered = [statistics.median(case.triggered) for case in measured]
    ratio = statistics.median(t / c for t, c in zip(triggered, compiled, strict=True))
    going = [
        c
        for case, c in zip(measured, compiled, strict=True)
        if case.machine.table.rows[case.number].answer == Answer.GO
    ]
    show(f"\n{len(measured)} rows, microseconds an event")
    show(f"{'':24}  median  quartiles      extremes")
    show(f"compiled, all rows      {spread(compiled)}")
    show(f"compiled, rows that go  {spread(going)}")
    show(f"transitions, all rows   {spread(triggered)}")
    show(f"dictionary look-up      {look_up / 1e3:8.3f}")
    show(f"a trigger costs {ratio:.0f} times as much (median of the rows' ratios)")
    for case, cost in sorted(zip(measured, compiled, strict=True), key=lambda pair: -pair[1])[:5]:
        row = case.machine.table.rows[case.number]
        answer = Answer(answer_of(row.answer)).name.lower()
        show(
            f"    {cost / 1e3:6.3f}  {case.machine.table.name} {row.trigger.name.lower()} {answer}"
        )
    return ratio


@pytest.mark.long
def test_the_compiled_dispatch_is_twenty_times_cheaper_than_a_trigger(
    capsys: pytest.CaptureFixture[str],
) -> None:
    measured = measure()
    with capsys.disabled():
        ratio = report(measured, time_look_up(), print)
    assert {(case.machine.table.name, case.number) for case in measured} == {
        (machine.table.name, number)
        for machine in MACHINES
        for number in range(len(machine.table.rows))
    }
    assert ratio >= 20
