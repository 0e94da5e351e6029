"""The array explorer beside Spin and a plain Python search, on one instance, in one run.

`pytest -m long -s tests/benchmarks/test_explore.py` prints the figures. All three explore the same
states over the same transitions; the explorer checks every invariant of every state on the way,
Spin is spared that. CPU seconds are compared, as medians of rounds in which they take turns: on a
busy machine the clock on the wall says little.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable
from statistics import median

import pytest
from kvproof.specs.check.declaration import standard
from kvproof.specs.explore import DEFAULT_FEATURES, Feature, Instance
from kvproof.specs.explore.compiled import System
from kvproof.specs.explore.plain import plain_search
from kvproof.specs.explore.search import Search
from kvproof.specs.explore.spin import build_spin

#: Three requests, three blocks, one load or store: 1.2 million states.
INSTANCE = Instance(requests=3, blocks=3, features=DEFAULT_FEATURES | {Feature.STORES})
#: The plain search is as fast at the beginning as later, and a whole one takes most of an hour.
PLAIN_STATES = 2000
ROUNDS = 3


def children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.long
@pytest.mark.programs("spin", "gcc")
def test_explorer_beside_spin_and_plain_python(capsys: pytest.CaptureFixture[str]) -> None:
    system = System(INSTANCE, standard())
    Search(system)  # compiles
    ours, theirs, walls = [], [], []
    with build_spin(system, most_states=1 << 22, optimise="-O2") as spin:
        for _ in range(ROUNDS):
            search = Search(system)
            begin = time.process_time()
            found = search.run()
            ours.append(time.process_time() - begin)
            before = children_seconds()
            counted = spin.run()
            theirs.append(children_seconds() - before)
            walls.append((found.seconds, counted.seconds))
    begin = time.process_time()
    plain = plain_search(system, most_states=PLAIN_STATES)
    plain_seconds = time.process_time() - begin
    assert (found.states, found.transitions) == (counted.states, counted.transitions)
    assert found.findings == []
    assert found.states >= 1_000_000
    expanded = sum(plain.levels[:-1])
    with capsys.disabled():
        print(f"\n{INSTANCE}: {found.states:,} states, {found.transitions:,} transitions")
        for name, seconds, states in (
            ("explorer", median(ours), found.states),
            ("Spin -O2", median(theirs), counted.states),
            ("plain Python", plain_seconds, expanded),
        ):
            print(f"  {name:<13}{states / seconds:12,.0f} states per CPU second")
        print(f"  explorer / Spin = {median(theirs) / median(ours):.1f} in CPU seconds")
        print(f"  medians of {ROUNDS} rounds; CPU seconds {_shown(ours)} and {_shown(theirs)}")
        print(f"  seconds on the wall {_shown(w for w, _ in walls)}; {_shown(w for _, w in walls)}")


def _shown(seconds: Iterable[float]) -> str:
    return ", ".join(f"{each:.1f}" for each in seconds)
