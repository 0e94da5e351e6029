"""Attention over paged keys and values, behind one small protocol.

A backend plans a step once and is then called for each layer. Keys and values of the step's own
tokens are in their slots already when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from .config import ModelConfig
from .native import native
from .step import StepLayout


class Attention(Protocol):
    """How a device attends."""

    def plan(self, layout: StepLayout) -> Any:
        """What all layers of the step share."""

    def attend(
        self,
        plan: Any,
        queries: torch.Tensor,
        slots: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Causal attention of each token to its own sequence, in one layer.

        queries: [t, heads, head_dim]; slots: [2, num_slots, kv_heads, head_dim];
        returns [t, heads * head_dim], may use the memory of out, which has that shape.
        """


def _room(queries: torch.Tensor, given: torch.Tensor | None) -> torch.Tensor:
    """Dense memory in the queries' shape."""
    if given is not None:
        return given.view(queries.shape)
    return torch.empty_like(queries, memory_format=torch.contiguous_format)


Sequence = Callable[[torch.Tensor], torch.Tensor]
"""From a layer's slots to the keys and values of one request: [2, kv_heads, length, head_dim]."""


def _sequence(layout: StepLayout, index: int, block_size: int) -> Sequence:
    """A view where the table is one run of blocks, else a gather by block."""
    length = int(layout.lengths[index])
    if layout.is_run[index]:
        first = int(layout.tables[index, 0]) * block_size
        return lambda slots: slots[:, first : first + length].transpose(1, 2)
    blocks = torch.from_numpy(layout.tables[index, : layout.block_counts[index]].copy())

    def gathered(slots: torch.Tensor) -> torch.Tensor:
        by_block = slots.view(2, -1, block_size, *slots.shape[2:])
        chosen = by_block.index_select(1, blocks.to(slots.device))
        return chosen.flatten(1, 2)[:, :length].transpose(1, 2)

    return gathered


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A request that computes several tokens in this step."""

    rows: slice
    sequence: Sequence
    mask: torch.Tensor | None  # [count, length], added to the scores; None from position 0


def _chunk(layout: StepLayout, index: int, block_size: int, like: torch.dtype) -> _Chunk:
    start, length = int(layout.starts[index]), int(layout.lengths[index])
    mask = None
    if start > 0:
        count = length - start
        device = layout.slots.device
        mask = torch.full((count, length), float("-inf"), dtype=like, device=device)
        mask.triu_(start + 1)
    rows = slice(int(layout.offsets[index]), int(layout.offsets[index + 1]))
    return _Chunk(rows, _sequence(layout, index, block_size), mask)


def _attend_chunk(chunk: _Chunk, queries: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """[count, heads, head_dim]; the heads that share a kv head are its batch's heads."""
    keys, values = chunk.sequence(slots)
    kv_heads, length, head_dim = keys.shape
    count, heads, _ = queries.shape
    shared = heads // kv_heads
    grouped = queries.view(count, kv_heads, shared, head_dim).permute(1, 2, 0, 3)
    spread = (kv_heads, shared, length, head_dim)
    out = scaled_dot_product_attention(
        grouped,
        keys.unsqueeze(1).expand(spread),
        values.unsqueeze(1).expand(spread),
        attn_mask=chunk.mask,
        is_causal=chunk.mask is None,
    )
    return out.permute(2, 0, 1, 3).reshape(count, heads, head_dim)


@dataclass(frozen=True, slots=True)
class _PerRequestPlan:
    decodes: list[tuple[int, Sequence]]  # row, its sequence
    chunks: list[_Chunk]


