"""The array operations that a search needs: numpy's on the CPU, torch's on the CPU or a GPU.

Both give arrays with Python's operators; here is what they spell differently. numpy is the faster
of the two on a CPU (torch dispatches each operation for about three times as long), so torch is
for a GPU, and on the CPU for tests of that code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from .instance import InstanceError

Array = Any


class Backend(Protocol):
    """Arrays on one device. Indices are int64."""

    name: str

    def rows(self, count: int, words: int) -> Array:
        """Uninitialised packed states, (count, words) of int64."""

    def zeros(self, count: int) -> Array:
        """A table of int32 zeros."""

    def full(self, count: int, value: int) -> Array:
        """An array of int32."""

    def arange(self, start: int, end: int) -> Array:
        """The int64 numbers from start to end, the end excluded."""

    def from_rows(self, rows: Sequence[Sequence[int]]) -> Array:
        """Packed states from plain ints."""

    def bytes_of(self, rows: Array) -> Array:
        """The same memory as bytes, (count, 8 * words) of int8. `rows` is contiguous."""

    def column(self, matrix: Array, index: int) -> Array:
        """A column as a contiguous array."""

    def columns(self, matrix: Array, indices: Sequence[int]) -> Array:
        """A contiguous matrix of these columns."""

    def rows_of(self, matrix: Array) -> Array:
        """Bytes as packed states: the inverse of `bytes_of`."""

    def stacked(self, words: Sequence[Array]) -> Array:
        """Packed states, contiguous, from their words."""

    def take(self, array: Array, index: Array) -> Array:
        """Elements, or rows, by their numbers: a copy."""

    def flatnonzero(self, condition: Array) -> Array:
        """Where it holds, ascending."""

    def concatenate(self, arrays: Sequence[Array]) -> Array:
        """One after the other."""

    def argsort(self, array: Array) -> Array:
        """The order that sorts it."""

    def repeated(self, values: Sequence[int], counts: Sequence[int]) -> Array:
        """Each int32 value so many times."""

    def choose(self, condition: Array, then: Array, otherwise: Array) -> Array:
        """Elementwise choice between int64 arrays."""

    def int32(self, array: Array) -> Array:
        """As int32."""

    def int64(self, array: Array) -> Array:
        """As int64."""

    def any(self, condition: Array) -> bool:
        """Whether it holds anywhere."""

    def widening(self, bits: int) -> tuple[str, dict[str, object]]:
        """Code that makes truth values or bytes `{}` signed ints of that width, with its names."""

    def host(self, array: Array) -> Any:
        """As a numpy array."""


class NumpyBackend:
    """numpy on the CPU."""

    name = "numpy"

    def rows(self, count: int, words: int) -> Array:
        return np.empty((count, words), np.int64)

    def zeros(self, count: int) -> Array:
        return np.zeros(count, np.int32)

    def full(self, count: int, value: int) -> Array:
        return np.full(count, value, np.int32)

    def arange(self, start: int, end: int) -> Array:
        return np.arange(start, end, dtype=np.int64)

    def from_rows(self, rows: Sequence[Sequence[int]]) -> Array:
        return np.array(rows, np.int64)

    def bytes_of(self, rows: Array) -> Array:
        return rows.view(np.int8)

    def column(self, matrix: Array, index: int) -> Array:
        return np.ascontiguousarray(matrix[:, index])

    def columns(self, matrix: Array, indices: Sequence[int]) -> Array:
        return np.take(matrix, indices, axis=1)

    def rows_of(self, matrix: Array) -> Array:
        return matrix.view(np.int64)

    def stacked(self, words: Sequence[Array]) -> Array:
        return np.stack(words, axis=1)

    def take(self, array: Array, index: Array) -> Array:
        return array.take(index, axis=0)  # three times as fast as array[index] on rows

    def flatnonzero(self, condition: Array) -> Array:
        return condition.nonzero()[0]

    def concatenate(self, arrays: Sequence[Array]) -> Array:
        return np.concatenate(arrays)

    def argsort(self, array: Array) -> Array:
        return np.argsort(array)

    def repeated(self, values: Sequence[int], counts: Sequence[int]) -> Array:
        return np.repeat(np.array(values, np.int32), counts)

    def choose(self, condition: Array, then: Array, otherwise: Array) -> Array:
        return np.where(condition, then, otherwise)

    def int32(self, array: Array) -> Array:
        return array.astype(np.int32)

    def int64(self, array: Array) -> Array:
        return array.astype(np.int64)

    def any(self, condition: Array) -> bool:
        return bool(condition.any())

    def widening(self, bits: int) -> tuple[str, dict[str, object]]:
        # Truth values and bytes are as wide as each other: no copy is made of them.
        how = "({}).view(kind)" if bits == 8 else "({}).astype(kind)"
        return how, {"kind": np.dtype(f"int{bits}")}

    def host(self, array: Array) -> Any:
        return array


class TorchBackend:
    """torch on a device: "cuda", or "cpu"."""

    def __init__(self, device: str) -> None:
        """Raises InstanceError if there is no such device here."""
        import torch

        if device.startswith("cuda") and not torch.cuda.is_available():
            raise InstanceError(
                "no CUDA device is available to torch here: use --device cpu, or run on a machine "
                "with a GPU and a CUDA build of torch"
            )
        self.name = f"torch on {device}"
        self._torch = torch
        self._device = torch.device(device)
        self._ints = {8: torch.int8, 16: torch.int16, 32: torch.int32}

    def rows(self, count: int, words: int) -> Array:
        return self._torch.empty((count, words), dtype=self._torch.int64, device=self._device)

    def zeros(self, count: int) -> Array:
        return self._torch.zeros(count, dtype=self._torch.int32, device=self._device)

    def full(self, count: int, value: int) -> Array:
        return self._torch.full((count,), value, dtype=self._torch.int32, device=self._device)

    def arange(self, start: int, end: int) -> Array:
        return self._torch.arange(start, end, dtype=self._torch.int64, device=self._device)

    def from_rows(self, rows: Sequence[Sequence[int]]) -> Array:
        return self._torch.tensor(rows, dtype=self._torch.int64, device=self._device)

    def bytes_of(self, rows: Array) -> Array:
        return rows.view(self._torch.int8)

    def column(self, matrix: Array, index: int) -> Array:
        return matrix[:, index].contiguous()

    def columns(self, matrix: Array, indices: Sequence[int]) -> Array:
        return matrix[:, list(indices)].contiguous()

    def rows_of(self, matrix: Array) -> Array:
        return matrix.view(self._torch.int64)

    def stacked(self, words: Sequence[Array]) -> Array:
        return self._torch.stack(list(words), dim=1)

    def take(self, array: Array, index: Array) -> Array:
        return self._torch.index_select(array, 0, index)

    def flatnonzero(self, condition: Array) -> Array:
        return self._torch.nonzero(condition).flatten()

    def concatenate(self, arrays: Sequence[Array]) -> Array:
        return self._torch.cat(list(arrays))

    def argsort(self, array: Array) -> Array:
        return self._torch.argsort(array)

    def repeated(self, values: Sequence[int], counts: Sequence[int]) -> Array:
        torch, device = self._torch, self._device
        return torch.repeat_interleave(
            torch.tensor(values, dtype=torch.int32, device=device),
            torch.tensor(counts, dtype=torch.int64, device=device),
        )

    def choose(self, condition: Array, then: Array, otherwise: Array) -> Array:
        return self._torch.where(condition, then, otherwise)

    def int32(self, array: Array) -> Array:
        return array.to(self._torch.int32)

    def int64(self, array: Array) -> Array:
        return array.to(self._torch.int64)

    def any(self, condition: Array) -> bool:
        return bool(condition.any())

    def widening(self, bits: int) -> tuple[str, dict[str, object]]:
        return "({}).to(kind)", {"kind": self._ints[bits]}

    def host(self, array: Array) -> Any:
        return array.cpu().numpy()


def backend_of(device: str) -> Backend:
    """The backend of `--device`: "cpu" (numpy), "cuda", "cuda:1", or "torch-cpu"."""
    if device == "cpu":
        return NumpyBackend()
    if device == "torch-cpu":
        return TorchBackend("cpu")
    if device.startswith("cuda"):
        return TorchBackend(device)
    raise InstanceError(f"no device {device!r}: use cpu, cuda, cuda:1, …, or torch-cpu")
