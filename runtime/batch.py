"""Makes the device's batch from a launched step: which tokens, where, in which blocks."""

from __future__ import annotations

import numpy as np

from .columns import BatchView, Int64Array, some
from .protocols import PREVIOUS_SAMPLE, Int32Array, StepBatch
from .steps import LaunchedStep


def build_batch(view: BatchView, launched: LaunchedStep, block_size: int) -> StepBatch:
    """The batch of a step that was launched just now. Its arrays are new: the runner keeps them."""
    rows, starts, counts = launched.rows, launched.starts, launched.counts
    needed = (starts + counts + (block_size - 1)) // block_size
    width = max(needed.tolist())
    tables = view.tables[rows, :width]
    if some(needed < launched.covered):
        # A hold may cover more than this step touches.
        tables[np.arange(width) >= needed[:, None]] = -1
    return StepBatch(
        step=launched.step,
        rows=rows.astype(np.int32),
        starts=starts.astype(np.int32),
        counts=counts.astype(np.int32),
        tokens=_tokens(view, launched),
        tables=tables,
        samples=launched.samples,
    )


def _tokens(view: BatchView, launched: LaunchedStep) -> Int32Array:
    """The input ids, flat; what a launched step will sample is PREVIOUS_SAMPLE."""
    rows, starts, counts, known = launched.rows, launched.starts, launched.counts, launched.known
    total = sum(counts.tolist())
    if total == len(counts):
        return _next_tokens(view, rows, starts, known)
    # Who computes many tokens knows them all: copied slice by slice, the others all at once.
    tokens = np.empty(total, dtype=np.int32)
    ends = np.cumsum(counts)
    one = counts == 1
    if some(one):
        tokens[ends[one] - 1] = _next_tokens(view, rows[one], starts[one], known[one])
    many = ~one
    for row, start, count, end in zip(
        rows[many].tolist(),
        starts[many].tolist(),
        counts[many].tolist(),
        ends[many].tolist(),
        strict=True,
    ):
        tokens[end - count : end] = view.tokens[row, start : start + count]
    return tokens


def _next_tokens(
    view: BatchView, rows: Int64Array, positions: Int64Array, known: Int64Array
) -> Int32Array:
    """One token of each row."""
    pending = positions >= known
    if not some(pending):
        tokens: Int32Array = view.tokens[rows, positions]
        return tokens
    # The position of a token that is still to be sampled may lie behind the columns' end.
    tokens = view.tokens[rows, np.where(pending, 0, positions)]
    tokens[pending] = PREVIOUS_SAMPLE
    return tokens
