"""All actions of an instance, in a fixed order."""

from __future__ import annotations

from .action import Action
from .engine_actions import mode_actions, reset_actions, step_actions, transfer_actions
from .instance import Instance
from .request_actions import request_actions


def actions_of(instance: Instance) -> list[Action]:
    """Every action with every argument that the instance allows."""
    return [
        *request_actions(instance),
        *transfer_actions(instance),
        *step_actions(instance),
        *reset_actions(instance),
        *mode_actions(instance),
    ]
