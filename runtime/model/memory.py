"""Memory that can be given back to the system and come again at the same address.

Weights and KV blocks are views of one arena each, so that a sleep is one call, no view has to be
made anew, and "really released" can be measured.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Protocol

import torch

ALIGNMENT = 64  # bytes; a cache line, and what the CPU kernels load at once


class Arena(Protocol):
    """A flat piece of memory; views of `bytes` stay valid through release and restore."""

    bytes: torch.Tensor  # uint8 [size]

    @property
    def resident(self) -> bool:
        """Whether the content counts."""

    def release(self) -> None:
        """Give the memory back. The content is lost, and no view may be read until restore."""

    def restore(self) -> None:
        """Take the memory again; the content is undefined. Raises MemoryError."""


class HostArena:
    """Anonymous private memory of the process, in huge pages where the kernel allows them."""

    def __init__(self, size: int) -> None:
        try:
            self._map = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"{size} bytes of host memory: {error}") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # A decode step streams through all of it: fewer TLB misses.
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8, count=size)
        self._resident = True

    @property
    def resident(self) -> bool:
        """Whether the content counts; released pages read as zeros."""
        return self._resident

    def release(self) -> None:
        """Give the pages back to the kernel; the addresses stay reserved."""
        self._map.madvise(mmap.MADV_DONTNEED)
        self._resident = False

    def restore(self) -> None:
        """Pages come back one by one as they are touched."""
        self._resident = True


class DeviceArena:
    """Memory of an accelerator: the storage under the views is emptied and filled again."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.bytes = torch.zeros(size, dtype=torch.uint8, device=device)
        self._size = size

    @property
    def resident(self) -> bool:
        """Whether the storage is allocated."""
        return self.bytes.untyped_storage().size() == self._size

    def release(self) -> None:
        """Free the storage and return it from torch's cache to the device."""
        self.bytes.untyped_storage().resize_(0)
        if self.bytes.is_cuda:
            torch.cuda.empty_cache()

    def restore(self) -> None:
        """Allocate the storage again."""
        try:
            self.bytes.untyped_storage().resize_(self._size)
        except torch.OutOfMemoryError as error:
            raise MemoryError(f"{self._size} bytes on {self.bytes.device}: {error}") from error


def new_arena(size: int, device: torch.device) -> Arena:
    """An arena of `size` bytes on that device. Raises MemoryError."""
    return HostArena(size) if device.type == "cpu" else DeviceArena(size, device)


def trim_heap() -> None:
    """Let the C library give freed memory back to the system, where it has to be asked.

    glibc keeps what was freed in the middle of its heap, and it moves ever larger blocks there
    once one of their size has been freed.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def aligned(size: int) -> int:
    """`size` bytes, rounded up so that the next view starts on a boundary."""
    return -(-size // ALIGNMENT) * ALIGNMENT
