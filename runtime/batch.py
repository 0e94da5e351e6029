"""Makes the device's batch from a launched step: which tokens, where, in which blocks."""

from __future__ import annotations

import numpy as np

from .columns import BatchView, Int64Array, every, some
from .lifecycle import LaunchedStep, Lifecycle
from .protocols import PREVIOUS_SAMPLE, Int32Array, StepBatch


class BatchBuilder:
    """Makes batches; block tables that have not changed are not copied again."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._rows: Int64Array | None = None
        self._rows32: Int32Array = np.zeros(0, dtype=np.int32)
        #: The tables are those of these rows at that version of the holds.
        self._tables_of: Int64Array | None = None
        self._version = -1
        self._tables: Int32Array = np.zeros((0, 0), dtype=np.int32)

    def build(self, launched: LaunchedStep) -> StepBatch:
        """The batch of a step that was launched just now.

        The runner keeps its arrays, and nobody writes to them: two batches may share one.
        """
        rows, starts, counts = launched.rows, launched.starts, launched.counts
        if rows is not self._rows:
            self._rows, self._rows32 = rows, rows.astype(np.int32)
        if rows is not self._tables_of or self._version != self._lifecycle.holds_version:
            self._copy_tables(launched)
        return StepBatch(
            launched.step,
            self._rows32,
            starts.astype(np.int32),
            counts.astype(np.int32),
            _tokens(self._lifecycle.view, launched),
            self._tables,
            launched.samples,
        )

    def _copy_tables(self, launched: LaunchedStep) -> None:
        size = self._lifecycle.block_size
        needed = (launched.ends + (size - 1)) // size
        width = max(needed.tolist())
        self._tables = self._lifecycle.view.tables[launched.rows, :width]
        self._tables_of, self._version = launched.rows, self._lifecycle.holds_version
        if some(needed < launched.covered):
            # A hold may cover more than this step touches, and the next step another part of it.
            self._tables[np.arange(width) >= needed[:, None]] = -1
            self._tables_of = None

    def in_order(self, rows: Int32Array, launched: LaunchedStep) -> bool:
        """Whether these rows of a step's result are those that were launched, in their order."""
        if rows is self._rows32 and launched.rows is self._rows:
            return True
        return len(rows) == len(launched.rows) and every(rows == launched.rows)


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
        known_of_one = None if known is None else known[one]
        tokens[ends[one] - 1] = _next_tokens(view, rows[one], starts[one], known_of_one)
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
    view: BatchView, rows: Int64Array, positions: Int64Array, known: Int64Array | None
) -> Int32Array:
    """One token of each row."""
    pending = None if known is None else positions >= known
    if pending is None or not some(pending):
        tokens: Int32Array = view.tokens[rows, positions]
        return tokens
    # The position of a token that is still to be sampled may lie behind the columns' end.
    tokens = view.tokens[rows, np.where(pending, 0, positions)]
    tokens[pending] = PREVIOUS_SAMPLE
    return tokens
