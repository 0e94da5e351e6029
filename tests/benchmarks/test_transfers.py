"""Bandwidth of the host tier against a plain copy of the same bytes, in one run.

`pytest -m long -s tests/benchmarks/test_transfers.py` prints the figures. Only their ratio is
asserted, and loosely: a tier that needs four times the time of a copy is broken, not busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from ..runtime.transfers.torch_blocks import AwaitedTier, random_blocks, shape

#: The KV of SmolLM2-135M in float32: 720 KiB a block of 16 tokens.
SMOLLM2 = shape(layers=30, kv_heads=3, head_dim=64)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def gigabytes_per_second(size: int, copy: Callable[[], object], rounds: int = 5) -> float:
    """The best of a few rounds."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        copy()
        seconds.append(time.perf_counter() - start)
    return size / min(seconds) / 1e9


@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("blocks", [4, 64, 256])
def test_a_transfer_is_not_far_from_a_plain_copy(
    device: str, blocks: int, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(2)
    kv = random_blocks(256, torch.device(device), SMOLLM2)
    awaited = AwaitedTier(kv, 256)
    keys = [b"%d" % number for number in range(blocks)]
    ids = np.arange(blocks, dtype=np.int32)
    size = blocks * kv.bytes_per_block
    host = kv.new_buffer(blocks)
    on_device = torch.empty(host.shape, dtype=host.dtype, device=device)
    numbers = iter(range(1, 1000))

    def finish() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def copy_out() -> None:
        host.copy_(on_device)
        finish()

    def copy_in() -> None:
        on_device.copy_(host)
        finish()

    def store() -> None:
        awaited.tier.reset()
        awaited.tier.start_store(next(numbers), keys, ids)
        awaited.signals()

    def load() -> None:
        awaited.tier.start_load(next(numbers), keys, ids)
        awaited.signals()

    for warm in (copy_out, copy_in, store, load):
        warm()
    figures = {
        "plain copy out": gigabytes_per_second(size, copy_out),
        "store": gigabytes_per_second(size, store),
        "plain copy in": gigabytes_per_second(size, copy_in),
        "load": gigabytes_per_second(size, load),
    }
    awaited.tier.close()
    with capsys.disabled():
        line = ", ".join(f"{name} {figure:.1f}" for name, figure in figures.items())
        print(f"\n{device}, {blocks} blocks of {kv.bytes_per_block >> 10} KiB, GB/s: {line}")
    assert figures["store"] > figures["plain copy out"] / 4
    assert figures["load"] > figures["plain copy in"] / 4
