"""All actions of an instance, in a fixed order."""

from __future__ import annotations

from .action import Action
from .instance import Instance
from .mode_actions import mode_actions
from .request_actions import request_actions
from .reset_actions import reset_actions
from .step_actions import step_actions
from .transfer_actions import transfer_actions
from .wrong_asks import wrong_asks


def actions_of(instance: Instance) -> list[Action]:
    """Every action with every argument that the instance allows."""
    return [
        *request_actions(instance),
        *transfer_actions(instance),
        *step_actions(instance),
        *reset_actions(instance),
        *mode_actions(instance),
        *wrong_asks(instance),
    ]
