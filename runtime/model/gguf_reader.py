"""The GGUF container: metadata and where each tensor's bytes are, every length checked.

The `gguf` package's own reader takes seconds for a large vocabulary; this one maps the file and
unpacks each value once. The tensor types and their dequantisation are still that package's.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from .errors import ModelFileError

_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?",
    10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of the file. `shape` is row-major, `offset` and `size` in bytes of the file."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    size: int


class GGUFFile:
    """A mapped file: `metadata` and `tensors`. Raises ModelFileError on anything damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorEntry] = {}
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelFileError(path, f"cannot be read: {error}") from error
        self._at = 0
        try:
            self._parse()
        except (struct.error, ArithmeticError, KeyError, ValueError) as error:
            raise ModelFileError(path, f"damaged at byte {self._at}: {error}") from error

    def values(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor, dequantised, in its row-major shape. Raises ModelFileError."""
        entry = self.tensors[name]
        block, block_bytes = GGML_QUANT_SIZES[entry.kind]
        raw = np.frombuffer(self._map, np.uint8, entry.size, entry.offset)
        rows = raw.reshape(*entry.shape[:-1], entry.shape[-1] // block * block_bytes)
        try:
            return np.array(dequantize(rows, entry.kind), dtype=np.float32).reshape(entry.shape)
        except NotImplementedError as error:
            raise ModelFileError(
                self.path, f"{name} has type {entry.kind.name}, which gguf cannot dequantise"
            ) from error

    def close(self) -> None:
        """Unmap the file; its pages no longer count as the process's."""
        self._map.close()

    def _parse(self) -> None:
        if self._take(4) != b"GGUF":
            raise ModelFileError(self.path, "not a GGUF file: it does not begin with 'GGUF'")
        version = self._scalar("<I")
        if version not in (2, 3):
            raise ModelFileError(self.path, f"GGUF version {version}; 2 and 3 can be read")
        tensor_count, value_count = self._scalar("<Q"), self._scalar("<Q")
        for _ in range(value_count):
            key = self._string()
            self.metadata[key] = self._value(self._scalar("<I"))
        entries = [self._entry() for _ in range(tensor_count)]
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        start = -(-self._at // alignment) * alignment
        for entry in entries:
            offset = start + entry.offset
            if offset + entry.size > len(self._map):
                raise ModelFileError(
                    self.path,
                    f"truncated: {entry.name} needs {entry.size} bytes at {offset}, "
                    f"the file has {len(self._map)}",
                )
            self.tensors[entry.name] = TensorEntry(
                entry.name, entry.shape, entry.kind, offset, entry.size
            )

    def _entry(self) -> TensorEntry:
        name = self._string()
        count = self._scalar("<I")
        if not 1 <= count <= _MAX_DIMENSIONS:
            raise ModelFileError(self.path, f"{name} has {count} dimensions")
        shape = tuple(reversed([self._scalar("<Q") for _ in range(count)]))
        kind = GGMLQuantizationType(self._scalar("<I"))
        offset = self._scalar("<Q")
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if shape[-1] % block:
            raise ModelFileError(
                self.path, f"{name}: rows of {shape[-1]} are no multiple of {kind.name}'s {block}"
            )
        return TensorEntry(name, shape, kind, offset, math.prod(shape) // block * block_bytes)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(_SCALARS[kind])
        inner, count = self._scalar("<I"), self._scalar("<Q")
        if inner in (_STRING, _ARRAY):
            return [self._value(inner) for _ in range(count)]
        width = struct.calcsize(_SCALARS[inner])
        return list(struct.unpack(f"<{count}{_SCALARS[inner][1]}", self._take(count * width)))

    def _string(self) -> str:
        return self._take(self._scalar("<Q")).decode("utf-8")

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack(code, self._take(struct.calcsize(code)))
        return value

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._map):
            raise ModelFileError(
                self.path, f"truncated: {count} bytes wanted at {self._at} of {len(self._map)}"
            )
        taken = self._map[self._at : end]
        self._at = end
        return taken
