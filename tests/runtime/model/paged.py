"""A decoder with its KV and a table a request: steps written as (request, tokens) pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from kvproof.runtime.model.attention import (
    BatchedAttention,
    NativeAttention,
    PerRequestAttention,
)
from kvproof.runtime.model.decoder import Decoder
from kvproof.runtime.model.kv import TorchKV
from kvproof.runtime.model.load import open_checkpoint
from kvproof.runtime.model.operations import TorchOperations, operations_for
from kvproof.runtime.model.step import layout
from kvproof.runtime.model.weights import Weights

CPU = torch.device("cpu")
BLOCK = 4
NUM_BLOCKS = 64
Backend = type[PerRequestAttention] | type[BatchedAttention] | type[NativeAttention]


class Paged:
    """Runs tokens of several requests through a decoder and returns logits of every token."""

    def __init__(
        self,
        path: Path,
        backend: Backend = PerRequestAttention,
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
    ) -> None:
        self.device = device
        self.weights = Weights(lambda: open_checkpoint(path), dtype, device)
        config = self.weights.config
        self.kv = TorchKV(config, NUM_BLOCKS, BLOCK, dtype, device)
        self.kv.blocks.fill_(float("nan"))  # reading what was never written must show
        small = (
            operations_for(config, dtype, device)
            if backend is NativeAttention
            else TorchOperations(config)
        )
        self.decoder = Decoder(self.weights, backend(config, BLOCK, dtype), small)
        if backend is NativeAttention:  # the fast way as a whole
            self.decoder.pack()
        self.tables: dict[str, list[int]] = {}
        self._done: dict[str, int] = {}

    def step(self, *work: tuple[str, Sequence[int] | np.ndarray]) -> list[torch.Tensor]:
        """One step; for each request the float32 logits [its tokens, vocab]."""
        starts = np.array([self._done.get(name, 0) for name, _ in work], np.int32)
        counts = np.array([len(tokens) for _, tokens in work], np.int32)
        needed = -(-(starts + counts) // BLOCK)
        tables = np.full((len(work), int(needed.max()) + 1), -1, np.int32)
        for row, (name, _) in enumerate(work):
            tables[row, : needed[row]] = self.tables[name][: needed[row]]
            self._done[name] = int(starts[row] + counts[row])
        flat = np.concatenate([np.asarray(tokens, np.int64) for _, tokens in work])
        where = layout(starts, counts, tables, BLOCK, self.device)
        hidden = self.decoder.hidden(torch.from_numpy(flat).to(self.device), where, self.kv)
        return list(self.decoder.logits(hidden).cpu().split(counts.tolist()))
