"""The host tier: published KV blocks copied to host memory and back by a worker thread.

Order of a copy against everything else. A store begins only on published blocks, whose step is
processed, so it reads after the write; a load is signalled after its last byte is written, so
whoever is told reads after the copy. What a cancelled copy may still touch is told truthfully:
FENCED comes when its worker is out of the blocks, never before.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from ..protocols import Int32Array, KVStorage, SignalKind, TransferSignal
from .index import Entry, TierIndex

#: A copy is cancelled between pieces of about this size, so it ends within milliseconds.
PIECE_BYTES = 8 << 20
#: Host memory is allocated (and pinned, where there is a GPU) this much at a time.
SLAB_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class TierStats:
    """One consistent picture of the tier. Bytes are those really copied, since the start."""

    blocks: int  # that can be loaded
    capacity_blocks: int
    jobs: int  # queued or being copied
    loaded_bytes: int
    stored_bytes: int


@dataclass(eq=False, slots=True)
class _Job:
    transfer: int
    is_load: bool
    blocks: Int32Array  # [n] of the device, one for each slot
    slots: list[int]
    short: bool  # the tier cannot do all that was asked: it will end in FAILED
    keys: list[bytes] = field(default_factory=list)  # of a store
    entries: list[Entry] = field(default_factory=list)  # of a load, pinned
    generation: int = 0
    done: int = 0  # blocks copied
    cancelled: bool = False


class HostTier:
    """A `NotifyingConnector` over host memory with a byte budget, LRU; it compares keys alone.

    Every `cancel` is answered with FENCED once no reader or writer is left: also after LANDED or
    FAILED, and for a transfer that nobody knows, because the engine may have lost the first answer.
    """

    def __init__(
        self,
        kv: KVStorage,
        capacity_bytes: int,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self._kv = kv
        self._call: Callable[[], None] | None = None
        size = kv.bytes_per_block
        self._piece = max(1, piece_bytes // size)
        self._index = TierIndex(capacity_bytes // size)
        self._memory = _SlabMemory(kv, self._index.slots, max(self._piece, SLAB_BYTES // size))
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._loads: deque[_Job] = deque()
        self._stores: deque[_Job] = deque()
        self._jobs: dict[int, _Job] = {}
        self._being_stored: set[bytes] = set()
        self._signals: deque[TransferSignal] = deque()
        self._loaded_blocks = self._stored_blocks = 0
        self._closed = False
        self._worker = threading.Thread(target=self._work_loop, name="host-tier", daemon=True)
        self._worker.start()

    # --- the engine's side --------------------------------------------------------------------

    def on_signal(self, call: Callable[[], None]) -> None:
        """Call this after each signal: from the worker, or from the caller of `cancel`."""
        self._call = call

    def lookup(self, keys: Sequence[bytes]) -> int:
        """How many leading keys the tier can load at this moment. Changes nothing."""
        with self._lock:
            return self._index.leading(keys)

    def touch(self, keys: Sequence[bytes]) -> None:
        """These are of use: others go first."""
        with self._lock:
            self._index.touch(keys)

    def start_load(self, transfer: int, keys: Sequence[bytes], blocks: Int32Array) -> None:
        """Queue a copy into the device blocks. Keys that are gone by now make it FAILED.

        What is stored is pinned here, in the engine's thread: nothing that `lookup` has promised
        to the same step can be evicted in between.
        """
        with self._lock:
            self._accept(transfer, keys, blocks)
            entries = self._index.pin(keys)
            slots = [entry.slot for entry in entries]
            job = _Job(
                transfer,
                is_load=True,
                blocks=blocks[: len(slots)].copy(),
                slots=slots,
                short=len(slots) < len(keys),
                entries=entries,
            )
            self._jobs[transfer] = job
            self._loads.append(job)
            self._work.notify()

    def start_store(self, transfer: int, keys: Sequence[bytes], blocks: Int32Array) -> None:
        """Queue a copy out of the device blocks. What is stored already is not copied again.

        When all else is in use, less than asked for is stored: a tier may forget. With no room
        at all the store ends in FAILED.
        """
        with self._lock:
            self._accept(transfer, keys, blocks)
            self._index.touch(keys)
            missing = [
                number
                for number, key in enumerate(keys)
                if key not in self._index and key not in self._being_stored
            ]
            slots = self._index.reserve(len(missing))
            picked = missing[: len(slots)]
            job = _Job(
                transfer,
                is_load=False,
                blocks=blocks[picked],
                slots=slots,
                short=bool(missing) and not slots,
                keys=[keys[number] for number in picked],
                generation=self._index.generation,
            )
            self._being_stored.update(job.keys)
            self._jobs[transfer] = job
            self._stores.append(job)
            self._work.notify()

    def poll(self) -> Sequence[TransferSignal]:
        """What has ended since the last call. Never blocks."""
        signals = []
        while self._signals:
            signals.append(self._signals.popleft())
        return signals

    def cancel(self, transfer: int) -> None:
        """Stop it: FENCED comes by `poll` once no reader or writer of its blocks is left."""
        with self._lock:
            job = self._jobs.get(transfer)
            if job is not None:
                job.cancelled = True
                queue = self._loads if job.is_load else self._stores
                if job not in queue:
                    return  # the worker has it and answers between two pieces
                queue.remove(job)
                self._forget(job)
            self._signals.append(TransferSignal(transfer, SignalKind.FENCED))
        self._tell()

    def reset(self) -> bool:
        """Drop every stored block; always done. Copies under way end, and install nothing."""
        with self._lock:
            self._index.clear()
            return True

    def close(self) -> None:
        """Stop the worker between two pieces and free the memory. Safe to call twice."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
        if threading.current_thread() is not self._worker:
            self._worker.join()
            self._memory.drop()

    def stats(self) -> TierStats:
        """Sizes now, and bytes copied since the start."""
        size = self._kv.bytes_per_block
        with self._lock:
            return TierStats(
                blocks=len(self._index),
                capacity_blocks=self._index.slots,
                jobs=len(self._jobs),
                loaded_bytes=self._loaded_blocks * size,
                stored_bytes=self._stored_blocks * size,
            )

    def check(self) -> None:
        """Raise AssertionError unless every slot is accounted for."""
        with self._lock:
            self._index.check()
            dropped = {
                entry.slot for job in self._jobs.values() for entry in job.entries if not entry.kept
            }
            storing = sum(len(job.slots) for job in self._jobs.values() if not job.is_load)
            used = len(self._index) + self._index.free + len(dropped) + storing
            assert used == self._index.slots, f"{self._index.slots - used} slots are lost"

    def _accept(self, transfer: int, keys: Sequence[bytes], blocks: Int32Array) -> None:
        if self._closed:
            raise RuntimeError("the host tier is closed")
        if transfer in self._jobs:
            raise ValueError(f"transfer {transfer} is under way")
        if len(keys) != len(blocks):
            raise ValueError(f"{len(keys)} keys for {len(blocks)} blocks")

    # --- the worker's side --------------------------------------------------------------------

    def _work_loop(self) -> None:
        while True:
            with self._lock:
                while not (self._loads or self._stores or self._closed):
                    self._work.wait()
                if self._closed:
                    self._fence_all()
                    return
                # A request waits for a load, nobody for a store.
                job = (self._loads or self._stores).popleft()
            try:
                self._copy(job)
                failed = False
            except Exception:  # whatever the device raises, its waiters must be told
                failed = True
            with self._lock:
                self._end(job, failed)
            self._tell()

    def _copy(self, job: _Job) -> None:
        """Copy piece after piece until done or cancelled. Raises what the device raises."""
        for start, stop in self._memory.pieces(job.slots, self._piece):
            if job.cancelled or self._closed:
                return
            buffer = self._memory.view(job.slots[start], stop - start)
            if job.is_load:
                self._kv.write(job.blocks[start:stop], buffer)
            else:
                self._kv.read(job.blocks[start:stop], buffer)
            job.done = stop

    def _end(self, job: _Job, failed: bool) -> None:
        """Say how it ended: with FENCED if it was stopped, and after any end that was cancelled."""
        complete = not failed and job.done == len(job.slots)
        if complete and not job.short:
            self._signals.append(TransferSignal(job.transfer, SignalKind.LANDED))
        elif failed or complete:
            valid = job.done if job.is_load else 0
            self._signals.append(TransferSignal(job.transfer, SignalKind.FAILED, valid))
        if job.cancelled or not (failed or complete):
            self._signals.append(TransferSignal(job.transfer, SignalKind.FENCED))
        self._forget(job)

    def _forget(self, job: _Job) -> None:
        del self._jobs[job.transfer]
        if job.is_load:
            self._index.unpin(job.entries)
            self._loaded_blocks += job.done
            return
        self._being_stored.difference_update(job.keys)
        # What was copied before a stop or a failure is right, so it is kept.
        self._index.install(job.keys[: job.done], job.slots[: job.done], job.generation)
        self._index.give_back(job.slots[job.done :])
        self._stored_blocks += job.done

    def _fence_all(self) -> None:
        for job in (*self._loads, *self._stores):
            self._forget(job)
            self._signals.append(TransferSignal(job.transfer, SignalKind.FENCED))
        self._loads.clear()
        self._stores.clear()

    def _tell(self) -> None:
        if self._call is not None:
            self._call()


