"""A finite instance: how many requests, blocks and transfers, how long, and what may happen.

Everything that the declaration counts without bound is bounded by something here: tokens by a
tiny model length, blocks by the pool, failed loads by their limit. Step numbers and epochs are
normalised (see `joint`). What may happen is a set of features, so that an instance stays small
where a question needs only a part of the system.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property


class InstanceError(ValueError):
    """An instance that makes no sense, or is too large to explore; says what would be right."""


class Feature(enum.StrEnum):
    """A part of the system that an instance may leave out."""

    LOADS = "loads"  # transfers into blocks: start, join, land
    STORES = "stores"  # transfers out of published blocks
    FAILURES = "failures"  # transfers fail; a failed load may leave a valid prefix
    LEASES = "leases"  # a lease runs out: the transfer is cancelled
    QUARANTINE = "quarantine"  # nobody can say whether a cancelled transfer has stopped
    LOST = "lost"  # a fault of the environment: a completion is never reported
    FATAL = "fatal"  # the policy for failed loads is to fail the request
    PREEMPTION = "preemption"  # a running request makes room
    ABORTS = "aborts"  # clients give up
    DEADLINES = "deadlines"  # what waits for an outside party leaves when its time is over
    STOPS = "stops"  # a stop token may come before the length is reached
    SESSIONS = "sessions"  # streaming input: chunk, close_input, reclaim of parked sessions
    GRAMMAR = "grammar"  # a request may wait for its grammar
    TRIM = "trim"  # a table may be longer than needed, and be cut
    CHUNKED = "chunked"  # a step may compute a part of what is left
    RESETS = "resets"  # plain and forced resets, decided at once
    WAITING_RESETS = "waiting-resets"  # a forced reset that waits
    PAUSE = "pause"
    SLEEP = "sleep"
    WEIGHTS = "weights"  # weights_changed
    SHUTDOWN = "shutdown"
    POLICY = "policy"  # two priorities and an order of arrival; the scheduler goes by the policy
    EVICTION = "eviction"  # a cached prefix is dropped before its block is needed
    WRONG_ASKS = "wrong-asks"  # callers ask what must be refused, signals come late
    RECORDS = "records"  # the records of ended transfers stay until they are retired


DEFAULT_FEATURES = frozenset(
    {
        Feature.LOADS,
        Feature.FAILURES,
        Feature.PREEMPTION,
        Feature.ABORTS,
        Feature.RESETS,
    }
)


@dataclass(frozen=True)
class Instance:
    """The size of an instance. All tokens are of one stream: prefix n is everybody's prefix n."""

    requests: int = 2
    blocks: int = 2
    transfers: int = 1
    block_size: int = 1
    model_length: int = 3  # tokens of a sequence, prompt and output
    prompt: int = 2  # tokens of every prompt
    chunk: int = 1  # tokens of every chunk
    queued_chunks: int = 1  # chunks that a client sends ahead
    steps_ahead: int = 1
    loads_limit: int = 1
    features: frozenset[Feature] = DEFAULT_FEATURES

    def __post_init__(self) -> None:
        limits = {
            "requests": (1, 6),
            "blocks": (1, 8),
            "transfers": (0, 4),
            "block_size": (1, 4),
            "model_length": (2, 24),
            "prompt": (1, self.model_length - 1),
            "chunk": (1, self.model_length - 1),
            "queued_chunks": (0, 3),
            "steps_ahead": (1, 3),
            "loads_limit": (0, 3),
        }
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise InstanceError(
                    f"{name} is {value}: an instance that can be enumerated has {least} to {most}"
                )
        if self.prompt > self.blocks * self.block_size:
            raise InstanceError(
                f"a prompt of {self.prompt} tokens never fits in {self.blocks} blocks of "
                f"{self.block_size}: every request would be ignored"
            )

    def has(self, *features: Feature) -> bool:
        """Whether all of these may happen."""
        return self.features.issuperset(features)

    @cached_property
    def kv_tokens(self) -> int:
        """The most tokens of a sequence whose KV is ever computed: the last one never is."""
        return min(self.model_length - 1, self.blocks * self.block_size)

    @cached_property
    def table_blocks(self) -> int:
        """The longest block table of a request."""
        needed = -(-self.kv_tokens // self.block_size)
        return min(self.blocks, needed + (1 if self.has(Feature.TRIM) else 0))

    @property
    def transfer_kinds(self) -> bool:
        """Whether there is any transfer at all."""
        return self.transfers > 0 and (self.has(Feature.LOADS) or self.has(Feature.STORES))

    def __str__(self) -> str:
        features = ", ".join(sorted(self.features)) or "no further feature"
        sizes = [
            _counted(self.requests, "request"),
            f"{_counted(self.blocks, 'block')} of {_counted(self.block_size, 'token')}",
            _counted(self.transfers, "transfer"),
            f"{_counted(self.model_length, 'token')} at most",
            f"{_counted(self.steps_ahead, 'step')} ahead",
        ]
        return f"{', '.join(sizes)}; {features}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
