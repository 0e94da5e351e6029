"""What this process has worked out before: asked again, it is at hand.

Most of what a changed copy of the declaration runs and asks is what the original runs and asks.
What only a passing copy needed can be forgotten with it: else hundreds of them fill the memory.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_all: list[dict[Any, Any]] = []


def memory() -> dict[Any, Any]:
    """A new memory, which `passing` knows. Entries are added, never replaced."""
    found: dict[Any, Any] = {}
    _all.append(found)
    return found


@contextmanager
def passing() -> Iterator[None]:
    """Whatever is remembered meanwhile is forgotten in the end, sources of copies included."""
    sizes = [(each, len(each)) for each in _all]
    sources = len(linecache.cache)
    try:
        yield
    finally:
        for each, size in [*sizes, (linecache.cache, sources)]:
            for key in list(each)[size:]:
                del each[key]
