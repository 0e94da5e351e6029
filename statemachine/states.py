"""The states and events of the three machines, as plain int constants and as enums for people.

The hot path compares the constants: comparing an IntEnum costs several times as much. The enums
have the same values and are for printing, typing and the public interface.
"""

from __future__ import annotations

from enum import IntEnum


class RequestState(IntEnum):
    """Where a request is in its life; the names are vLLM's, UNKNOWN is "no record"."""

    UNKNOWN = 0
    WAITING = 1
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = 2
    WAITING_FOR_REMOTE_KVS = 3
    WAITING_FOR_STREAMING_REQ = 4
    RUNNING = 5
    PREEMPTED = 6
    FINISHED_STOPPED = 7
    FINISHED_LENGTH_CAPPED = 8
    FINISHED_REPETITION = 9
    FINISHED_ABORTED = 10
    FINISHED_IGNORED = 11
    FINISHED_ERROR = 12


UNKNOWN = 0
WAITING = 1
WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = 2
WAITING_FOR_REMOTE_KVS = 3
WAITING_FOR_STREAMING_REQ = 4
RUNNING = 5
PREEMPTED = 6
FINISHED_STOPPED = 7
FINISHED_LENGTH_CAPPED = 8
FINISHED_REPETITION = 9
FINISHED_ABORTED = 10
FINISHED_IGNORED = 11
FINISHED_ERROR = 12

#: Every state that is not UNKNOWN and not FINISHED_*.
LIVE = (
    WAITING,
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
    RUNNING,
    PREEMPTED,
)
FINISHED = (
    FINISHED_STOPPED,
    FINISHED_LENGTH_CAPPED,
    FINISHED_REPETITION,
    FINISHED_ABORTED,
    FINISHED_IGNORED,
    FINISHED_ERROR,
)


class RequestEvent(IntEnum):
    """What can be asked of a request, or told to it."""

    ADD = 0
    GRAMMAR_READY = 1
    GRAMMAR_FAILED = 2
    ADMIT = 3
    ADMIT_REMOTE = 4
    GROW = 5
    TRIM = 6
    LAUNCH = 7
    PUBLISH = 8
    TRANSFER_LANDED = 9
    TRANSFER_FAILED = 10
    OUTPUT = 11
    PREEMPT = 12
    STOP = 13
    CHUNK = 14
    CLOSE_INPUT = 15
    RECLAIM = 16
    ABORT = 17
    ERROR = 18
    DEADLINE = 19
    FORGET = 20


ADD = 0
GRAMMAR_READY = 1
GRAMMAR_FAILED = 2
ADMIT = 3
ADMIT_REMOTE = 4
GROW = 5
TRIM = 6
LAUNCH = 7
PUBLISH = 8
TRANSFER_LANDED = 9
TRANSFER_FAILED = 10
OUTPUT = 11
PREEMPT = 12
STOP = 13
CHUNK = 14
CLOSE_INPUT = 15
RECLAIM = 16
ABORT = 17
ERROR = 18
DEADLINE = 19
FORGET = 20


class Container(IntEnum):
    """The one place that a request is in; derived from its state, never written."""

    NONE = 0
    WAITING = 1
    BLOCKED = 2
    RUNNING = 3


NOWHERE = 0
IN_WAITING = 1
IN_BLOCKED = 2
IN_RUNNING = 3


class TransferState(IntEnum):
    """Where a copy into or out of device blocks is in its life; ABSENT is "no record"."""

    ABSENT = 0
    QUEUED = 1
    IN_FLIGHT = 2
    CANCELLING = 3
    LANDED = 4
    FAILED = 5
    FENCED = 6
    QUARANTINED = 7


ABSENT = 0
QUEUED = 1
IN_FLIGHT = 2
CANCELLING = 3
LANDED = 4
FAILED = 5
FENCED = 6
QUARANTINED = 7


class TransferEvent(IntEnum):
    """What can be asked of a transfer, or told by its connector."""

    START = 0
    BEGIN = 1
    JOIN = 2
    LEAVE = 3
    LAND = 4
    FAIL = 5
    CANCEL = 6
    FENCE = 7
    GIVE_UP = 8
    LEASE_OVER = 9
    RETIRE = 10


START = 0
BEGIN = 1
JOIN = 2
LEAVE = 3
LAND = 4
FAIL = 5
CANCEL = 6
FENCE = 7
GIVE_UP = 8
LEASE_OVER = 9
RETIRE = 10


class HoldKind(IntEnum):
    """Who keeps a block."""

    REQUEST = 1
    STEP = 2
    LOAD = 3
    STORE = 4


REQUEST_HOLD = 1
STEP_HOLD = 2
LOAD = 3
STORE = 4


class EngineMode(IntEnum):
    """What the engine as a whole is doing."""

    ACTIVE = 1
    PAUSING = 2
    PAUSED = 3
    SLEEPING = 4
    WAKING = 5
    DRAINING = 6
    STOPPED = 7


ACTIVE = 1
PAUSING = 2
PAUSED = 3
SLEEPING = 4
WAKING = 5
DRAINING = 6
STOPPED = 7


class PauseMode(IntEnum):
    """What a pause does with the requests that run: end them, let them end, or keep them."""

    ABORT_ALL = 1
    WAIT_FOR_ALL = 2
    KEEP_ALL = 3


ABORT_ALL = 1
WAIT_FOR_ALL = 2
KEEP_ALL = 3

#: The tags of memory that sleep gives back and wake brings back: bits of an int.
WEIGHTS = 1
CACHE = 2


class EngineEvent(IntEnum):
    """Every kind of call and signal that reaches the engine."""

    ADD = 0
    CHUNK = 1
    SIGNAL = 2
    LEASE = 3
    LAUNCH_STEP = 4
    STEP_PROCESSED = 5
    PAUSE = 6
    PAUSE_REACHED = 7
    PAUSE_FAILED = 8
    RESUME = 9
    SLEEP = 10
    SLEEP_FAILED = 11
    WAKE = 12
    WOKE = 13
    WAKE_FAILED = 14
    RESET = 15
    RESET_PENDING = 16
    RESET_DECIDED = 17
    WEIGHTS_CHANGED = 18
    SHUTDOWN = 19
    DRAINED = 20


SIGNAL = 2
LEASE = 3
LAUNCH_STEP = 4
STEP_PROCESSED = 5
PAUSE = 6
PAUSE_REACHED = 7
PAUSE_FAILED = 8
RESUME = 9
SLEEP = 10
SLEEP_FAILED = 11
WAKE = 12
WOKE = 13
WAKE_FAILED = 14
RESET = 15
RESET_PENDING = 16
RESET_DECIDED = 17
WEIGHTS_CHANGED = 18
SHUTDOWN = 19
DRAINED = 20
