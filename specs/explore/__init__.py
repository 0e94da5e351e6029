"""Exhaustive exploration: every state of a finite instance of the declaration, breadth first.

    report = explore(Instance(requests=3, blocks=3, transfers=1), symmetry=True)

The order to read in: instance, structure, world, joint, the actions, compiled, search.
"""

from .explore import Report, explore, replay_on_declaration
from .instance import DEFAULT_FEATURES, Feature, Instance, InstanceError
from .script import Replayed, Script, as_mermaid, as_pytest, as_text

__all__ = [
    "DEFAULT_FEATURES",
    "Feature",
    "Instance",
    "InstanceError",
    "Replayed",
    "Report",
    "Script",
    "as_mermaid",
    "as_pytest",
    "as_text",
    "explore",
    "replay_on_declaration",
]
