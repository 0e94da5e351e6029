"""Differential test of a function's symbolic paths against the function on concrete states.

The executor could be wrong about Python: an operator built into the wrong term, a branch missed.
Here the function runs as the engine runs it, on slot records and plain ints, and its paths are
evaluated on the same values; what is written, returned and raised must be equal. The states are
small ones, random ones biased towards the constants that the paths mention, and, so that no path
goes unvisited, one for each path that the solver found, with changes to a field or two.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeAlias

from . import terms
from .errors import DisagreementError, OutsidePreconditionError, UnsatisfiableError
from .feasibility import satisfiable
from .paths import Evaluated, Path, PathSet
from .records import Record

#: A concrete state: for each record the values of all its fields, for other variables theirs.
State: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Agreement:
    """How much was compared: `states` within the precondition, and how many took each path.

    `small` are the values that every int variable took in every combination; it is empty if
    there were too many combinations, so that a sample of them was drawn instead.
    """

    states: int
    small: tuple[int, ...]
    visits: tuple[int, ...]


def agree(paths: PathSet, *, cases: int = 200, small_cases: int = 400, seed: int = 0) -> Agreement:
    """Compare a function with its paths on small, random and solver-found states.

    Raises DisagreementError with the state and the difference.
    """
    visits = dict.fromkeys(paths, 0)
    chooser = random.Random(seed)
    values, small = _small_states(paths, small_cases, chooser)
    for state in itertools.chain(values, _random_states(paths, cases, chooser)):
        try:
            visits[agree_at(paths, state)] += 1
        except OutsidePreconditionError:
            continue
    return Agreement(sum(visits.values()), small, tuple(visits.values()))


def agree_at(paths: PathSet, state: Mapping[str, Any]) -> Path:
    """Compare a function with its paths on one state; returns the path that it takes.

    Raises OutsidePreconditionError, before the function runs, for a state that the precondition
    excludes.
    """
    expected = paths.evaluate(state)
    records = {record.name: _real(record, state[record.name]) for record in paths.records.values()}
    arguments = {
        parameter: records[each.name]
        if isinstance(each, Record)
        else state[each.decl().name()]
        if terms.is_term(each)
        else each
        for parameter, each in paths.arguments.items()
    }
    result: object = None
    raised: type[Exception] | None = None
    try:
        result = paths.function(**arguments)
    except Exception as error:
        raised = type(error)
    problems = _differences(expected, result, raised, records, state)
    if problems:
        raise DisagreementError(
            f"{paths.function.__qualname__} at {dict(state)}: {'; '.join(problems)}\n"
            f"on the path:\n{expected.path}"
        )
    return expected.path


def agree_on_arrays(paths: PathSet, *, length: int = 1000, seed: int = 0) -> None:
    """Compare a branch-free function with its one path on random arrays, and on each element.

    Raises DisagreementError; ValueError if the function is not branch-free.
    """
    import numpy

    chooser = random.Random(seed)
    pool = _pool(paths)
    columns: dict[str, Any] = {}
    for each in paths.arguments.values():
        if terms.is_term(each):
            bools = terms.kind_of(each) == "bool"
            drawn = [_draw("bool" if bools else "int", pool, chooser) for _ in range(length)]
            columns[each.decl().name()] = numpy.array(drawn, dtype=bool if bools else numpy.int64)

    def run(values: Mapping[str, Any]) -> Any:
        return paths.function(
            **{
                parameter: values[each.decl().name()] if terms.is_term(each) else each
                for parameter, each in paths.arguments.items()
            }
        )

    symbolic = numpy.broadcast_to(paths.evaluate_arrays(columns), (length,))
    arrays = numpy.broadcast_to(run(columns), (length,))
    for index in range(length):
        scalar = run({name: column[index].item() for name, column in columns.items()})
        if not scalar == symbolic[index] == arrays[index]:
            state = {name: column[index].item() for name, column in columns.items()}
            raise DisagreementError(
                f"{paths.function.__qualname__} at {state}: {scalar} on ints, "
                f"{arrays[index]} on arrays, {symbolic[index]} by its term"
            )


def witness(paths: PathSet, path: Path) -> State:
    """A concrete state that takes a path, found by the solver."""
    model = satisfiable([paths.precondition, path.condition])
    if model is None:
        raise UnsatisfiableError(f"nothing takes the path\n{path}")
    found = {
        name: terms.as_constant(model.eval(terms.variable(name, kind), model_completion=True))
        for name, kind in paths.variables.items()
    }
    return _state(paths, lambda name, kind: found.get(name, 0))


def _real(record: Record, values: Mapping[str, int]) -> Any:
    """A record as the engine has it; of the class of facts if that is known."""
    if any(terms.as_constant(term) is None for term in record.given.values()):
        raise ValueError(f"record {record.name} holds terms: no concrete state says what they are")
    real = SimpleNamespace() if record.facts is None else object.__new__(record.facts)
    for field in record.kinds:
        setattr(real, field, values[field])
    return real


def _differences(
    expected: Evaluated,
    result: object,
    raised: type[Exception] | None,
    records: Mapping[str, Any],
    state: Mapping[str, Any],
) -> list[str]:
    found: list[str] = []
    if raised is not expected.path.raised:
        found.append(f"raises {raised}, expected {expected.path.raised}")
    if raised is None and not (result is expected.result or result == expected.result):
        found.append(f"returns {result}, expected {expected.result}")
    for name, record in records.items():
        for field, before in state[name].items():
            after = expected.writes[name].get(field, before)
            if getattr(record, field) != after:
                found.append(f"{name}.{field} is {getattr(record, field)}, expected {after}")
    return found


def _small_states(
    paths: PathSet, limit: int, chooser: random.Random
) -> tuple[Iterator[State], tuple[int, ...]]:
    """All states over a few small values, as many values as the limit allows; else a sample."""
    fixed = _fixed(paths)
    mentioned = {name: kind for name, kind in paths.variables.items() if name not in fixed}
    for small in ((0, 1, 2, 3), (0, 1, 2), (0, 1)):
        domains = [(False, True) if kind == "bool" else small for kind in mentioned.values()]
        if math.prod(map(len, domains)) <= limit:
            chosen: Iterator[Sequence[int]] = itertools.product(*domains)
            tried: tuple[int, ...] = small
            break
    else:
        chosen = ([chooser.choice(domain) for domain in domains] for _ in range(limit))
        tried = ()

    empty = _state(paths, lambda name, kind: fixed.get(name, 0))
    states = (_changed(empty, dict(zip(mentioned, each, strict=True))) for each in chosen)
    return states, tried


def _random_states(paths: PathSet, count: int, chooser: random.Random) -> Iterator[State]:
    """One state for each path, then by turns a random one, and one of these with changes."""
    pool, fixed = _pool(paths), _fixed(paths)
    drawn = _state(paths, lambda name, kind: fixed.get(name, _draw(kind, pool, chooser)))
    free = [(name, kind) for name, kind in paths.variables.items() if name not in fixed]
    found = [witness(paths, path) for path in paths]
    yield from found
    for index in range(count if free else 1):
        random_turn = index % 2 == 0
        changed = free if random_turn else [chooser.choice(free) for _ in range(2)]
        state = drawn if random_turn else found[index // 2 % len(found)]
        # Fields that no term mentions are drawn once: only the frame can go wrong there.
        yield _changed(state, {name: _draw(kind, pool, chooser) for name, kind in changed})


def _changed(state: State, values: Mapping[str, int]) -> State:
    """A copy of a state with some variables changed."""
    copy = {name: dict(each) if isinstance(each, dict) else each for name, each in state.items()}
    for name, value in values.items():
        record, _, field = name.partition(".")
        if isinstance(copy.get(record), dict):
            copy[record][field] = value
        else:
            copy[name] = value
    return copy


def _state(paths: PathSet, value_of: Callable[[str, terms.Kind], Any]) -> State:
    """A state from a function of a variable's name and kind."""
    state: State = {}
    for record in paths.records.values():
        state[record.name] = {
            field: value_of(f"{record.name}.{field}", kind) for field, kind in record.kinds.items()
        }
    for name, kind in paths.kinds.items():
        if name.partition(".")[0] not in state:
            state[name] = value_of(name, kind)
    return state


def _fixed(paths: PathSet) -> dict[str, int]:
    """The variables that the records fix."""
    return {
        f"{record.name}.{field}": terms.as_constant(term) or 0
        for record in paths.records.values()
        for field, term in record.given.items()
    }


def _pool(paths: PathSet) -> list[int]:
    """Ints worth trying: around zero and around each constant that the paths mention."""
    mentioned = terms.numerals(paths.terms)
    return sorted({near + step for near in {0, *mentioned} for step in (-1, 0, 1, 2)})


def _draw(kind: terms.Kind, pool: Sequence[int], chooser: random.Random) -> int:
    if kind == "bool":
        return chooser.random() < 0.5
    return chooser.choice(pool) if chooser.random() < 0.7 else chooser.randint(-50, 1000)
