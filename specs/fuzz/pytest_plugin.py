"""The pytest plug-in: how much `stateful_test` searches, from the command line.

    pytest --kvproof-examples 2000 --kvproof-steps 80

It imports nothing but pytest, so that a project pays nothing for having kvproof installed.
"""

from __future__ import annotations

import pytest

_chosen: dict[str, int | None] = {"examples": None, "steps": None}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add kvproof's options."""
    group = parser.getgroup("kvproof", "kvproof: stateful tests of inference engines")
    group.addoption(
        "--kvproof-examples",
        type=int,
        metavar="N",
        help="runs of each stateful_test, instead of what it asks for",
    )
    group.addoption(
        "--kvproof-steps",
        type=int,
        metavar="N",
        help="operations in one run of a stateful_test, instead of what it asks for",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Remember the options: test classes are made while their modules are imported."""
    _chosen["examples"] = config.getoption("--kvproof-examples")
    _chosen["steps"] = config.getoption("--kvproof-steps")


def chosen_budget(examples: int, steps: int) -> tuple[int, int]:
    """What the command line asks for, or else what the test does."""
    return _chosen["examples"] or examples, _chosen["steps"] or steps
