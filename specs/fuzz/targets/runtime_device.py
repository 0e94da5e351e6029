"""The fake device and tier of the runtime target: a Runner and a Connector that obey the fuzzer.

A launched step runs when its result is asked for, as late as can be; a copy runs when the fuzzer
says so. Both do what they do whatever the engine believes, so what was freed or handed out too
early shows in the fake KV.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ....runtime.protocols import (
    PREVIOUS_SAMPLE,
    Int32Array,
    SignalKind,
    StepBatch,
    StepResult,
    TransferSignal,
)
from ....runtime.sampling_params import SamplingParams
from ..fake_kv import FakeKV, Row, Wrong
from ..target import next_token


class Storage:
    """The fake KV as the engine's `KVStorage`; copies go through the tier below instead."""

    def __init__(self, kv: FakeKV, blocks: int) -> None:
        self._kv = kv
        self.num_blocks = blocks
        self.bytes_per_block = 1

    def new_buffer(self, blocks: int) -> Any:
        """Not used: the tier keeps contents, not bytes."""
        raise NotImplementedError

    def read(self, blocks: Int32Array, into: Any) -> None:
        """Not used."""
        raise NotImplementedError

    def write(self, blocks: Int32Array, source: Any) -> None:
        """Not used."""
        raise NotImplementedError

    def release(self) -> None:
        """The memory is given back."""
        self._kv.discard()

    def restore(self) -> None:
        """There is memory again."""
        self._kv.restore()


@dataclass(slots=True)
class Tenant:
    """What the device knows of the request in a row."""

    request: str
    tokens: list[int]
    stop_every: int


@dataclass(frozen=True, slots=True)
class Launched:
    """A step that has not run."""

    batch: StepBatch
    tenants: tuple[Tenant, ...]
    root: int


class Device:
    """Runs steps in order, each when it is collected."""

    def __init__(self, kv: FakeKV, blocks: int, tenant: Callable[[int], tuple[str, int]]) -> None:
        """`tenant` says which request is in a row, and its `stop_every`."""
        self.kv = Storage(kv, blocks)
        self.weights_resident = True
        self.steps: deque[Launched] = deque()
        #: (step, row) -> what was misread for the token that it sampled
        self.wrong: dict[tuple[int, int], Wrong] = {}
        self._fake = kv
        self._tenant = tenant
        self._tenants: dict[int, Tenant] = {}

    def bind(self, row: int, params: SamplingParams, tokens: Int32Array, outputs: int = 0) -> None:
        """A row has a new tenant, or its tenant a new turn."""
        request, stop_every = self._tenant(row)
        self._tenants[row] = Tenant(request, tokens.tolist(), stop_every)

    def unbind(self, row: int) -> None:
        """The row's tenant is gone."""
        del self._tenants[row]

    def launch(self, batch: StepBatch) -> None:
        """Take a step in. Without weights or cache there is nothing to run it with."""
        assert self.weights_resident, "a step was launched while the weights sleep"
        assert self._fake.resident, "a step was launched while the cache sleeps"
        tenants = tuple(self._tenants[row] for row in batch.rows.tolist())
        self.steps.append(Launched(batch, tenants, self._fake.root))

    def done(self, step: int) -> bool:
        """Never before it is asked for."""
        return False

    def collect(self, step: int, timeout: float | None = None) -> StepResult:
        """Run the step now."""
        launched = self.steps.popleft()
        batch = launched.batch
        assert batch.step == step
        rows = [self._row(launched, number) for number in range(len(batch.rows))]
        wrong = self._fake.run(rows)
        sampled = np.full(len(rows), -1, dtype=np.int32)
        for number, (row, tenant) in enumerate(zip(rows, launched.tenants, strict=True)):
            if not batch.samples[number]:
                continue
            token = next_token(row.tokens, tenant.stop_every)
            sampled[number] = token
            tenant.tokens.append(token)
            found = wrong[number]
            if found is not None:
                self.wrong[step, int(batch.rows[number])] = found
        return StepResult(step, batch.rows, sampled)

    def _row(self, launched: Launched, number: int) -> Row:
        batch, tenant = launched.batch, launched.tenants[number]
        start, count = int(batch.starts[number]), int(batch.counts[number])
        at = int(batch.counts[:number].sum())
        tokens = batch.tokens[at : at + count].tolist()
        known = tenant.tokens[start : start + count]
        assert all(
            given in (PREVIOUS_SAMPLE, own) for given, own in zip(tokens, known, strict=True)
        ), f"{tenant.request} is computed from {tokens} at {start}, and not from {known}"
        table = [block for block in batch.tables[number].tolist() if block >= 0]
        return Row(table, tenant.tokens[: start + count], start, start + count, launched.root)

    def release_weights(self, level: int) -> None:
        """The weights are gone."""
        self.weights_resident = False

    def restore_weights(self) -> None:
        """The weights are back."""
        self.weights_resident = True

    def close(self) -> None:
        """Nothing runs by itself."""


