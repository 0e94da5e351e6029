"""What every layer of a step needs to know, worked out once from the engine's batch.

All of it is array arithmetic on the batch's columns: nothing here loops over requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepLayout:
    """Where the tokens of a step are: `n` requests, `t` tokens, on the host as numpy.

    Request i owns rows offsets[i] to offsets[i + 1] of everything that is [t, ...]; after the
    step its sequence is lengths[i] long, of which the last counts[i] are this step's.
    """

    counts: Int64Array  # [n]
    starts: Int64Array  # [n]
    lengths: Int64Array  # [n] starts + counts
    offsets: Int64Array  # [n + 1]
    tables: Int64Array  # [n, w] block ids
    block_counts: Int64Array  # [n] how many entries of each table the sequence needs
    is_run: npt.NDArray[np.bool_]  # [n] whether those entries are adjacent blocks
    positions: torch.Tensor  # int64 [t]
    slots: torch.Tensor  # int64 [t] where each token's key and value go

    @property
    def last(self) -> Int64Array:
        """[n] the row of each request's last token."""
        return self.offsets[1:] - 1


def layout(
    starts: Int32Array,
    counts: Int32Array,
    tables: Int32Array,
    block_size: int,
    device: torch.device,
) -> StepLayout:
    """The layout of a batch whose arrays have been checked."""
    counts64 = counts.astype(np.int64)
    starts64 = starts.astype(np.int64)
    tables64 = tables.astype(np.int64)
    lengths = starts64 + counts64
    offsets = np.zeros(len(counts64) + 1, dtype=np.int64)
    np.cumsum(counts64, out=offsets[1:])
    owner = np.repeat(np.arange(len(counts64)), counts64)
    positions = np.arange(offsets[-1]) - (offsets[:-1] - starts64)[owner]
    slots = tables64[owner, positions // block_size] * block_size + positions % block_size
    block_counts = -(-lengths // block_size)
    expected = tables64[:, :1] + np.arange(tables64.shape[1])
    beyond = np.arange(tables64.shape[1]) >= block_counts[:, None]
    is_run = ((tables64 == expected) | beyond).all(axis=1)
    return StepLayout(
        counts=counts64,
        starts=starts64,
        lengths=lengths,
        offsets=offsets,
        tables=tables64,
        block_counts=block_counts,
        is_run=is_run,
        positions=torch.from_numpy(positions).to(device),
        slots=torch.from_numpy(slots).to(device),
    )
