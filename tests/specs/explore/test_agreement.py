"""Three searches count the same: arrays, the real functions in plain Python, Spin."""

import pytest
from kvproof.specs.explore import Instance
from kvproof.specs.explore.backend import TorchBackend
from kvproof.specs.explore.plain import plain_search
from kvproof.specs.explore.search import Search
from kvproof.specs.explore.spin import run_spin

from .systems import TINY, F, core, system_of

SMALL = {
    "everything by default": TINY,
    "blocks of two tokens, two steps ahead": Instance(
        requests=1, block_size=2, prompt=1, model_length=4, steps_ahead=2,
        features=core(F.SESSIONS, F.STOPS, without=[F.LOADS, F.FAILURES, F.RESETS, F.ABORTS]),
    ),
    "grammar, deadlines, longer tables": Instance(
        requests=1, features=core(F.GRAMMAR, F.DEADLINES, F.TRIM, F.CHUNKED)
    ),
    "stores that stay on record": Instance(
        requests=1, prompt=1, model_length=2, blocks=1, features=core(F.STORES, F.RECORDS, F.LEASES)
    ),
    "two requests by the policy": Instance(
        transfers=0, blocks=2, features=core(F.POLICY, without=[F.ABORTS, F.RESETS])
    ),
}  # fmt: skip
LARGER = {
    "a waiting reset and leases": Instance(
        requests=1, features=core(F.WAITING_RESETS, F.LEASES, F.QUARANTINE, without=[F.ABORTS])
    ),
    "pause, sleep, changed weights": Instance(
        requests=1, transfers=0, prompt=1, model_length=2,
        features=core(F.PAUSE, F.SLEEP, F.WEIGHTS, without=[F.LOADS, F.RESETS]),
    ),
    "shutdown and sessions": Instance(
        requests=1, transfers=0, features=core(F.SHUTDOWN, F.SESSIONS)
    ),
    "two requests, one load": Instance(),
    "two requests, faults of the connector": Instance(
        features=core(F.LEASES, F.QUARANTINE, F.LOST, F.DEADLINES)
    ),
    "two transfers": Instance(requests=1, transfers=2, features=core(F.STORES, F.RECORDS)),
    "failed loads are fatal": Instance(features=core(F.FATAL)),
    "a longer model": Instance(requests=1, blocks=3, model_length=4, features=core(F.STOPS)),
}  # fmt: skip


def agree(instance: Instance) -> None:
    system = system_of(instance)
    search = Search(system)
    found = search.run()
    plain = plain_search(system, check=True)
    assert found.complete
    assert found.findings == plain.findings == []
    assert (found.states, found.transitions) == (plain.states, plain.transitions)
    assert found.levels == plain.levels


@pytest.mark.parametrize("name", SMALL)
def test_arrays_and_the_real_functions_reach_equally_many_states(name: str) -> None:
    agree(SMALL[name])


@pytest.mark.long
@pytest.mark.parametrize("name", LARGER)
def test_they_do_on_larger_instances(name: str) -> None:
    agree(LARGER[name])


def test_both_reach_the_same_states_over_the_same_actions() -> None:
    from kvproof.specs.explore.graph import Graph
    from kvproof.specs.explore.plain import Stepper

    system = system_of(TINY)
    search = Search(system)
    search.run()
    graph = Graph(search)
    stepper = Stepper(system)
    by_arrays = {
        (search.values(source), graph.actions[command].label, search.values(target))
        for source, target, command in zip(
            graph.source.tolist(), graph.target.tolist(), graph.command.tolist(), strict=True
        )
    }
    by_functions = {
        (search.values(state), system.actions[number].label, after)
        for state in range(graph.states)
        for number, after, _ in stepper.successors(search.values(state))
    }
    assert by_arrays == by_functions


@pytest.mark.programs("spin", "gcc")
def test_spin_counts_the_same_states_and_transitions() -> None:
    system = system_of(TINY)
    found = Search(system).run()
    spin = run_spin(system, invariants=True, optimise="-O0")
    assert (spin.states, spin.transitions) == (found.states, found.transitions)
    assert spin.errors == 0


@pytest.mark.long
@pytest.mark.programs("spin", "gcc")
@pytest.mark.parametrize("name", [*SMALL, *LARGER])
def test_spin_agrees_on_every_small_instance(name: str) -> None:
    system = system_of((SMALL | LARGER)[name])
    found = Search(system).run()
    spin = run_spin(system)
    assert (spin.states, spin.transitions) == (found.states, found.transitions)


#: Three requests, three blocks, a transfer; docs/exploration.md has what was counted.
THREE = {
    "the default features": Instance(requests=3, blocks=3),
    "faults of the connector": Instance(
        requests=3, blocks=3,
        features=core(F.STORES, F.LEASES, F.QUARANTINE, F.DEADLINES, F.EVICTION),
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.programs("spin", "gcc")
@pytest.mark.parametrize("name", THREE)
def test_three_requests_and_three_blocks_are_exhaustive_and_spin_agrees(name: str) -> None:
    system = system_of(THREE[name])
    found = Search(system).run()
    assert found.complete
    assert found.findings == []
    spin = run_spin(system, most_states=1 << 23)
    assert (spin.states, spin.transitions) == (found.states, found.transitions)
    assert spin.errors == 0


def test_torch_finds_what_numpy_finds() -> None:
    system = system_of(TINY)
    numpy, torch = Search(system).run(), Search(system, backend=TorchBackend("cpu")).run()
    assert (numpy.states, numpy.transitions, numpy.levels) == (
        torch.states,
        torch.transitions,
        torch.levels,
    )


def test_small_chunks_find_the_same() -> None:
    system = system_of(TINY)
    whole, parts = Search(system).run(), Search(system, chunk=7).run()
    assert (whole.states, whole.transitions, whole.levels) == (
        parts.states,
        parts.transitions,
        parts.levels,
    )