@dataclass(slots=True)
class Copy:
    """One transfer, as its worker knows it."""

    number: int
    kind: str  # LOAD or STORE
    request: str | None
    blocks: tuple[int, ...]
    keys: tuple[bytes, ...]
    source: list[tuple[int, ...]] = field(default_factory=list)  # of a load
    open: bool = True
    lost: bool = False


class Tier:
    """KV by key, in a dictionary; each copy ends when the fuzzer says how."""

    def __init__(self, kv: FakeKV, capacity: int) -> None:
        self._kv = kv
        self._capacity = capacity
        self.stored: dict[bytes, tuple[int, ...]] = {}
        self.copies: dict[int, Copy] = {}
        self.signals: list[TransferSignal] = []  # what has ended and was not heard of yet
        #: Told of each copy that starts, so that it can be given a name.
        self.owner: Callable[[int], str | None] = lambda number: None

    def lookup(self, keys: Sequence[bytes]) -> int:
        """How many leading keys it has."""
        for count, key in enumerate(keys):
            if key not in self.stored:
                return count
        return len(keys)

    def start_load(self, transfer: int, keys: Sequence[bytes], blocks: Int32Array) -> None:
        """From here on nobody knows what the blocks hold."""
        copy = self._start("LOAD", transfer, keys, blocks)
        copy.source = [self.stored[key] for key in keys]
        for block in copy.blocks:
            self._kv.spoil(block)

    def start_store(self, transfer: int, keys: Sequence[bytes], blocks: Int32Array) -> None:
        """Take a copy out in hand."""
        self._start("STORE", transfer, keys, blocks)

    def _start(self, kind: str, transfer: int, keys: Sequence[bytes], blocks: Int32Array) -> Copy:
        copy = Copy(transfer, kind, self.owner(transfer), tuple(blocks.tolist()), tuple(keys))
        self.copies[transfer] = copy
        return copy

    def end(self, transfer: int, blocks: int) -> None:
        """The copy of the first `blocks` blocks is made; if that is not all, it has failed."""
        copy = self.copies[transfer]
        copy.open = False
        for number, block in enumerate(copy.blocks[:blocks]):
            if copy.kind == "LOAD":
                self._kv.put(block, copy.source[number])
            else:
                self.stored.pop(copy.keys[number], None)
                self.stored[copy.keys[number]] = self._kv.content(block)
        while len(self.stored) > self._capacity:
            self.stored.pop(next(iter(self.stored)))
        whole = blocks >= len(copy.blocks)
        kind = SignalKind.LANDED if whole else SignalKind.FAILED
        valid = blocks if copy.kind == "LOAD" else 0
        self.signals.append(TransferSignal(transfer, kind, valid))

    def say_again(self, transfer: int) -> None:
        """The completion is reported once more."""
        self.signals.append(TransferSignal(transfer, SignalKind.LANDED))

    def confirm(self, transfer: int) -> None:
        """Nobody touches its blocks any more, whatever it has done until now."""
        self.copies[transfer].open = False
        self.signals.append(TransferSignal(transfer, SignalKind.FENCED))

    def poll(self) -> Sequence[TransferSignal]:
        """What has ended since the last call."""
        signals, self.signals = self.signals, []
        return signals

    def cancel(self, transfer: int) -> None:
        """A copy that can still be reached stops at once; of a lost one nothing is heard."""
        copy = self.copies[transfer]
        if not copy.lost:
            self.confirm(transfer)

    def reset(self) -> bool:
        """Drop all that is stored."""
        self.stored.clear()
        return True

    def close(self) -> None:
        """Nothing runs by itself."""
