"""Bounded breadth-first search of tiny instances: shortest scripts, and rows that can be taken.

Only events from the start count, at most eight; instances grow from one request and one block.
What is not found there is not shown to be unreachable, and is reported as "not found".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...statemachine.states import EngineEvent
from ..symbolic import terms
from ..symbolic.evaluate import compile_terms, scalar_choice
from ..symbolic.terms import BoolTerm
from .declaration import Declaration
from .memory import memory
from .world import Eyes, Shape, Size, State, World, everybody, project
from .world_moves import Done, Moves

DEPTH = 8
#: Instances in the order in which they are tried, and how many states of each are looked at.
SIZES = (Size(), Size(blocks=2), Size(requests=2))
STATES = 5000
#: And when every row is to be taken: the declaration needs some 5,000 of its instance.
STATES_FOR_ROWS = 4 * STATES
#: The events of the engine alone.
ENGINE = frozenset(event.name.lower() for event in EngineEvent)


@dataclass(frozen=True)
class Script:
    """The events of a shortest way to a state, in words."""

    steps: tuple[str, ...]
    size: Size


@dataclass(frozen=True)
class Searched:
    """The outcome of a search: a script, or how much was looked at in vain."""

    script: Script | None
    states: int
    exhausted: bool

    def __str__(self) -> str:
        if self.script is not None:
            return f"found with {len(self.script.steps)} events"
        how = f"no script of at most {DEPTH} events" if self.exhausted else "no script"
        return (
            f"{how} reaches it among {self.states} states of tiny instances: "
            "the invariant may be too weak"
        )


#: Whether a move has reached what is looked for.
Found = Callable[[State, Done, Shape], bool]


def search(
    declaration: Declaration,
    found: Found,
    *,
    sizes: Sequence[Size] = SIZES,
    states: int = STATES,
    engine: bool = False,
) -> Searched:
    """Look for the shortest script whose last move is what is looked for.

    `engine`: it is about the engine alone, whose own events are tried before all others.
    """
    looked_at, exhausted = 0, True
    tried = [(size, None) for size in sizes]
    for size, themes in [(Size(), ENGINE), *tried] if engine else tried:
        shape = Shape(declaration, size)
        script, seen, complete = _search_one(shape, found, states, themes)
        looked_at += seen
        exhausted = exhausted and complete
        if script is not None:
            return Searched(Script(script, size), looked_at, False)
    return Searched(None, looked_at, exhausted)


def _search_one(
    shape: Shape, found: Found, limit: int, themes: frozenset[str] | None
) -> tuple[tuple[str, ...] | None, int, bool]:
    moves = Moves(shape)
    start = shape.start().state()
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    level = [start]
    for _ in range(DEPTH):
        following: list[State] = []
        for state in level:
            for done in moves.of(state, themes):
                if found(state, done, shape):
                    return (*_path(came_from, state), done.words), len(came_from), False
                if done.state not in came_from:
                    came_from[done.state] = (state, done.words)
                    following.append(done.state)
            if len(came_from) > limit:
                return None, len(came_from), False
        level = following
    return None, len(came_from), True


def _path(came_from: Mapping[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    words: list[str] = []
    step = came_from[state]
    while step is not None:
        words.append(step[1])
        step = came_from[step[0]]
    return tuple(reversed(words))


def walk(declaration: Declaration, size: Size, states: int) -> Iterator[tuple[Shape, State, Done]]:
    """Every move of an instance, breadth first, until so many states were seen."""
    shape = Shape(declaration, size)
    moves = Moves(shape)
    start = shape.start().state()
    seen, level = {start}, [start]
    while level:
        following: list[State] = []
        for state in level:
            for done in moves.of(state):
                yield shape, state, done
                if done.state not in seen:
                    seen.add(done.state)
                    following.append(done.state)
            if len(seen) > states:
                return
        level = following


def breaks(statement: BoolTerm, action: str = "", *, step: bool = False) -> Found:
    """A move of that action after which a statement is false that held before it.

    Without an action: any move that leaves a state in which it is false. With `step` it is the
    action's own statement, of the state before and (variables with a prime) after it.
    """
    kinds = terms.variables([statement])
    names = list(kinds)
    evaluate = compile_terms([statement])
    of = "launch" if action == "launch_step" else action  # mostly one move here, two in the proofs
    seen: set[State] = set()

    def holds(eyes: Eyes, before: World, after: World, done: Done) -> bool:
        values = {name: _value(name, eyes, before, after, done) for name in names}
        values = {
            name: bool(value) if kinds[name] == "bool" else value for name, value in values.items()
        }
        return bool(evaluate(values, scalar_choice)[0])

    def found(state: State, done: Done, shape: Shape) -> bool:
        if action and done.action not in (of, action):
            return False
        if not action:
            if done.state in seen:
                return False
            seen.add(done.state)
        before, after = World(shape, state), World(shape, done.state)
        for eyes in everybody(shape.size):
            if step:
                if _acts(eyes, done) and not holds(eyes, before, after, done):
                    return True
            elif not holds(eyes, after, after, done) and (
                not action or holds(eyes, before, before, done)
            ):
                return True
        return False

    return found


def _acts(eyes: Eyes, done: Done) -> bool:
    request, transfer = done.acting
    return request in (None, eyes.request) and transfer in (None, eyes.transfer)


def _value(name: str, eyes: Eyes, before: World, after: World, done: Done) -> int:
    if name.endswith("'"):
        return project(after, eyes, name.rstrip("'"))
    record, _, field = name.partition(".")
    if record == "pick":
        pick = done.picks.get(eyes.block)
        if pick is None:
            return 0
        known = {"named": pick.position >= 0, "fresh": pick.fresh, "loaded": pick.loaded,
                 "position": pick.position, "prefix": pick.position + 1}  # fmt: skip
        return int(known.get(field, 0))
    if record in _TOLD:
        return int(done.told.get(name, 0))
    return project(before, eyes, name)


_TOLD = ("ask", "transfer_ask", "transfer_pick", "engine_ask", "reset", "bulk")


def rows_taken(declaration: Declaration, states: int = STATES_FOR_ROWS) -> set[tuple[str, int]]:
    """The rows that some script from the start takes; stops when all that go were found."""
    key = declaration.digest, states
    if key not in _taken:
        _taken[key] = frozenset(_rows_taken(declaration, states))
    return set(_taken[key])


#: By the text of a declaration.
_taken: dict[tuple[str, int], frozenset[tuple[str, int]]] = memory()


def _rows_taken(declaration: Declaration, states: int) -> set[tuple[str, int]]:
    wanted = {
        (machine, number)
        for machine in ("request", "transfer", "engine")
        for number, _ in declaration.machine(machine).table.go_rows()
    }
    taken: set[tuple[str, int]] = set()
    for _, _, done in walk(declaration, Size(blocks=2), states):
        taken.update(done.rows)
        if taken >= wanted:
            break
    return taken
