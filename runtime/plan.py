"""What a plan says: who runs, who starts, who makes room. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .columns import Int64Array, read_only
from .lifecycle import LaunchedStep, Lifecycle
from .transfers.manager import RemotePrefix


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that starts to run: its hold covers hits and new blocks, a step its tokens."""

    row: int
    hits: Int64Array
    new: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Loading:
    """A request that waits for its prefix first."""

    row: int
    hits: Int64Array
    remote: RemotePrefix
    reserve: int


NO_ROWS = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class Plan:
    """What the next step is to be, and who makes room for it. Data only."""

    rows: Int64Array = field(default_factory=lambda: NO_ROWS)  # [n] running already
    tokens: Int64Array = field(default_factory=lambda: NO_ROWS)  # [n] to compute of each
    new_blocks: Int64Array = field(default_factory=lambda: NO_ROWS)  # [n] that its table lacks
    errors: list[int] = field(default_factory=list)  # rows that can never run
    reclaims: list[int] = field(default_factory=list)
    victims: list[int] = field(default_factory=list)  # the last in order first
    stalled: list[int] = field(default_factory=list)  # running, and short of blocks
    #: In this order, which `carry_out` keeps: what an earlier one evicts, no later one hits.
    starts: list[Admission | Loading] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.rows.size or self.errors or self.reclaims or self.victims or self.starts)


class CarriedOut(NamedTuple):
    """What became of a plan."""

    launched: LaunchedStep | None
    admitted: tuple[Admission, ...] = ()  # who runs now and did not before
    loading: tuple[Loading, ...] = ()  # who waits for a load now; it may have failed already
    errors: tuple[int, ...] = ()
    preempted: tuple[int, ...] = ()


class Steady:
    """The plan of steady decoding, good for the steps in which nothing but lengths changes.

    That is until a hold changes, the running requests are others, or one of them comes to the end
    of its blocks or of its turn. It is remembered by the scheduler and is no state of the engine.
    """

    __slots__ = ("_after", "_last", "_rows", "_version", "ones", "zeros")

    def __init__(
        self, lifecycle: Lifecycle, rows: Int64Array, ones: Int64Array, steps: int, grows: bool
    ) -> None:
        """The step that is planned now, and `steps` more after it.

        `ones`: a token for each row. `grows`: the planned step makes tables longer.
        """
        # Nobody writes to them, so what a launch finds of them is so in the next step as well.
        self.ones: Int64Array = read_only(ones)
        self.zeros: Int64Array = read_only(np.zeros(len(rows), dtype=np.int64))
        self._rows = rows
        self._after = lifecycle.launched
        self._last = lifecycle.launched + steps
        self._version = lifecycle.holds_version + grows

    def holds_for(self, lifecycle: Lifecycle, rows: Int64Array, budget: int) -> bool:
        """Whether the next step is one of them."""
        launched = lifecycle.launched
        return (
            rows is self._rows
            and self._after < launched <= self._last
            and lifecycle.newest_rows is rows
            and lifecycle.holds_version == self._version
            and not lifecycle.ledger.quarantined_blocks
            and len(rows) <= budget
        )
