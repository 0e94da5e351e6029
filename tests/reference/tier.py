"""A dictionary as host tier, a remote one that offers what it is told, and the worker of both.

The worker does what it does whatever the engine believes: a copy that is told to land reads and
writes its blocks then and there, so a block that was freed too early shows as corruption. It
tells the engine nothing by itself; whoever drives it passes the signals on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvproof.specs.fuzz.fake_kv import FakeKV
from kvproof.statemachine.states import LOAD

from .pool import Slots


@dataclass
class Job:
    """One copy: the worker's own record of it."""

    number: int
    kind: int  # LOAD or STORE
    request: str | None
    blocks: list[int]
    slots: list[Slots]
    source: list[Slots] = field(default_factory=list)  # of a load
    open: bool = True  # it may still touch its blocks
    lost: bool = False  # and nobody will say when it no longer does


class HostTier:
    """KV by prefix, in a dictionary. `jobs` are all copies ever started, by number."""

    name = "host"

    def __init__(self, kv: FakeKV) -> None:
        self.kv = kv
        self.stored: dict[Slots, Slots] = {}  # what it is stored as -> what it is
        self.jobs: dict[int, Job] = {}
        self.begins_at_once = True  # otherwise whoever drives it says when
        self.broken = False  # it cannot be reset

    def lookup(self, request: str, wanted: Sequence[Slots]) -> int:
        """How many leading blocks of `wanted` it can load."""
        for count, slots in enumerate(wanted):
            if slots not in self.stored:
                return count
        return len(wanted)

    def start(
        self,
        number: int,
        kind: int,
        request: str | None,
        blocks: Sequence[int],
        slots: Sequence[Slots],
    ) -> None:
        """Take a copy in; it touches nothing until it begins."""
        job = self.jobs[number] = Job(number, kind, request, list(blocks), list(slots))
        if kind == LOAD:
            job.source = [self._read(part) for part in slots]

    def begin(self, number: int) -> None:
        """A worker has it: from here on nobody knows what the blocks of a load hold."""
        job = self.jobs[number]
        if job.kind == LOAD:
            for block in job.blocks:
                self.kv.spoil(block)

    def land(self, number: int) -> None:
        """The copy is complete."""
        self._copy(self.jobs[number], len(self.jobs[number].blocks))

    def fail(self, number: int, valid: int) -> None:
        """The copy has failed; its first `valid` blocks are right."""
        self._copy(self.jobs[number], valid)

    def stop(self, number: int) -> None:
        """It was cancelled before it could touch anything more."""
        self.jobs[number].open = False

    def reset(self) -> bool:
        """Drop all that is stored. False, and nothing changed, when it cannot."""
        if self.broken:
            return False
        self.stored.clear()
        return True

    def entries(self) -> list[tuple[Slots, Slots]]:
        """What can be hit: (stored as, content)."""
        return list(self.stored.items())

    def _copy(self, job: Job, count: int) -> None:
        job.open = False
        for i, block in enumerate(job.blocks[:count]):
            if job.kind == LOAD:
                self.kv.put(block, job.source[i])
            else:
                self._write(job.slots[i], self.kv.content(block))

    def _read(self, slots: Slots) -> Slots:
        return self.stored[slots]

    def _write(self, slots: Slots, content: Slots) -> None:
        self.stored[slots] = content


class RemoteTier(HostTier):
    """Another engine's KV: it offers `offers[request]` tokens of a prompt, and is sent to."""

    name = "remote"

    def __init__(self, kv: FakeKV) -> None:
        super().__init__(kv)
        self.offers: dict[str, int] = {}

    def lookup(self, request: str, wanted: Sequence[Slots]) -> int:
        """Whole blocks of what it offers for this request."""
        return min(len(wanted), self.offers.get(request, 0) // self.kv.block_size)

    def reset(self) -> bool:
        """It forgets its offers."""
        if self.broken:
            return False
        self.offers.clear()
        return super().reset()

    def _read(self, slots: Slots) -> Slots:
        return slots
