"""Finds a second copy of a package: one that was imported from the top-level folder.

`import statemachine` beside `import kvproof.statemachine` gives two modules from one file, whose
enums and classes compare unequal.
"""

from collections.abc import Iterable

PACKAGES = ("statemachine", "runtime", "specs")


def second_copies(module_names: Iterable[str]) -> list[str]:
    """List, sorted, the modules whose top-level name is that of one of the three folders."""
    return sorted(name for name in module_names if name.partition(".")[0] in PACKAGES)
