"""Device blocks in a numpy array, whose copies a test can stop in the middle or let fail."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from kvproof.runtime.protocols import Int32Array


class MemoryKV:
    """A `KVStorage`; `data[b]` is block b's content, 0 is garbage."""

    def __init__(self, blocks: int, width: int = 4) -> None:
        self.data = np.zeros((blocks, width), dtype=np.int64)
        self.fail_next: list[Exception | None] = []
        self.copies: list[tuple[str, tuple[int, ...]]] = []
        self._open = threading.Event()
        self._open.set()
        self.entered = threading.Event()

    @property
    def num_blocks(self) -> int:
        return len(self.data)

    @property
    def bytes_per_block(self) -> int:
        return self.data[0].nbytes

    def new_buffer(self, blocks: int) -> Any:
        return np.zeros((blocks, self.data.shape[1]), dtype=np.int64)

    def read(self, blocks: Int32Array, into: Any) -> None:
        self._pass("read", blocks)
        into[...] = self.data[blocks]

    def write(self, blocks: Int32Array, source: Any) -> None:
        self._pass("write", blocks)
        self.data[blocks] = source

    def release(self) -> None:
        self.data[...] = 0

    def restore(self) -> None:
        pass

    def stop_copies(self) -> None:
        """The next copy waits, before it touches anything, until `let_copies_go`."""
        self.entered.clear()
        self._open.clear()

    def let_copies_go(self) -> None:
        self._open.set()

    def _pass(self, kind: str, blocks: Int32Array) -> None:
        self.entered.set()
        self._open.wait()
        self.copies.append((kind, tuple(int(block) for block in blocks)))
        error = self.fail_next.pop(0) if self.fail_next else None
        if error is not None:
            raise error


def blocks(*numbers: int) -> Int32Array:
    return np.array(numbers, dtype=np.int32)


def keys(*names: str) -> list[bytes]:
    return [name.encode() for name in names]
