"""The device's KV blocks: one arena, layer by layer, so that adjacent blocks need no gather.

    [layers, 2 (key, value), num_blocks, block_size, kv_heads, head_dim]

Within a layer the tokens of adjacent blocks are adjacent: a block table that is one run of ids is
a view. On the host, where blocks travel, each block is one contiguous piece.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from .config import ModelConfig
from .memory import new_arena


class TorchKV:
    """KV blocks of one model on one device. Raises MemoryError."""

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._num_blocks = num_blocks
        self.block_size = block_size
        self.device = device
        per_token = config.num_kv_heads * config.head_dim
        self._bytes_per_block = config.num_layers * 2 * block_size * per_token * dtype.itemsize
        self._arena = new_arena(self._bytes_per_block * num_blocks, device)
        self.blocks = self._arena.bytes.view(dtype).view(
            config.num_layers, 2, num_blocks, block_size, config.num_kv_heads, config.head_dim
        )
        # Copies have a stream of their own, or a transfer would queue behind the steps.
        self._copy_stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        #: The same memory by token slot: [layers, 2, num_blocks * block_size, kv_heads, head_dim].
        self.slots = self.blocks.flatten(2, 3)
        self.slots_of_layer = list(self.slots.unbind(0))

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""
        return self._num_blocks

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block, all layers."""
        return self._bytes_per_block

    @property
    def resident(self) -> bool:
        """Whether a step or a transfer may touch the blocks."""
        return self._arena.resident

    def new_buffer(self, blocks: int) -> torch.Tensor:
        """Host memory for that many blocks, one after another.

        Shape [blocks, layers, 2, block_size, kv_heads, head_dim]; a slice of it is a buffer too.
        """
        layers, two, _, *rest = self.blocks.shape
        return torch.empty(
            (blocks, layers, two, *rest),
            dtype=self.blocks.dtype,
            pin_memory=self.device.type == "cuda",
        )

    def read(self, blocks: npt.NDArray[np.int32], into: torch.Tensor) -> None:
        """Copy device blocks into a host buffer, in order; returns when the copy is complete."""
        if self._copy_stream is None:
            # Block by block runs at the speed of a plain copy; a gather makes a second one.
            for number, block in enumerate(blocks.tolist()):
                into[number].copy_(self.blocks[:, :, block])
            return
        with torch.cuda.stream(self._copy_stream):
            gathered = self.blocks.index_select(2, self._index(blocks)).movedim(2, 0).contiguous()
            into.copy_(gathered, non_blocking=True)
        self._wait_for_copy()

    def write(self, blocks: npt.NDArray[np.int32], source: torch.Tensor) -> None:
        """Copy a host buffer into device blocks, in order; returns when the copy is complete."""
        if self._copy_stream is None:
            for number, block in enumerate(blocks.tolist()):
                self.blocks[:, :, block].copy_(source[number])
            return
        with torch.cuda.stream(self._copy_stream):
            content = source.to(self.device, non_blocking=True).movedim(0, 2)
            self.blocks.index_copy_(2, self._index(blocks), content)
        self._wait_for_copy()

    def _wait_for_copy(self) -> None:
        """Wait for this copy alone: steps on other streams go on meanwhile."""
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(self._copy_stream)
        done.synchronize()

    def release(self) -> None:
        """Give the memory back. No step and no transfer may be in flight."""
        self._arena.release()

    def restore(self) -> None:
        """Take the memory again; the content is undefined. Raises MemoryError."""
        self._arena.restore()

    def _index(self, blocks: npt.NDArray[np.int32]) -> torch.Tensor:
        return torch.from_numpy(blocks.astype(np.int64)).to(self.device)
