"""Futures by which calls that wait for something are answered."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, InvalidStateError
from typing import TypeVar

T = TypeVar("T")


def answered(value: T) -> Future[T]:
    """A future that has its result."""
    future: Future[T] = Future()
    future.set_result(value)
    return future


def give(answer: Future[T], result: T) -> None:
    """Answer, unless the caller is gone: it may cancel at any moment, from its own thread."""
    with contextlib.suppress(InvalidStateError):
        answer.set_result(result)
