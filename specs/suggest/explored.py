"""States as columns of the proofs' variables: those of tiny instances, and those that refute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ..check.conditions import Decided
from ..check.declaration import Declaration
from ..check.proofs import Proofs
from ..check.search import walk
from ..check.world import Shape, Size, State, World, everybody, project
from ..symbolic import terms
from .templates import Columns

#: Instances, and how many states of each are looked at.
SIZES = (Size(), Size(blocks=2, steps_ahead=2), Size(requests=2))
STATES = 1500


def explored(proofs: Proofs, names: Sequence[str]) -> Columns:
    """The variables in states that can be reached, whoever is looked at."""
    rows: set[tuple[int, ...]] = set()
    for size in SIZES:
        for shape, state in _states(proofs.declaration, size):
            world = World(shape, state)
            for eyes in everybody(size):
                rows.add(tuple(int(project(world, eyes, name)) for name in names))
    return _columns(sorted(rows), names, proofs.variables.kinds)


def refuting(proofs: Proofs, refuted: Sequence[Decided], names: Sequence[str]) -> Columns:
    """The variables in the states that refute, for those who act and those who look on."""
    rows = []
    for failure in refuted:
        for request in ("", "2"):
            for transfer in ("", "2"):
                view = proofs.state.at(request=request, transfer=transfer)
                found = (view.value(*name.split(".")) for name in names)
                values = (failure.model.eval(term, model_completion=True) for term in found)
                rows.append(tuple(int(terms.as_constant(value) or 0) for value in values))
    return _columns(rows, names, proofs.variables.kinds)


def _columns(
    rows: Sequence[tuple[int, ...]], names: Sequence[str], kinds: Mapping[str, str]
) -> Columns:
    table = np.array(rows, dtype=np.int64)
    return {
        name: table[:, number].astype(np.bool_) if kinds[name] == "bool" else table[:, number]
        for number, name in enumerate(names)
    }


def _states(declaration: Declaration, size: Size) -> Iterator[tuple[Shape, State]]:
    seen: set[State] = set()
    for shape, before, done in walk(declaration, size, STATES):
        for state in (before, done.state):
            if state not in seen:
                seen.add(state)
                yield shape, state
