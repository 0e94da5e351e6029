"""Makes the device's batch from a launched step: which tokens, where, in which blocks."""

from __future__ import annotations

import numpy as np

from .columns import BatchView
from .protocols import PREVIOUS_SAMPLE, Int32Array, StepBatch
from .steps import LaunchedStep


def build_batch(view: BatchView, launched: LaunchedStep, block_size: int) -> StepBatch:
    """The batch of a step that was launched just now. Its arrays are new: the runner keeps them."""
    rows, starts, counts = launched.rows, launched.starts, launched.counts
    ends = starts + counts
    needed = -(-ends // block_size)
    width = int(needed.max())
    tables = view.tables[rows, :width]
    if (needed != view.covered[rows]).any():
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
    rows, starts, counts = launched.rows, launched.starts, launched.counts
    known = view.prompt[rows] + view.delivered[rows]
    if len(counts) == int(counts.sum()):
        positions, owners, lengths = starts, rows, known
    else:
        owner = np.repeat(np.arange(len(rows)), counts)
        offsets = np.cumsum(counts) - counts
        positions = np.arange(len(owner)) - offsets[owner] + starts[owner]
        owners, lengths = rows[owner], known[owner]
    tokens: Int32Array = view.tokens[owners, np.minimum(positions, view.tokens.shape[1] - 1)]
    pending = positions >= lengths
    if pending.any():
        tokens[pending] = PREVIOUS_SAMPLE
    return tokens
