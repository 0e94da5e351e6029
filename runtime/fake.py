"""A device without a model: its KV remembers which prefix was written to every slot.

The KV of a position is a number that stands for all tokens up to it, written when the step
finishes and not before; what is sampled depends on every slot that is attended to. So a block
that is freed, handed out, loaded or hit too early changes the output, and shows in `corruptions`
as well, with position and block.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .protocols import PREVIOUS_SAMPLE, Int32Array, StepBatch, StepResult
from .sampling_params import SamplingParams

UInt64Array = npt.NDArray[np.uint64]

GARBAGE = 0
_MASK = (1 << 64) - 1


def extend(prefix: int, token: int) -> int:
    """The number of a prefix with one token more; never GARBAGE for one that is not."""
    value = (prefix * 6364136223846793005 + token * 2 + 1442695040888963407) & _MASK
    value ^= value >> 29
    return value or 1


ROOT = 0x9E3779B97F4A7C15


def sampled_token(prefix: int, vocabulary: int) -> int:
    """The token that follows a prefix: any of the vocabulary but token 0."""
    return 1 + (prefix >> 17) % (vocabulary - 1)


#: (number of the prefix, its length) -> the token that follows.
Sampler = Callable[[int, int], int]


class FakeKV:
    """The slots of a device's blocks: uint64 [blocks, block size], a prefix number in each."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.slots: UInt64Array = np.zeros((num_blocks, block_size), dtype=np.uint64)
        self.resident = True

    @property
    def num_blocks(self) -> int:
        """Blocks of the device."""
        return len(self.slots)

    @property
    def bytes_per_block(self) -> int:
        """Bytes that a copy of one block moves."""
        return int(self.slots[0].nbytes)

    def new_buffer(self, blocks: int) -> UInt64Array:
        """Host memory for that many blocks."""
        return np.zeros((blocks, self.slots.shape[1]), dtype=np.uint64)

    def read(self, blocks: Int32Array, into: UInt64Array) -> None:
        """Copy device blocks to the host."""
        assert self.resident, "a copy out of a cache that sleeps"
        into[:] = self.slots[blocks]

    def write(self, blocks: Int32Array, source: UInt64Array) -> None:
        """Copy host blocks to the device."""
        assert self.resident, "a copy into a cache that sleeps"
        self.slots[blocks] = source

    def release(self) -> None:
        """The content is gone."""
        self.slots[:] = GARBAGE
        self.resident = False

    def restore(self) -> None:
        """The memory is back; its content is undefined."""
        self.resident = True


@dataclass(slots=True)
class _Tenant:
    """What the device knows of the request in a row."""

    tokens: list[int]
    previous: int = PREVIOUS_SAMPLE  # what its previous launched step sampled
    failed: bool = False  # a step of it failed: what later ones read is nobody's fault


@dataclass(frozen=True, slots=True)
class _Work:
    batch: StepBatch
    tenants: tuple[_Tenant, ...]


@dataclass(slots=True)
class Corruption:
    """An attended position that held something else than the request's own prefix."""

    step: int
    row: int
    position: int
    block: int


