"""A reset of the prefix cache: what it does to each holder, and how it is answered.

| holder                                    | plain reset       | forced reset                |
|-------------------------------------------|-------------------|-----------------------------|
| launched step                             | processed first   | processed first             |
| running request                           | refuses: itself   | preempted                   |
| resident waiting request                  | refuses: itself   | reclaimed                   |
| parked session                            | refuses: client   | reclaimed                   |
| transfer that has not ended               | refuses: itself   | refuses: itself             |
| request that waits for one                | refuses: itself   | named beside its transfer   |
| quarantined block                         | passed over       | passed over                 |

"refuses: itself" ends without anyone's help, "refuses: client" when its client acts. A refusal
changes nothing: every holder is looked at before the first is let go.
"""

from __future__ import annotations

from enum import IntEnum

from .states import (
    CANCELLING,
    IN_FLIGHT,
    PREEMPT,
    QUEUED,
    RECLAIM,
    RUNNING,
    WAITING,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
)


class ResetOutcome(IntEnum):
    """How a reset is answered."""

    REFUSED = 0
    DONE = 1
    PARTIAL = 2


REFUSED = 0
DONE = 1
PARTIAL = 2


class EndsBy(IntEnum):
    """Who ends a hold that refuses a reset."""

    NOTHING = 0
    ITSELF = 1
    CLIENT = 2


NOTHING = 0
ITSELF = 1
CLIENT = 2

#: `forced_event` of a holder that a forced reset does not let go of.
NO_EVENT = -1


def forced_event(state: int) -> int:
    """The event that a forced reset sends to a resident request, NO_EVENT for none."""
    if state == RUNNING:
        return PREEMPT
    if state == WAITING or state == WAITING_FOR_STREAMING_REQ:
        return RECLAIM
    return NO_EVENT


def sent_event(refusing: int, state: int, resident: bool) -> int:
    """The event that a reset sends to a request, NO_EVENT for none.

    None at all while anybody refuses: a refused reset lets go of nobody. A reset without the force
    flag that nobody refuses finds nobody resident.
    """
    if refusing > 0 or not resident:
        return NO_EVENT
    return forced_event(state)


def drops_prefixes(refusing: int) -> bool:
    """Whether the device's cached prefixes are dropped, after everybody has let go."""
    return refusing == 0


def request_refuses(state: int, resident: bool, force: bool) -> bool:
    """Whether a request's hold refuses the reset."""
    if not resident:
        return False
    return not force or forced_event(state) == NO_EVENT


def transfer_refuses(state: int) -> bool:
    """Whether a transfer refuses the reset: until it has ended; quarantine is an end."""
    return state == QUEUED or state == IN_FLIGHT or state == CANCELLING


def request_ends_by(state: int) -> int:
    """Who ends a request's hold."""
    if state == WAITING_FOR_STREAMING_REQ:
        return CLIENT
    if state == RUNNING or state == WAITING or state == WAITING_FOR_REMOTE_KVS:
        return ITSELF
    return NOTHING


def outcome(refusing: int, tier_asked: bool, tier_cleared: bool) -> int:
    """The answer, from the number of holders that refuse and from the tier's own answer.

    The tier is asked only after the device is done, so a refused reset has not touched it.
    """
    if refusing > 0:
        return REFUSED
    if tier_asked and not tier_cleared:
        return PARTIAL
    return DONE


def clears_tier(refusing: int, tier_asked: bool) -> bool:
    """Whether the connector's tier is cleared now: asked for, and the device is done."""
    return tier_asked and refusing == 0


def may_wait(refusing: int, refusing_by_client: int, wait_asked: bool) -> bool:
    """Whether a refused reset stays pending: only if all that refuses ends by itself."""
    return wait_asked and refusing > 0 and refusing_by_client == 0
