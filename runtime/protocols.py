"""What the engine asks of a device and of a storage tier: five small protocols.

The scheduler, the lifecycle and the transfers know a model, a GPU or a tier only through these.
A fake runner and a test connector implement them as well as the real ones do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from .sampling_params import SamplingParams

Int32Array = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

#: In `StepBatch.tokens`: the token that the row's previous launched step samples. The runner
#: resolves it on its side, so that a second step can be launched before the first is collected.
PREVIOUS_SAMPLE = -1


class RunnerError(Exception):
    """The runner breaks its protocol: it has too few blocks, or gave what is no `StepResult`."""


class StepBatch(NamedTuple):
    """One device step: `n` requests, `t` tokens in all.

    A tuple, as all that is made anew for each step: a frozen dataclass takes microseconds.
    The arrays are the runner's to keep: the engine never writes to them after `launch`.
    """

    step: int
    rows: Int32Array  # [n] the engine's row of each scheduled request
    starts: Int32Array  # [n] position of the first token that this step computes
    counts: Int32Array  # [n] how many tokens it computes
    tokens: Int32Array  # [t] input ids, flat, request after request; PREVIOUS_SAMPLE allowed
    tables: Int32Array  # [n, w] block ids; entries past ceil((start + count) / block_size) are -1
    samples: BoolArray  # [n] whether a token is sampled after the last position


class StepResult(NamedTuple):
    """What one step gave back, in the order of its batch.

    The engine looks at it before it delivers anything. What is no StepResult, is of another step,
    has arrays of another dtype or shape, a row twice or an error of a row that the step does not
    have, fails the whole step with a RunnerError, as if `collect` had raised it: the step's
    requests end with its text. A row that is missing, or that has a negative token where the batch
    asked for one and no error, fails alone. Whether a token is below the vocabulary is not checked.
    """

    step: int
    rows: Int32Array  # [n] the batch's, in any order
    sampled: Int32Array  # [n] token ids; -1 where the batch asked for none, and where it failed
    errors: Mapping[int, Exception] = MappingProxyType({})  # row -> why it failed
    logprobs: Mapping[int, Any] = MappingProxyType({})  # row -> its TokenLogprobs, if asked


class KVStorage(Protocol):
    """The device's KV blocks, as the transfers and the sleep see them."""

    @property
    def num_blocks(self) -> int:
        """How many there are: at least `EngineConfig.num_blocks`, whose ids begin with 0."""

    @property
    def bytes_per_block(self) -> int:
        """Bytes that a copy of one block moves."""

    def new_buffer(self, blocks: int) -> Any:
        """Host memory (pinned where there is a GPU) for that many blocks."""

    def read(self, blocks: Int32Array, into: Any) -> None:
        """Copy device blocks into a host buffer, in order; returns when the copy is complete."""

    def write(self, blocks: Int32Array, source: Any) -> None:
        """Copy a host buffer into device blocks, in order; returns when the copy is complete."""

    def release(self) -> None:
        """Give the memory back to the system. No step and no transfer may be in flight."""

    def restore(self) -> None:
        """Allocate it again; the content is undefined. Raises MemoryError and changes nothing."""


class Runner(Protocol):
    """A device that executes steps in the order in which they were launched."""

    @property
    def kv(self) -> KVStorage: ...

    def bind(self, row: int, params: SamplingParams, tokens: Int32Array, outputs: int = 0) -> None:
        """A row has a new tenant: its sampling parameters and every token known so far.

        `outputs` of them, at the end, were sampled already (min_tokens counts them). If it
        raises, the request ends with that error, and the row is in no batch.
        """

    def unbind(self, row: int) -> None:
        """The row's tenant is gone; results of its launched steps are still collected.

        What it raises is logged; the row's next tenant is bound over what is left.
        """

    def launch(self, batch: StepBatch) -> None:
        """Hand a step over. Never blocks; a failure shows in the result, or is raised.

        A step while the weights are not resident must fail.
        """

    def done(self, step: int) -> bool:
        """Whether `collect(step)` would return at once."""

    def collect(self, step: int, timeout: float | None = None) -> StepResult:
        """The step's result; steps are collected in order.

        Raises TimeoutError when there is none within `timeout` seconds, and may be asked again. Any
        other error fails the step, and so does a TimeoutError where no timeout was given.
        """

    def release_weights(self, level: int) -> None:
        """Give the weights' memory back: level 1 keeps a copy at hand, level 2 the file only."""

    def restore_weights(self) -> None:
        """Undo `release_weights`. On an error nothing is resident, and it can be tried again."""

    def close(self) -> None:
        """Stop the worker; no thread is left. Safe to call twice."""


class SignalKind(Enum):
    """How a transfer ended, as its connector says; or that nobody can say."""

    LANDED = "landed"
    FAILED = "failed"
    FENCED = "fenced"  # cancelled, and no reader or writer of its blocks can come any more
    UNCONFIRMED = "unconfirmed"  # cancelled, and nobody can say so


@dataclass(frozen=True, slots=True)
class TransferSignal:
    """A connector's word about one transfer. Late, duplicate and unknown ones are legal."""

    transfer: int
    kind: SignalKind
    valid_blocks: int = 0  # FAILED loads: how many leading blocks hold the right content


class Connector(Protocol):
    """A tier that KV blocks are stored to and loaded from, asynchronously.

    Keys are chained block hashes whose root carries model digest, dtype, block size, salt and the
    epoch of the weights: a tier never compares anything else.
    """

    def lookup(self, keys: Sequence[bytes]) -> int:
        """How many leading keys the tier can load at this moment.

        It is asked while a step is planned, which may come to nothing: answer, and change nothing.
        """

    def start_load(self, transfer: int, keys: Sequence[bytes], blocks: Int32Array) -> None:
        """Begin to copy the keys' content into the device blocks."""

    def start_store(self, transfer: int, keys: Sequence[bytes], blocks: Int32Array) -> None:
        """Begin to copy the device blocks to the tier; the blocks are published already."""

    def poll(self) -> Sequence[TransferSignal]:
        """What has ended since the last call. Never blocks."""

    def cancel(self, transfer: int) -> None:
        """Ask for an early end. FENCED comes by `poll` once no reader or writer is left.

        So it does after LANDED or FAILED, which may come first, and for a transfer that the tier
        does not know: the engine may have lost the first answer, and needs one to let go.
        """

    def reset(self) -> bool:
        """Drop every stored block. False, and nothing changed, when it cannot."""

    def close(self) -> None:
        """Stop the workers and free the memory. Safe to call twice."""


@runtime_checkable
class NotifyingConnector(Connector, Protocol):
    """A connector that says by itself when `poll` has something new.

    The engine's loop sleeps until it does; any other connector is polled every millisecond while
    a transfer is open.
    """

    def on_signal(self, call: Callable[[], None]) -> None:
        """Call this after each signal, from any thread, without a lock. Given before any start."""


@runtime_checkable
class TouchedConnector(Connector, Protocol):
    """A connector that forgets by use, and is told what is of use beyond loads and stores."""

    def touch(self, keys: Sequence[bytes]) -> None:
        """What these keys stand for is in use on the device: forget it later than other things."""
