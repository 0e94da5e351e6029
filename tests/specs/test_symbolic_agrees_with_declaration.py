"""The declaration's own functions and their symbolic paths agree: what runs is what is proved."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from enum import IntEnum
from types import ModuleType
from typing import Any

import pytest
from kvproof.specs.symbolic import (
    DisagreementError,
    PathSet,
    Record,
    agree,
    agree_on_arrays,
    execute,
    terms,
    values,
)
from kvproof.statemachine import blocks, engine, facts, lanes, policy, request, reset, transfer
from kvproof.statemachine.answers import ROW_SHIFT
from kvproof.statemachine.compile import Machine, compile_table

MACHINES: list[tuple[Machine, dict[str, type[facts.Record]]]] = [
    (request.REQUEST, {"r": facts.RequestFacts, "e": facts.EngineFacts, "x": facts.Ask}),
    (transfer.TRANSFER, {"t": facts.TransferFacts, "e": facts.EngineFacts, "x": facts.TransferAsk}),
    (engine.ENGINE, {"e": facts.EngineFacts, "x": facts.EngineAsk}),
]
STATES = [
    pytest.param(machine, records, state, id=f"{machine.table.name}-{state.name.lower()}")
    for machine, records in MACHINES
    for state in machine.table.states
]


#: Cells that read some twenty facts: of a million small states a sample is tried.
SAMPLED = {
    ("RUNNING", "STOP"),
    ("PREEMPTED", "STOP"),
    ("WAITING", "ADMIT_REMOTE"),
    ("PREEMPTED", "ADMIT_REMOTE"),
}


def paths_of_cells(
    machine: Machine, records: dict[str, type[facts.Record]], state: int
) -> Iterator[tuple[IntEnum, PathSet]]:
    """The paths of each event in a state."""
    subject = machine.table.parameters[0]
    bound = {name: Record.of(each, name) for name, each in records.items()}
    bound[subject] = bound[subject].fixed(**{machine.table.state_field: int(state)})
    for event in machine.table.events:
        yield event, execute(machine.cell(state, int(event)), bound)


@pytest.mark.long
@pytest.mark.parametrize(("machine", "records", "state"), STATES)
def test_every_cell_but_four_agrees_with_its_paths_on_all_small_states(
    machine: Machine, records: dict[str, type[facts.Record]], state: IntEnum
) -> None:
    for event, paths in paths_of_cells(machine, records, state):
        if (state.name, event.name) not in SAMPLED:
            found = agree(paths, cases=1, small_cases=40_000)
            assert set(found.small) >= {0, 1}, event.name
        else:
            assert agree(paths, cases=1, small_cases=1_000).small == ()


@pytest.mark.parametrize(("machine", "records", "state"), STATES)
def test_every_cell_agrees_with_its_paths(
    machine: Machine, records: dict[str, type[facts.Record]], state: int
) -> None:
    for event, paths in paths_of_cells(machine, records, state):
        assert all(agree(paths, cases=40, small_cases=80).visits), event.name
        # A cell answers; it never raises.
        assert all(path.raised is None and isinstance(path.result, int) for path in paths)


def functions_of(module: ModuleType) -> list[Callable[..., Any]]:
    return [
        function
        for _, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
    ]


def arguments_of(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Records by their annotated class, bools and numbers as variables."""
    classes = {"BlockFacts": facts.BlockFacts, "HeldFacts": blocks.HeldFacts}
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = str(parameter.annotation)
        if annotation in classes:
            yield name, Record.of(classes[annotation], name)
        else:
            yield name, terms.variable(name, "bool" if annotation == "bool" else "int")


BRANCHING = [*functions_of(blocks), *functions_of(reset)]


@pytest.mark.parametrize("function", BRANCHING, ids=lambda each: each.__name__)
def test_block_and_reset_functions_agree_with_their_paths(function: Callable[..., Any]) -> None:
    assert all(agree(execute(function, dict(arguments_of(function)))).visits)


LANES = [*functions_of(lanes), *functions_of(policy)]


@pytest.mark.parametrize("function", LANES, ids=lambda each: each.__name__)
def test_lanes_mean_the_same_on_ints_arrays_and_symbols(function: Callable[..., Any]) -> None:
    arguments = dict(arguments_of(function))
    for name in {"kind_is_load", "stalled"} & arguments.keys():
        arguments[name] = terms.variable(name, "bool")
    paths = execute(function, arguments)
    agree(paths)
    agree_on_arrays(paths)


def test_a_changed_copy_of_a_table_leaves_the_original_executable() -> None:
    table = transfer.TRANSFER.table
    changed = compile_table(dataclasses.replace(table, rows=(table.rows[-1], *table.rows[:-1])))
    bound = {name: Record.of(each, name) for name, each in MACHINES[1][1].items()}
    cells = [
        machine.cell(transfer.QUEUED, transfer.TransferEvent.CANCEL)
        for machine in (changed, transfer.TRANSFER)
    ]
    first, second = (execute(cell, bound).paths[0] for cell in cells)
    assert first.writes["t"].keys() == second.writes["t"].keys() == {"state"}
    assert first.result - second.result == 1 << ROW_SHIFT


def test_a_wrong_symbolic_operator_shows_in_the_declaration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = values._subtract
    monkeypatch.setattr(values, "_subtract", lambda left, other: right(other, left))
    cell = transfer.TRANSFER.cell(transfer.LANDED, transfer.TransferEvent.LEAVE)
    bound = {name: Record.of(each, name) for name, each in MACHINES[1][1].items()}
    with pytest.raises(DisagreementError, match=r"t\.waiters is "):
        agree(execute(cell, bound))
