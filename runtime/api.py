"""The engine's public types: what a call is given, and what it gives back.

The server, the Python API and the tests speak to the engine in these; none of them touches the
lifecycle's arrays. A declared outcome (a refused reset, a pause that is under way) is a value;
an exception is for a caller who is wrong, or for a fault of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, NamedTuple


class EngineError(Exception):
    """Base of the errors that a caller of the engine can cause. Nothing was changed."""


class DuplicateRequestError(EngineError):
    """The id is live, or a step or transfer of its last life is left."""


class UnknownRequestError(EngineError):
    """No request of this id is known."""


class InvalidRequestError(EngineError):
    """The request cannot be served as it is: empty or too long a prompt, a wrong parameter."""


class SessionError(EngineError):
    """A chunk or close that the session's state does not allow; the message says what would be."""


class EngineClosedError(EngineError):
    """The engine is shutting down or has stopped; nothing new is taken."""


class RejectedCallError(EngineError):
    """A call that the engine's mode does not allow, or whose mode, level or tag it does not know.

    Pause, resume, sleep, wake, weights_changed, shutdown, trace; a reset of an engine that has
    stopped; and what cannot be done from within an output: a step, what is due between two, and
    to wait for what only a later step can bring.
    """


class InvalidWaitError(EngineError):
    """A reset may not wait that long; the message names the limit, `max_reset_wait`."""


class EngineFailedError(Exception):
    """The engine's own fault: its loop or its device has failed. Never the caller's."""


class FinishReason(Enum):
    """Why a request, or a session's turn, ended."""

    STOP = "stop"
    LENGTH = "length"
    REPETITION = "repetition"
    ABORT = "abort"
    IGNORED = "ignored"
    ERROR = "error"
    TURN = "turn"  # a session's turn is over; the session lives on


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log-probabilities at one output position: the sampled token's and the top ones."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), best first


class RequestOutput(NamedTuple):
    """What is new for one request since its last output.

    A tuple, because one is made for every request in every step: a frozen dataclass costs five
    times as much, more than all that the scheduler does for the request.
    """

    request_id: str
    tokens: tuple[int, ...] = ()  # sampled since the last output
    text: str = ""  # the text that is complete by now and was not delivered yet
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop string or token that ended it
    error: str | None = None
    prompt_tokens: int = 0  # of the whole request so far
    output_tokens: int = 0  # over all turns
    cached_tokens: int = 0  # of the prompt, found in a cache at the last admission
    logprobs: tuple[TokenLogprobs, ...] = ()
    turn: int = 0  # of a session, counted from 0

    @property
    def finished(self) -> bool:
        """Nothing more will come, not even after a further chunk."""
        return self.finish_reason is not None and self.finish_reason is not FinishReason.TURN


@dataclass(frozen=True, slots=True)
class Holder:
    """One hold, as `holds()` lists it and as a refused reset names it."""

    kind: str  # REQUEST, STEP, LOAD or STORE
    owner: str  # the request's id, or the step's or transfer's number
    state: str  # of the request or transfer
    blocks: int
    since: float  # seconds of the engine's monotonic clock
    age: float  # seconds until now
    ends_by: str = "itself"  # "itself" or "client"
    force_would_let_go: bool = False
    quarantined: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class ResetResult:
    """How a reset was answered. Falsy unless all of it is done."""

    success: bool
    retryable: bool = False
    tiers: tuple[str, ...] = ()  # those that are clear now: "device", "connector"
    holders: tuple[Holder, ...] = ()  # who refused it; empty when the tier failed
    waited: float = 0.0  # seconds

    def __bool__(self) -> bool:
        return self.success

    def as_dict(self) -> dict[str, Any]:
        """The HTTP answer."""
        if self.success:
            return {"success": True, "tiers": list(self.tiers)}
        return {
            "success": False,
            "retryable": self.retryable,
            "tiers": list(self.tiers),
            "holders": [holder.as_dict() for holder in self.holders],
        }


@dataclass(frozen=True, slots=True)
class CallResult:
    """How pause, resume, sleep or wake was answered.

    Falsy when refused: nothing was changed, but for what `ended` and `why` say.
    """

    success: bool
    mode: str  # the engine's mode now, in lower case
    why: str = ""  # of a refusal or of a call that had nothing to do
    retryable: bool = False
    holders: tuple[Holder, ...] = ()
    ended: tuple[str, ...] = ()  # requests that the call had ended before it was refused

    def __bool__(self) -> bool:
        return self.success

    def as_dict(self) -> dict[str, Any]:
        """The HTTP answer."""
        return {
            "success": self.success,
            "mode": self.mode,
            "why": self.why,
            "retryable": self.retryable,
            "holders": [holder.as_dict() for holder in self.holders],
            "ended": list(self.ended),
        }


