"""What the engine's mode allows: guards that the request and transfer tables share."""

from __future__ import annotations

from .facts import EngineFacts
from .states import ACTIVE, DRAINING, PAUSED, PAUSING, SLEEPING, WAIT_FOR_ALL, WAKING


def starts_work(e: EngineFacts) -> bool:
    """New work may begin: admissions from WAITING, loads, stores."""
    return e.mode == ACTIVE or e.mode == DRAINING


def finishes_work(e: EngineFacts) -> bool:
    """Work that has begun may go on: steps, and admission of what was preempted.

    A pause that waits for all must let preempted requests run again, or it would wait for ever.
    """
    return starts_work(e) or (e.mode == PAUSING and e.pausing == WAIT_FOR_ALL)


def clocks_stand_still(e: EngineFacts) -> bool:
    """Session and grammar deadlines do not run: the engine, not the client, is what delays."""
    return e.mode == PAUSING or e.mode == PAUSED or e.mode == SLEEPING or e.mode == WAKING
