"""The host tier over real KV blocks: torch on the CPU, and on a GPU where there is one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kvproof.runtime.protocols import SignalKind

from .torch_blocks import AwaitedTier, random_blocks, shape

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def names(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_blocks_come_back_bit_for_bit_into_other_places(device: str, dtype: torch.dtype) -> None:
    kv = random_blocks(32, torch.device(device), shape(3, 2, 8), dtype=dtype)
    before = kv.blocks.clone()
    awaited = AwaitedTier(kv, 16, piece_bytes=3 * kv.bytes_per_block)
    source = np.array([3, 4, 5, 9, 1, 30, 31, 2], dtype=np.int32)
    target = np.array([20, 11, 12, 13, 25, 17, 16, 28], dtype=np.int32)
    awaited.tier.start_store(1, names(8), source)
    assert [signal.kind for signal in awaited.signals()] == [SignalKind.LANDED]
    kv.blocks.zero_()
    if device == "cuda":
        torch.cuda.synchronize()
    awaited.tier.start_load(2, names(8), target)
    assert [signal.kind for signal in awaited.signals()] == [SignalKind.LANDED]
    awaited.tier.close()
    for one, other in zip(source.tolist(), target.tolist(), strict=True):
        assert torch.equal(kv.blocks[:, :, other], before[:, :, one])
    untouched = sorted(set(range(32)) - set(target.tolist()))
    assert not kv.blocks[:, :, untouched].any()


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_step_wrote_before_the_store_is_what_is_stored(device: str) -> None:
    kv = random_blocks(8, torch.device(device), shape(2, 2, 16))
    awaited = AwaitedTier(kv, 4)
    kv.blocks[:, :, 5] = 1.5
    if device == "cuda":
        torch.cuda.synchronize()  # what collecting a step's result does
    awaited.tier.start_store(1, names(1), np.array([5], dtype=np.int32))
    awaited.signals()
    kv.blocks[:, :, 5] = 7.0
    awaited.tier.start_load(2, names(1), np.array([2], dtype=np.int32))
    awaited.signals()
    # Read by the compute stream with no further waiting: the signal came after the last byte.
    assert bool((kv.blocks[:, :, 2] == 1.5).all())
    awaited.tier.close()


@pytest.mark.gpu
def test_a_copy_does_not_queue_behind_the_steps_of_a_busy_device() -> None:
    device = torch.device("cuda")
    kv = random_blocks(8, device, shape(2, 2, 16))
    awaited = AwaitedTier(kv, 4)
    awaited.tier.start_store(1, names(1), np.array([5], dtype=np.int32))
    awaited.signals()
    torch.cuda.synchronize()
    busy_until = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)  # about a second of the compute stream
    busy_until.record()
    awaited.tier.start_load(2, names(1), np.array([2], dtype=np.int32))
    awaited.signals()
    assert not busy_until.query(), "the load landed while the steps were still running"
    torch.cuda.synchronize()
    assert torch.equal(kv.blocks[:, :, 2], kv.blocks[:, :, 5])
    awaited.tier.close()


@pytest.mark.gpu
def test_the_tier_is_pinned_memory() -> None:
    kv = random_blocks(8, torch.device("cuda"), shape(2, 2, 16))
    assert kv.new_buffer(4).is_pinned()
