"""Random operations by the ten thousand: adds, chunks, aborts, resets, pauses, sleeps, failures,
preemptions under shortage, two steps in flight, with every count checked after each."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from .chaos import Chaos

#: Small and large pools, both policies, both depths, both kinds of hash.
SHAPES: tuple[dict[str, Any], ...] = (
    {"depth": 2, "blocks": 8},
    {"depth": 1, "blocks": 12, "policy": "priority"},
    {"depth": 2, "blocks": 20, "hash_algorithm": "blake3"},
    {"depth": 2, "blocks": 12, "policy": "priority", "max_batched_tokens": 7},
    {"depth": 1, "blocks": 10, "max_num_seqs": 8},
    {"depth": 2, "blocks": 40, "max_num_seqs": 2},
)
#: Fewer calls that stop everything, so that requests run long enough to get in each other's way.
BUSY = {"pause": 0.2, "sleep": 0.1, "abort": 1.0, "reset": 1.5, "fail_step": 0.02}


def soak(seed: int, operations: int, *, busy: bool) -> Counter[str]:
    """One engine under random operations, drained at the end. Returns what was done."""
    chaos = Chaos(seed, weights=BUSY if busy else None, **SHAPES[seed % len(SHAPES)])
    chaos.step(operations)
    chaos.drain()
    done = chaos.done + Counter({"preemptions": chaos.core.stats().preemptions})
    chaos.close()
    return done


@pytest.mark.parametrize("busy", [False, True], ids=["calls", "busy"])
def test_a_short_soak_ends_with_everything_free(busy: bool) -> None:
    done = Counter[str]()
    for seed in range(8):
        done += soak(seed, 150, busy=busy)
    wanted = ("finish length", "finish stop", "finish abort", "reset done", "reset refused")
    assert all(done[name] for name in (*wanted, "preemptions", "call done")), done


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_a_long_soak_ends_with_everything_free(seed: int) -> None:
    """Forty engines, five thousand operations each."""
    done = soak(1000 + seed, 5000, busy=seed % 2 == 0)
    assert done["preemptions"] > 0
    assert done["reset done"] > 0
