"""Symmetry is exact: one state for each orbit of the full search, no orbit left out."""

import itertools

import pytest
from kvproof.specs.explore import Instance
from kvproof.specs.explore.backend import TorchBackend
from kvproof.specs.explore.compiled import System
from kvproof.specs.explore.graph import Graph
from kvproof.specs.explore.plain import Values
from kvproof.specs.explore.search import Search

from .systems import F, core, system_of

#: Small enough that the orbits can be found by trying every permutation on every state.
CASES = {
    "two requests, two blocks": Instance(features=core(without=[F.ABORTS, F.RESETS])),
    "one request, three blocks": Instance(requests=1, blocks=3, features=core(F.STORES)),
    "three requests, one block": Instance(
        requests=3, blocks=1, transfers=0, prompt=1, model_length=2
    ),
    "by the policy": Instance(transfers=0, features=core(F.POLICY, without=[F.ABORTS, F.RESETS])),
}


def permuted(
    system: System, values: Values, requests: tuple[int, ...], blocks: tuple[int, ...]
) -> Values:
    """The state in which request n is what request requests[n] was, and blocks likewise."""
    held = {slot.name: value for slot, value in zip(system.slots, values, strict=True)}

    def origin(record: str) -> str:
        name = record.rstrip("0123456789_")
        numbers = record[len(name) :].split("_")
        match name:
            case "r" | "work":
                return f"{name}{requests[int(numbers[0])]}"
            case "place" | "held":
                return f"{name}{requests[int(numbers[0])]}_{blocks[int(numbers[1])]}"
            case "copy" | "carried":
                return f"{name}{numbers[0]}_{blocks[int(numbers[1])]}"
            case "b" | "more":
                return f"{name}{blocks[int(numbers[0])]}"
        return record

    return tuple(held[f"{origin(slot.record)}.{slot.field}"] for slot in system.slots)


def orbits(system: System, states: list[Values]) -> int:
    """How many orbits there are, by brute force."""
    instance = system.instance
    permutations = list(
        itertools.product(
            itertools.permutations(range(instance.requests)),
            itertools.permutations(range(instance.blocks)),
        )
    )
    left, found = set(states), 0
    while left:
        state = next(iter(left))
        orbit = {permuted(system, state, *each) for each in permutations}
        assert orbit <= left, "a permuted state is not reachable: there is no symmetry"
        left -= orbit
        found += 1
    return found


@pytest.mark.parametrize(
    "name",
    [
        "by the policy",
        "three requests, one block",
        pytest.param("two requests, two blocks", marks=pytest.mark.long),
        pytest.param("one request, three blocks", marks=pytest.mark.long),
    ],
)
def test_a_search_under_symmetry_visits_each_orbit_once(name: str) -> None:
    system = system_of(CASES[name])
    full, reduced = Search(system), Search(system, symmetry=True)
    states = full.run().states
    found = reduced.run()
    everything = [full.values(number) for number in range(states)]
    assert found.states == orbits(system, everything)
    visited = {reduced.values(number) for number in range(found.states)}
    assert visited <= set(everything)


def test_symmetry_is_the_same_on_torch() -> None:
    system = system_of(CASES["by the policy"])
    numpy = Search(system, symmetry=True).run()
    torch = Search(system, symmetry=True, backend=TorchBackend("cpu")).run()
    assert (numpy.states, numpy.levels) == (torch.states, torch.levels)


def test_the_least_state_is_the_same_for_a_whole_orbit() -> None:
    system = system_of(CASES["by the policy"])
    full, reduced = Search(system), Search(system, symmetry=True)
    full.run()
    assert reduced.canonical is not None
    state = full.values(full.visited.size - 1)
    both = list(itertools.permutations(range(2)))
    orbit = [permuted(system, state, *each) for each in itertools.product(both, both)]
    rows = reduced.backend.from_rows([reduced.layout.pack(each) for each in orbit])
    least = reduced.canonical.apply(rows)
    assert len({tuple(row) for row in least.tolist()}) == 1


def test_no_graph_is_made_of_a_search_under_symmetry() -> None:
    search = Search(system_of(CASES["three requests, one block"]), symmetry=True)
    search.run()
    with pytest.raises(ValueError, match="no paths of states"):
        Graph(search)
