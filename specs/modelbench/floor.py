"""What the memory allows: a decode step reads every weight once, whatever the engine."""

from __future__ import annotations

import time


def bandwidth(threads: int, size: int = 512 << 20, rounds: int = 7) -> float:
    """Bytes a second that this machine reads from memory, the best of a few rounds."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        values = torch.ones(size // 4)
        best = float("inf")
        for _ in range(rounds):
            started = time.perf_counter()
            values.sum()
            best = min(best, time.perf_counter() - started)
        return size / best
    finally:
        torch.set_num_threads(before)
