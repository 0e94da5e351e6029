"""Engines that are closed after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from .engine_harness import EngineHarness


@pytest.fixture
def engine() -> Iterator[Callable[..., EngineHarness]]:
    """Makes engines with these options."""
    made: list[EngineHarness] = []

    def make(**options: object) -> EngineHarness:
        made.append(EngineHarness(**options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for harness in made:
        harness.close()
