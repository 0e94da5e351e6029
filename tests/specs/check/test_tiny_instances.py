"""The proofs' state and actions, held against tiny instances with nothing left out.

The specification says what a sum over blocks and requests is; the one step on paper is that it
follows from the differences. Here both are enumerated: every line of the specification, for every
choice of who is looked at, in every state that some script reaches; and every move of an instance
is one of the proofs' ways in which an action can go.
"""

from __future__ import annotations

from collections import defaultdict

import pytest
import z3
from kvproof.specs.check.declaration import standard
from kvproof.specs.check.fairness import FAIRNESS, joint_witness
from kvproof.specs.check.proofs import Move, Proofs
from kvproof.specs.check.run import Report
from kvproof.specs.check.search import DEPTH, rows_taken, search, walk
from kvproof.specs.check.world import Eyes, Shape, Size, State, World, everybody, project
from kvproof.specs.check.world_moves import Done
from kvproof.specs.symbolic import terms
from kvproof.specs.symbolic.evaluate import compile_terms, scalar_choice

SIZES = (
    Size(),
    Size(blocks=2),
    Size(requests=2),
    Size(requests=2, transfers=2),
    Size(requests=2, blocks=2, block_size=2, steps_ahead=2),
    Size(requests=3, transfers=2),
)


def _broken_lines(proofs: Proofs, size: Size, states: int) -> tuple[set[str], int]:
    formulas = [line.formula for line in proofs.lines]
    kinds = terms.variables(formulas)
    evaluate = compile_terms(formulas)
    broken: set[str] = set()
    seen: set[State] = set()
    for shape, _, done in walk(standard(), size, states):
        if done.state in seen:
            continue
        seen.add(done.state)
        world = World(shape, done.state)
        for eyes in everybody(size):
            values = {name: project(world, eyes, name) for name in kinds}
            typed = {
                name: bool(value) if kinds[name] == "bool" else value
                for name, value in values.items()
            }
            broken |= {
                f"{line.invariant.words} ({line.who}) after {done.words}"
                for line, holds in zip(proofs.lines, evaluate(typed, scalar_choice), strict=True)
                if not holds
            }
    return broken, len(seen)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_specification_holds_in_every_state_that_a_script_reaches(
    size: Size, proved: Report
) -> None:
    assert proved.proofs is not None
    broken, seen = _broken_lines(proved.proofs, size, 250)
    assert broken == set()
    assert seen >= 250


@pytest.mark.long
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_specification_holds_in_thousands_of_states(size: Size, proved: Report) -> None:
    assert proved.proofs is not None
    broken, seen = _broken_lines(proved.proofs, size, 8000)
    assert broken == set()
    assert seen >= 5000


def _is_covered(proofs: Proofs, moves: list[Move], before: World, after: World, eyes: Eyes) -> bool:
    """Whether one of the proofs' ways leads from one state to the other, for those looked at."""
    variables = proofs.variables
    for move in moves:
        absent = move.transition.before.values
        solver = z3.SimpleSolver()
        solver.add(*move.hypotheses.formulas)
        for name in variables.state:
            if name.startswith(("e.pool", "copy2.number")) or name in absent:
                continue
            kind = variables.kinds[name]
            old, new = project(before, eyes, name), project(after, eyes, name)
            if name == "e.quarantined":
                continue  # the proofs count blocks of which they look at one
            solver.add(variables.terms[name] == terms.constant(old, kind))
            solver.add(move.value(name) == terms.constant(new, kind))
        if solver.check() == z3.sat:
            return True
    return False


def _who_acts(size: Size, done: Done, moves: list[Move]) -> list[Eyes]:
    """Those from whom the proofs would look at the move: who acts is the first."""
    request, transfer = done.acting
    absent = {name.partition(".")[0] for move in moves for name in move.transition.before.values}
    chosen = []
    for eyes in everybody(size):
        if request not in (None, eyes.request) or transfer not in (None, eyes.transfer):
            continue
        chosen.append(
            Eyes(
                eyes.request,
                None if "r2" in absent else eyes.request2,
                eyes.transfer,
                None if "t2" in absent else eyes.transfer2,
                eyes.block,
            )
        )
    return chosen


def _uncovered(proofs: Proofs, size: Size, states: int, of_each: int) -> tuple[list[str], int]:
    by_action: dict[str, list[Move]] = defaultdict(list)
    for move in proofs.moves:
        by_action[move.transition.action].append(move)
    uncovered: list[str] = []
    looked_at: dict[tuple[object, ...], int] = defaultdict(int)
    for shape, state, done in walk(standard(), size, states):
        looked_at[done.action, done.rows] += 1
        if looked_at[done.action, done.rows] > of_each:
            continue
        for action, first, last in _parts(shape, state, done):
            moves = by_action[action]
            before, after = World(shape, first), World(shape, last)
            for eyes in _who_acts(size, done, moves):
                if not _is_covered(proofs, moves, before, after, eyes):
                    uncovered.append(f"{done.words} for {eyes}")
    return uncovered, len(looked_at)


def _parts(shape: Shape, state: State, done: Done) -> list[tuple[str, State, State]]:
    """What is one move of an instance and two actions of the proofs, one after the other."""
    between = World(shape, state)
    if done.action == "launch":
        between["e"].launched += 1
        return [
            ("launch_step", state, between.state()),
            ("launch", between.state(), done.state),
        ]
    if done.action in ("land", "fail", "fence"):
        for block in range(shape.size.blocks):
            between[f"copy{done.acting[1]}.{block}"].working = False
        if between.state() != state:
            return [
                ("worker_done", state, between.state()),
                (done.action, between.state(), done.state),
            ]
    return [(done.action, state, done.state)]


def test_every_kind_of_move_of_an_instance_is_a_way_in_which_an_action_can_go(
    proved: Report,
) -> None:
    assert proved.proofs is not None
    uncovered, kinds = _uncovered(proved.proofs, Size(blocks=2), 1200, 1)
    assert uncovered == []
    assert kinds > 60


@pytest.mark.long
@pytest.mark.parametrize("size", [Size(requests=2), Size(requests=2, transfers=2)], ids=str)
def test_moves_among_others_are_ways_in_which_an_action_can_go(size: Size, proved: Report) -> None:
    assert proved.proofs is not None
    uncovered, kinds = _uncovered(proved.proofs, size, 4000, 3)
    assert uncovered == []
    assert kinds > 60


def test_some_script_takes_each_row_that_goes() -> None:
    wanted = {
        (machine, number)
        for machine in ("request", "transfer", "engine")
        for number, _ in standard().machine(machine).table.go_rows()
    }
    assert rows_taken(standard()) == wanted


def test_a_shortest_script_is_found_and_is_short() -> None:
    found = search(standard(), lambda state, done, shape: done.action == "preempt")
    assert found.script is not None
    assert [step.split()[0] for step in found.script.steps] == ["add", "admit", "preempt"]
    assert len(found.script.steps) <= DEPTH


def test_one_run_keeps_every_promise_of_fairness() -> None:
    run = joint_witness(standard())
    for assumption in FAIRNESS:
        assert any(step.split()[0] in assumption.kept_by for step in run), assumption.name
