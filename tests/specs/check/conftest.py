"""One proof of the declaration for all tests that look at it."""

from __future__ import annotations

import pytest
from kvproof.specs.check.run import Report, check


@pytest.fixture(scope="session")
def proved() -> Report:
    """The report of all obligations of the declaration that the engine runs."""
    return check()
