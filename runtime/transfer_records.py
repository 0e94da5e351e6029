"""What the lifecycle knows of one transfer: read by everybody, written by the lifecycle alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from ..statemachine.facts import TransferFacts
from ..statemachine.reset import transfer_refuses
from ..statemachine.states import IN_FLIGHT, QUEUED
from .columns import ReadOnly, read_only

Int32Array = npt.NDArray[np.int32]


@dataclass(slots=True)
class Changing:
    """What changes of a transfer. The lifecycle alone writes it."""

    facts: TransferFacts
    held: bool = False
    waiters: dict[int, int] = field(default_factory=dict)


class TransferRecord(ReadOnly):
    """One transfer: its facts, its hold and those who wait for it."""

    __slots__ = ("_now", "blocks", "first", "keys", "number", "owner", "since")
    number: int
    keys: tuple[bytes, ...]  # of its blocks, in order
    blocks: Int32Array  # the device blocks that it writes (LOAD) or reads (STORE); read-only
    since: float  # when its hold was taken
    first: int  # LOAD: place of its first block in the waiters' tables
    owner: str  # LOAD: the id of the request that started it
    _now: Changing

    def __init__(
        self,
        number: int,
        facts: TransferFacts,
        keys: tuple[bytes, ...],
        blocks: Sequence[int],
        since: float,
        first: int,
        owner: str,
    ) -> None:
        self._set(
            number=number,
            keys=keys,
            blocks=read_only(np.array(blocks, dtype=np.int32)),
            since=since,
            first=first,
            owner=owner,
            _now=Changing(facts),
        )

    @property
    def facts(self) -> TransferFacts:
        """A copy of what the declaration knows of it."""
        return self._now.facts.copy()

    @property
    def held(self) -> bool:
        """Whether its hold covers its blocks: taken and not released."""
        return self._now.held

    @property
    def waiters(self) -> Mapping[int, int]:
        """The rows that wait for it, each with its device hits before the transfer's share."""
        return MappingProxyType(self._now.waiters)

    @property
    def state(self) -> int:
        """A TransferState."""
        return self._now.facts.state

    @property
    def kind(self) -> int:
        """LOAD or STORE."""
        return self._now.facts.kind

    @property
    def joinable(self) -> bool:
        """Whether a request may still come to wait for it."""
        return self._now.facts.state == QUEUED or self._now.facts.state == IN_FLIGHT

    @property
    def open(self) -> bool:
        """Whether it has not ended: quarantine is an end."""
        return transfer_refuses(self._now.facts.state)


def unknown_transfer(number: int) -> TransferRecord:
    """What is known of a number that was never used, or whose record is gone."""
    return TransferRecord(number, TransferFacts(), (), (), 0.0, 0, "")