class _SlabMemory:
    """The slots' memory, allocated slab by slab as it is first written. Used by the worker only."""

    def __init__(self, kv: KVStorage, slots: int, per_slab: int) -> None:
        self._kv = kv
        self._slots = slots
        self._per_slab = per_slab
        self._slabs: dict[int, Any] = {}

    def pieces(self, slots: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
        """Ranges of `slots` that are adjacent in one slab, each of at most `most` slots."""
        if not slots:
            return
        numbers = np.asarray(slots)
        breaks = np.flatnonzero((np.diff(numbers) != 1) | (numbers[1:] % self._per_slab == 0))
        edges = [0, *(breaks + 1).tolist(), len(slots)]
        for start, end in pairwise(edges):
            for piece in range(start, end, most):
                yield piece, min(piece + most, end)

    def view(self, slot: int, count: int) -> Any:
        """The buffer of adjacent slots of one slab. Raises MemoryError when it cannot be had."""
        number, first = divmod(slot, self._per_slab)
        slab = self._slabs.get(number)
        if slab is None:
            size = min(self._per_slab, self._slots - number * self._per_slab)
            slab = self._slabs[number] = self._kv.new_buffer(size)
        return slab[first : first + count]

    def drop(self) -> None:
        """Give the memory back."""
        self._slabs.clear()
