"""Makes the device's batch from a launched step: which tokens, where, in which blocks."""

from __future__ import annotations

import numpy as np

from .columns import BatchView, some
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
        positions, owners, lengths = starts, rows, known
    else:
        owner = np.repeat(np.arange(len(rows)), counts)
        offsets = np.cumsum(counts) - counts
        positions = np.arange(total) + (starts - offsets)[owner]
        owners, lengths = rows[owner], known[owner]
    pending = positions >= lengths
    if not some(pending):
        tokens: Int32Array = view.tokens[owners, positions]
        return tokens
    # The position of a token that is still to be sampled may lie behind the columns' end.
    tokens = view.tokens[owners, np.where(pending, 0, positions)]
    tokens[pending] = PREVIOUS_SAMPLE
    return tokens
