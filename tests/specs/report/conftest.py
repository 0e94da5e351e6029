"""Reports that the tests look at: of a declaration with a fault, and of one that is undecided."""

from __future__ import annotations

from typing import Any

import pytest
from kvproof.specs.check.declaration import standard
from kvproof.specs.check.report import as_dict
from kvproof.specs.check.run import check
from kvproof.specs.cli.check import _counterexamples
from kvproof.specs.report import details

from ..check.faults import FAULTS, Fault


def fault_named(name: str) -> Fault:
    return next(fault for fault in FAULTS if fault.name == name)


def report_of(fault: Fault, *ids: str, scripts: bool = True) -> dict[str, Any]:
    """The report of a declaration with a fault; to look for scripts takes longer than to prove."""
    found = check(standard().changed(fault.change), ids=ids or [fault.refuted_by])
    examples = _counterexamples(found, lambda done, total, what: None) if scripts else {}
    return as_dict(found, examples) | details(found, examples)


@pytest.fixture(scope="session")
def faulty() -> dict[str, Any]:
    """Letting go frees blocks under a launched step: S2 is refuted."""
    return report_of(fault_named("letting go frees blocks under a launched step"))


@pytest.fixture(scope="session")
def undecided() -> dict[str, Any]:
    """The solver gives up on P1, so small is its budget."""
    found = check(ids=["P1"], budget=60)
    return as_dict(found, {}) | details(found, {})
