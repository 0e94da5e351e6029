"""What is known of a device step: as it is launched, and as it is settled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .columns import Int64Array

Int32Array = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]


class LaunchedStep(NamedTuple):
    """A step that the device executes, row after row in the order of its batch."""

    step: int
    rows: Int64Array  # [n]
    starts: Int64Array  # [n] position of the first token computed
    counts: Int64Array  # [n] tokens computed
    ends: Int64Array  # [n] position behind the last one
    samples: BoolArray  # [n] whether a token is sampled after the last position
    all_sample: bool  # no row's prefill goes on in a later step
    known: Int64Array | None  # [n] tokens known of each sequence; None: all that it computes
    covered: Int64Array  # [n] blocks that each hold covers
    disturbances: int  # the lifecycle's count of them at launch


@dataclass(frozen=True, slots=True)
class Stop:
    """A turn that ends by what a step sampled. `reason` is a FINISHED_* state."""

    row: int
    reason: int
    at_limit: bool = False


class Settled(NamedTuple):
    """What a processed step delivered, and which requests it ended."""

    step: int
    rows: Int64Array  # [m] requests that were given a token, in the order of the batch
    tokens: Int32Array  # [m] the token
    lengths: Int64Array  # [m] length of the sequence with it
    stopped: tuple[Stop, ...] = ()
    failed: tuple[int, ...] = ()  # rows that the step's failure has ended


#: Looks at what was delivered, (rows, tokens, lengths, limits), and says whose turn ends by it.
Judge = Callable[[Int64Array, Int32Array, Int64Array, Int64Array], Iterable[Stop]]