@dataclass
class FakeRunner:
    """Executes steps in the order of their launch: in a worker thread, or under test control.

    `manual`: a step finishes when the test calls `finish`, or when `collect` asks for it, as a
    device ends a step without anyone's help. `sample` chooses the tokens; by default they are
    spread over `vocabulary`. `failing` steps raise when they are collected; `failing_rows` fail
    alone.
    """

    num_blocks: int
    block_size: int
    manual: bool = False
    vocabulary: int = 1000
    sample: Sampler | None = None
    failing: set[int] = field(default_factory=set)
    failing_rows: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.kv = FakeKV(self.num_blocks, self.block_size)
        self.corruptions: list[Corruption] = []
        self.weights_resident = True
        self.launched: list[StepBatch] = []
        self._tenants: dict[int, _Tenant] = {}
        self._queue: deque[_Work] = deque()
        self._results: dict[int, StepResult | Exception] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._worker: threading.Thread | None = None
        if not self.manual:
            self._worker = threading.Thread(target=self._work, name="fake-runner", daemon=True)
            self._worker.start()

    # --- the Runner protocol --------------------------------------------------------------------

    def bind(self, row: int, params: SamplingParams, tokens: Int32Array, outputs: int = 0) -> None:
        """A row has a new tenant, or its tenant a new turn."""
        self._tenants[row] = _Tenant(tokens.tolist())

    def unbind(self, row: int) -> None:
        """The row's tenant is gone; steps that were launched for it still know it."""
        del self._tenants[row]

    def launch(self, batch: StepBatch) -> None:
        """Queue a step."""
        assert self.weights_resident, "a step while the weights sleep"
        assert self.kv.resident, "a step while the cache sleeps"
        work = _Work(batch, tuple(self._tenants[row] for row in batch.rows.tolist()))
        with self._changed:
            self.launched.append(batch)
            self._queue.append(work)
            self._changed.notify_all()

    def done(self, step: int) -> bool:
        """Whether the step has finished."""
        with self._changed:
            return step in self._results

    def collect(self, step: int, timeout: float | None = None) -> StepResult:
        """The step's result. Raises TimeoutError, or what made the step fail."""
        if self.manual:
            while step not in self._results:
                self.finish()
        with self._changed:
            if not self._changed.wait_for(lambda: step in self._results, timeout):
                raise TimeoutError(f"step {step} has not finished")
            result = self._results.pop(step)
        if isinstance(result, Exception):
            raise result
        return result

    def release_weights(self, level: int) -> None:
        """The weights are gone."""
        self.weights_resident = False

    def restore_weights(self) -> None:
        """The weights are back."""
        self.weights_resident = True

    def close(self) -> None:
        """Stop the worker."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._worker is not None:
            self._worker.join()

    # --- executing ------------------------------------------------------------------------------

    @property
    def waiting_steps(self) -> int:
        """Steps that are launched and have not finished."""
        with self._changed:
            return len(self._queue)

    def touched(self) -> set[int]:
        """The blocks that a launched step may still read or write: each must have a hold."""
        with self._changed:
            tables = [work.batch.tables for work in self._queue]
        return {block for table in tables for block in table.ravel().tolist() if block >= 0}

    def finish(self) -> int:
        """Execute the oldest queued step now and return its number."""
        with self._changed:
            work = self._queue.popleft()
        result: StepResult | Exception
        if work.batch.step in self.failing:
            for tenant in work.tenants:
                tenant.failed = True
            result = RuntimeError("the device failed")
        else:
            result = self._execute(work)
        with self._changed:
            self._results[work.batch.step] = result
            self._changed.notify_all()
        return work.batch.step

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
            self.finish()

    def _execute(self, work: _Work) -> StepResult:
        batch = work.batch
        sampled = np.full(len(batch.rows), -1, dtype=np.int32)
        errors: dict[int, Exception] = {}
        at = 0
        for number, row in enumerate(batch.rows.tolist()):
            count = int(batch.counts[number])
            tokens = batch.tokens[at : at + count].tolist()
            at += count
            tenant = work.tenants[number]
            if (batch.step, row) in self.failing_rows:
                errors[row] = RuntimeError("the row failed")
                tenant.failed = True
                continue
            token = self._compute(batch, number, tokens, tenant)
            if batch.samples[number]:
                sampled[number] = tenant.previous = token
                tenant.tokens.append(token)
        return StepResult(batch.step, batch.rows, sampled, errors)

    def _compute(self, batch: StepBatch, number: int, tokens: list[int], tenant: _Tenant) -> int:
        """Write the KV of these tokens and return what follows them."""
        start = int(batch.starts[number])
        end = start + len(tokens)
        size = self.block_size
        table = batch.tables[number]
        needed = -(-end // size)
        assert (table[:needed] >= 0).all(), "the table ends before the tokens"
        assert (table[needed:] == -1).all(), "the table goes on behind the tokens"
        slots = self.kv.slots
        attended = slots[table[:needed]].reshape(-1)[:start].tolist()
        prefix, mixed = ROOT, ROOT
        for position, held in enumerate(attended):
            prefix = extend(prefix, tenant.tokens[position])
            if held != prefix and not tenant.failed:
                block = int(table[position // size])
                row = int(batch.rows[number])
                self.corruptions.append(Corruption(batch.step, row, position, block))
                mixed = extend(mixed, held)
        content = attended[-1] if attended else ROOT
        for position, token in enumerate(tokens, start):
            known = tenant.previous if token == PREVIOUS_SAMPLE else token
            content = extend(content, known)
            slots[table[position // size], position % size] = content
        following = content if mixed == ROOT else extend(content, mixed)
        if self.sample is not None:
            return self.sample(following, end)
        return sampled_token(following, self.vocabulary)


def expected_tokens(
    prompt: list[int], count: int, vocabulary: int = 1000, sample: Sampler | None = None
) -> list[int]:
    """What an undisturbed run delivers after a prompt: `count` tokens."""
    prefix = ROOT
    for token in prompt:
        prefix = extend(prefix, token)
    output: list[int] = []
    for _ in range(count):
        length = len(prompt) + len(output)
        token = sample(prefix, length) if sample else sampled_token(prefix, vocabulary)
        output.append(token)
        prefix = extend(prefix, token)
    return output
