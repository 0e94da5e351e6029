"""One request's outputs on their way from the engine's thread to one asyncio task.

Memory is bounded by the request itself, however slowly its client reads: outputs that were not
taken yet are merged, so what waits is at most one entry a turn and the tokens of the request.
"""

from __future__ import annotations

import asyncio
import threading

from ..api import RequestOutput
from ..streams import merged


class OutputStream:
    """A queue with one producer thread and one consumer task. Made inside the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._lock = threading.Lock()
        self._waiting: list[RequestOutput] = []

    def put(self, output: RequestOutput) -> None:
        """Called on the engine's thread; never blocks."""
        with self._lock:
            first = not self._waiting
            last = self._waiting[-1] if self._waiting else None
            if last is not None and last.finish_reason is None and last.turn == output.turn:
                self._waiting[-1] = merged(last, output)
            else:
                self._waiting.append(output)
        if first:
            try:
                self._loop.call_soon_threadsafe(self._arrived.set)
            except RuntimeError:
                return  # the loop is closed: nobody is left to read

    async def get(self) -> RequestOutput:
        """What has come since the last call, of one turn."""
        while True:
            with self._lock:
                if self._waiting:
                    return self._waiting.pop(0)
                self._arrived.clear()
            await self._arrived.wait()