@dataclass(frozen=True, slots=True)
class EngineStats:
    """One consistent picture of the engine's counters, taken between two steps."""

    mode: str
    waiting: int
    blocked: int
    running: int
    parked_sessions: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    blocks_quarantined: int
    holds: dict[str, int]  # number by kind
    steps_launched: int
    steps_processed: int
    preemptions: int
    prompt_tokens: int
    generation_tokens: int
    prefix_queries: int  # tokens
    prefix_hits: int  # tokens
    tier_loaded_bytes: int
    tier_stored_bytes: int
    finished: dict[str, int]  # requests by FinishReason value
    ignored_signals: dict[str, int]  # by name
    refused_resets: dict[str, int]  # by holder kind
    watchdog_trips: int
    stuck_for: float  # seconds for which work has existed and not moved, 0 when it moves


#: What a field of `EngineConfig` may be.
CHOICES: dict[str, tuple[object, ...]] = {
    "steps_in_flight": (1, 2),
    "policy": ("fcfs", "priority"),
    "load_failure_policy": ("recompute", "fail"),
    "hash_algorithm": ("xxh3_128", "blake3", "sha256"),
}
#: The most that an integer may be: block ids and positions are int32, sizes in bytes are int64.
MOST = (1 << 31) - 1
MOST_BYTES = (1 << 63) - 1
#: The least that a field may be: an integer, or a number where this is a float.
LEAST: dict[str, int | float] = {
    "num_blocks": 1,
    "block_size": 1,
    "max_num_seqs": 1,
    "max_batched_tokens": 1,
    "max_model_len": 2,
    "loads_limit": 0,
    "host_tier_bytes": 0,
    "session_deadline": 0.0,
    "grammar_deadline": 0.0,
    "load_deadline": 0.0,
    "transfer_lease": 0.0,
    "cancel_lease": 0.0,
    "max_reset_wait": 0.0,
    "watchdog": 0.001,
}


def check_fields(
    record: Any, choices: Mapping[str, tuple[object, ...]], least: Mapping[str, int | float]
) -> None:
    """Raise ValueError that names the first field which cannot be, and what it could be.

    record: a dataclass. Its fields whose default is a bool or a str must be one as well.
    """
    for name, known in choices.items():
        value = getattr(record, name)
        if not any(_same(value, one) for one in known):
            raise ValueError(f"{name} {value!r}; it is one of {', '.join(map(str, known))}")
    for name, low in least.items():
        value = getattr(record, name)
        if isinstance(low, float):
            if not _is_number(value) or not value >= low:
                raise ValueError(f"{name} {value!r}; it is a number, {low:g} or more")
            continue
        most = MOST_BYTES if name.endswith("_bytes") else MOST
        integer = isinstance(value, int) and not isinstance(value, bool)
        if not integer or not low <= value <= most:
            more = ", as an int" if not integer else f" and {most} or less" if value > most else ""
            raise ValueError(f"{name} {value!r}; it is an integer, {low:g} or more{more}")
    for one in fields(record):
        value = getattr(record, one.name)
        for type_ in (bool, str):
            if isinstance(one.default, type_) and not isinstance(value, type_):
                raise ValueError(f"{one.name} {value!r}; it is a {type_.__name__}")


def _same(value: object, known: object) -> bool:
    """Equal and of its type: 1 is neither True nor 1.0."""
    return isinstance(value, type(known)) and not isinstance(value, bool) and value == known


def _is_number(value: object) -> bool:
    """Whether a clock can be set to it: the largest integers fit in no float."""
    if isinstance(value, float):
        return True
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes and limits of an engine. Times are seconds. Raises ValueError that names the field."""

    num_blocks: int = 512
    block_size: int = 16
    max_num_seqs: int = 32  # requests that may run at once
    max_batched_tokens: int = 2048  # tokens a step
    max_model_len: int = 2048
    steps_in_flight: int = 1  # 1 or 2
    policy: str = "fcfs"  # or "priority"
    hash_algorithm: str = "xxh3_128"  # or "blake3", "sha256"
    loads_limit: int = 3
    load_failure_policy: str = "recompute"  # or "fail"
    session_deadline: float = 300.0  # parked between turns
    grammar_deadline: float = 60.0  # a request's wait for `grammar_ready`
    load_deadline: float = 60.0  # a request's wait for its load
    transfer_lease: float = 60.0  # a transfer's time until it is cancelled
    cancel_lease: float = 10.0  # a cancelled transfer's time until it is in quarantine
    max_reset_wait: float = 60.0  # the longest `wait` of a reset
    #: For which work may stand still before `healthy` says so; and, once a shutdown has ended the
    #: requests, a device may leave a step unanswered before it is given up.
    watchdog: float = 60.0
    check: bool = False  # replay every lane through its events and check every count
    host_tier_bytes: int = 0  # 0: no host tier
    model_digest: str = ""  # part of every tier's keys
    dtype: str = "float32"

    def __post_init__(self) -> None:
        check_fields(self, CHOICES, LEAST)


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """One request, for `/debug/requests/{id}`: no prompt text, no token ids."""

    request_id: str
    state: str
    container: str
    facts: dict[str, int] = field(default_factory=dict)
    transitions: Sequence[dict[str, Any]] = ()
