"""Packed states: layouts, the visited set, kernels, on numpy and on torch."""

import random

import numpy as np
import pytest
from kvproof.specs.explore import Instance, InstanceError
from kvproof.specs.explore import expressions as ex
from kvproof.specs.explore.backend import Backend, NumpyBackend, TorchBackend, backend_of
from kvproof.specs.explore.kernels import Kernel, NewByte
from kvproof.specs.explore.layout import Layout
from kvproof.specs.explore.structure import Slot, slots_of
from kvproof.specs.explore.visited import Visited

BACKENDS = [NumpyBackend(), TorchBackend("cpu")]


@pytest.mark.parametrize("aligned", [False, True])
def test_a_packed_state_unpacks_to_itself(aligned: bool) -> None:
    slots = slots_of(Instance(requests=3, blocks=3))
    layout = Layout(slots, aligned=aligned)
    chooser = random.Random(1)
    for _ in range(200):
        values = tuple(chooser.randint(slot.low, slot.high) for slot in slots)
        assert layout.unpack(layout.pack(values)) == values


def test_a_value_outside_of_its_range_is_not_packed() -> None:
    layout = Layout([Slot("e", "launched", 0, 1, False)])
    with pytest.raises(OverflowError, match=r"e\.launched is 2, outside 0\.\.1"):
        layout.pack([2])


def test_an_instance_that_does_not_fit_is_refused_with_what_would_be_right() -> None:
    with pytest.raises(InstanceError, match="take fewer requests, blocks, transfers"):
        Layout(slots_of(Instance(requests=6, blocks=8, transfers=4)))
    with pytest.raises(InstanceError, match="requests is 7"):
        Instance(requests=7)
    with pytest.raises(InstanceError, match="never fits"):
        Instance(blocks=1, block_size=1, prompt=2)


def test_an_unknown_or_missing_device_is_refused() -> None:
    with pytest.raises(InstanceError, match="no device 'tpu'"):
        backend_of("tpu")


@pytest.mark.skipif("__import__('torch').cuda.is_available()")
def test_cuda_without_a_gpu_is_refused_with_what_to_do() -> None:
    with pytest.raises(InstanceError, match="use --device cpu"):
        backend_of("cuda")


@pytest.mark.parametrize("xp", BACKENDS, ids=lambda xp: xp.name)
def test_the_visited_set_finds_each_state_once_however_often_it_comes(xp: Backend) -> None:
    chooser = np.random.default_rng(0)
    visited, known = Visited(xp, 2, capacity=4), {}
    for _ in range(20):
        batch = chooser.integers(0, 40, size=(300, 2))
        batch[:, 1] <<= 40
        new = [int(n) for n in xp.host(visited.add(xp.from_rows(batch.tolist())))]
        first = []
        for row in map(tuple, batch.tolist()):
            if row not in known:
                known[row] = None
                first.append(row)
        # Which of several equal ones is taken as the new one is left open.
        assert sorted(tuple(batch[n]) for n in new) == sorted(first)
        assert new == sorted(new)
    assert visited.size == len(known)
    rows = xp.host(visited.rows[: visited.size])
    assert {tuple(row) for row in rows.tolist()} == set(known)


@pytest.mark.parametrize("xp", BACKENDS, ids=lambda xp: xp.name)
def test_the_visited_set_knows_what_it_never_met(xp: Backend) -> None:
    visited = Visited(xp, 1, capacity=4)
    visited.add(xp.from_rows([[n] for n in range(0, 2000, 2)]))
    found = xp.host(visited.find(xp.from_rows([[n] for n in range(2000)]))).tolist()
    assert all((number >= 0) == (n % 2 == 0) for n, number in enumerate(found))
    rows = xp.host(visited.rows).tolist()
    assert all(rows[number] == [n] for n, number in enumerate(found) if number >= 0)


SLOTS = [
    Slot("e", "mode", 1, 7, False),
    Slot("e", "pausing", 0, 3, False),
    Slot("e", "sleep_paused", 0, 1, True),
    Slot("place0_0", "position", -1, 2, False),
]


@pytest.mark.parametrize("xp", BACKENDS, ids=lambda xp: xp.name)
def test_a_kernel_computes_and_packs_what_the_terms_say(xp: Backend) -> None:
    layout = Layout(SLOTS)
    a, b, c = (
        ex.variable("e.mode", 1, 7),
        ex.variable("e.pausing", 0, 3),
        ex.condition("e.sleep_paused"),
    )
    p = ex.variable("place0_0.position", -1, 2)
    wanted = [
        ex.add(a, p), ex.choose(c, a, b), ex.choose(c, 5, b), ex.both(c, ex.at_most(p, 0)),
        ex.choose(c, ex.equal(a, 2), ex.equal(b, 1)), ex.multiply(ex.multiply(a, a), 40),
    ]  # fmt: skip
    place = layout.by_name["place0_0.position"]
    new = NewByte(place.byte, 255 & ~(place.mask << place.shift), 0, ((place, ex.minimum(b, 2)),))
    kernel = Kernel(layout, xp, wanted, [new])
    states = [
        (m, q, s, n) for m in range(1, 8) for q in range(4) for s in (0, 1) for n in (-1, 0, 1, 2)
    ]
    rows = xp.from_rows([layout.pack(state) for state in states])
    results = [xp.host(result).tolist() for result in kernel.run(xp.bytes_of(rows))]
    for n, (mode, pausing, paused, position) in enumerate(states):
        assert [int(result[n]) for result in results[:-1]] == [
            mode + position,
            mode if paused else pausing,
            5 if paused else pausing,
            int(bool(paused) and position <= 0),
            int(mode == 2 if paused else pausing == 1),
            mode * mode * 40,
        ]
        after = list(layout.pack((mode, pausing, paused, min(pausing, 2)))[0].to_bytes(8, "little"))
        assert results[-1][n] & 255 == after[place.byte]
