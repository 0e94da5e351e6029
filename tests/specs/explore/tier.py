"""The tier of a replayed engine: it has nothing, says nothing, and counts how often it is cleared.

What transfers bring and when they end is the script's to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Tier:
    """A connector without a worker."""

    def __init__(self) -> None:
        self.cleared = 0

    def lookup(self, keys: Sequence[bytes]) -> int:
        return 0

    def start_load(self, transfer: int, keys: Sequence[bytes], blocks: Any) -> None:
        """The script says what becomes of it."""

    def start_store(self, transfer: int, keys: Sequence[bytes], blocks: Any) -> None:
        """The script says what becomes of it."""

    def poll(self) -> Sequence[Any]:
        return ()

    def cancel(self, transfer: int) -> None:
        """The script says what becomes of it."""

    def reset(self) -> bool:
        self.cleared += 1
        return True

    def close(self) -> None:
        """There is nothing to stop."""
