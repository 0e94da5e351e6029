"""Small instances that the tests of the explorer share, each compiled once."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from kvproof.specs.check.declaration import Change, Declaration, standard
from kvproof.specs.explore import Feature, Instance
from kvproof.specs.explore.compiled import System

F = Feature
CORE = frozenset({F.LOADS, F.FAILURES, F.PREEMPTION, F.ABORTS, F.RESETS})

#: One request and two blocks: everything that the default features let happen.
TINY = Instance(requests=1)


def core(*more: Feature, without: Iterable[Feature] = ()) -> frozenset[Feature]:
    """The default features and some more, less some."""
    return (CORE | set(more)) - set(without)


@cache
def system_of(instance: Instance) -> System:
    """The instance on the declaration that the engine runs."""
    return System(instance, standard())


@cache
def changed(*changes: Change) -> Declaration:
    """The declaration with some text of it replaced."""
    declaration = standard()
    for change in changes:
        declaration = declaration.changed(change)
    return declaration