class PerRequestAttention:
    """One call a request, on views: what was fastest on a CPU, where padding costs most.

    A decoding request has one query for each head; those that share a kv head are folded into
    the query rows of that head, so that keys and values are read once.
    """

    def __init__(self, config: ModelConfig, block_size: int, dtype: torch.dtype) -> None:
        self._kv_heads = config.num_kv_heads
        self._block_size = block_size
        self._dtype = dtype

    def plan(self, layout: StepLayout) -> _PerRequestPlan:
        """Split the step into decoding requests and chunks."""
        decodes, chunks = [], []
        for index, count in enumerate(layout.counts.tolist()):
            if count == 1:
                row = int(layout.offsets[index])
                decodes.append((row, _sequence(layout, index, self._block_size)))
            else:
                chunks.append(_chunk(layout, index, self._block_size, self._dtype))
        return _PerRequestPlan(decodes, chunks)

    def attend(
        self,
        plan: _PerRequestPlan,
        queries: torch.Tensor,
        slots: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See Attention."""
        tokens, heads, head_dim = queries.shape
        out = _room(queries, out)
        folded = queries.view(tokens, self._kv_heads, -1, head_dim)
        out_folded = out.view(folded.shape)
        for row, sequence in plan.decodes:
            keys, values = sequence(slots)
            query = folded[row : row + 1]
            out_folded[row : row + 1] = scaled_dot_product_attention(
                query, keys.unsqueeze(0), values.unsqueeze(0)
            )
        for chunk in plan.chunks:
            out[chunk.rows] = _attend_chunk(chunk, queries[chunk.rows], slots)
        return out.view(tokens, heads * head_dim)


@dataclass(frozen=True, slots=True)
class _NativePlan:
    rows: torch.Tensor  # int64 [d], the tensors that hold what the kernel reads
    tables: torch.Tensor  # int64 [d, w]
    lengths: torch.Tensor  # int64 [d]
    chunks: list[_Chunk]


class NativeAttention:
    """Decoding requests in one C kernel, straight from their blocks; chunks as above."""

    def __init__(self, config: ModelConfig, block_size: int, dtype: torch.dtype) -> None:
        kernels = native(dtype)
        if kernels is None:
            raise RuntimeError(f"no C kernels for {dtype} on this machine")
        self._kernels = kernels
        self._kv_heads = config.num_kv_heads
        self._block_size = block_size
        self._dtype = dtype

    def plan(self, layout: StepLayout) -> _NativePlan:
        """Columns of the decoding requests; chunks by themselves."""
        decoding = np.flatnonzero(layout.counts == 1)
        chunks = [
            _chunk(layout, int(index), self._block_size, self._dtype)
            for index in np.flatnonzero(layout.counts > 1)
        ]
        return _NativePlan(
            rows=torch.from_numpy(layout.offsets[decoding]),
            tables=torch.from_numpy(layout.tables[decoding]),
            lengths=torch.from_numpy(layout.lengths[decoding]),
            chunks=chunks,
        )

    def attend(
        self,
        plan: _NativePlan,
        queries: torch.Tensor,
        slots: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See Attention."""
        tokens, heads, head_dim = queries.shape
        out = _room(queries, out)
        keys, values = slots.unbind(0)
        if len(plan.rows) and not self._kernels.decode_attention(
            queries.data_ptr(), queries.stride(0), keys.data_ptr(), values.data_ptr(),
            plan.rows.data_ptr(), plan.tables.data_ptr(), plan.lengths.data_ptr(),
            out.data_ptr(), len(plan.rows), plan.tables.shape[1], self._block_size,
            heads, self._kv_heads, head_dim, head_dim**-0.5, torch.get_num_threads(),
        ):  # fmt: skip
            raise MemoryError("no memory for the scores of the attention")
        for chunk in plan.chunks:
            out[chunk.rows] = _attend_chunk(chunk, queries[chunk.rows], slots)
        return out.view(tokens, heads * head_dim)


@dataclass(frozen=True, slots=True)
class _BatchedPlan:
    rows: torch.Tensor  # int64 [d]
    blocks: torch.Tensor  # int64 [d, w]
    mask: torch.Tensor  # bool [d, 1, 1, w * block_size]
    beyond: torch.Tensor  # its opposite, [d, w * block_size, 1, 1]
    chunks: list[_Chunk]


class BatchedAttention:
    """All decoding requests in one call, gathered by block and padded to the longest.

    The choice for an accelerator, where a launch costs more than padding.
    """

    def __init__(self, config: ModelConfig, block_size: int, dtype: torch.dtype) -> None:
        self._kv_heads = config.num_kv_heads
        self._block_size = block_size
        self._dtype = dtype

    def plan(self, layout: StepLayout) -> _BatchedPlan:
        """Block ids and mask of the decoding requests; chunks by themselves."""
        device = layout.slots.device
        decoding = np.flatnonzero(layout.counts == 1)
        width = int(layout.block_counts[decoding].max(initial=0))
        blocks = np.maximum(layout.tables[decoding, :width], 0)
        reach = np.arange(width * self._block_size) < layout.lengths[decoding, None]
        chunks = [
            _chunk(layout, int(index), self._block_size, self._dtype)
            for index in np.flatnonzero(layout.counts > 1)
        ]
        return _BatchedPlan(
            rows=torch.from_numpy(layout.offsets[decoding]).to(device),
            blocks=torch.from_numpy(blocks).to(device),
            mask=torch.from_numpy(reach).to(device)[:, None, None, :],
            beyond=torch.from_numpy(~reach).to(device)[:, :, None, None],
            chunks=chunks,
        )

    def attend(
        self,
        plan: _BatchedPlan,
        queries: torch.Tensor,
        slots: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See Attention."""
        tokens, heads, head_dim = queries.shape
        out = _room(queries, out)
        if plan.rows.numel():
            by_block = slots.view(2, -1, self._block_size, self._kv_heads, head_dim)
            count, width = plan.blocks.shape
            chosen = by_block.index_select(1, plan.blocks.flatten())
            chosen = chosen.view(2, count, width * self._block_size, -1, head_dim)
            # What lies past a sequence's end was never its own: a NaN there times zero is a NaN.
            keys, values = chosen.masked_fill_(plan.beyond, 0.0)
            query = queries[plan.rows].view(count, self._kv_heads, -1, head_dim)
            attended = scaled_dot_product_attention(
                query, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=plan.mask
            )
            out[plan.rows] = attended.reshape(count, heads, head_dim)
        for chunk in plan.chunks:
            out[chunk.rows] = _attend_chunk(chunk, queries[chunk.rows], slots)
        return out.view(tokens, heads * head_dim)


def attention_for(
    config: ModelConfig, block_size: int, dtype: torch.dtype, device: torch.device
) -> Attention:
    """The backend of a device."""
    if device.type != "cpu":
        return BatchedAttention(config, block_size, dtype)
    if native(dtype) is not None:
        return NativeAttention(config, block_size, dtype)
    return PerRequestAttention(config, block_size, dtype)
