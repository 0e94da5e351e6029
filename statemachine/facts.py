"""The records: everything that the lifecycle knows, and nothing that follows from it.

Each record is a class with slots and a `KINDS` map (field -> "int" or "bool"), from which the
engine builds its columns and the symbolic executor its symbols. Times are seconds of a monotonic
clock and are compared by the engine, which tells the declaration only whether one is over.
"""

from __future__ import annotations

from typing import ClassVar, Self


class Record:
    """A slot record whose fields all start at 0 or False."""

    KINDS: ClassVar[dict[str, str]] = {}
    __slots__ = ()

    def __init__(self, **facts: int) -> None:
        for name, kind in self.KINDS.items():
            setattr(self, name, facts.pop(name, False if kind == "bool" else 0))
        if facts:
            raise TypeError(f"{type(self).__name__} has no fact {', '.join(sorted(facts))}")

    def copy(self) -> Self:
        """Another record of the same facts: to ask what an event would do, without doing it."""
        return type(self)(**self.as_dict())

    def as_dict(self) -> dict[str, int]:
        """The facts by name, in the order of declaration."""
        return {name: getattr(self, name) for name in self.KINDS}

    def __repr__(self) -> str:
        known = ", ".join(f"{name}={value}" for name, value in self.as_dict().items() if value)
        return f"{type(self).__name__}({known})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.as_dict() == other.as_dict()

    __hash__ = None  # type: ignore[assignment]


class RequestFacts(Record):
    """A request's record. It is resident exactly when `covered` is above 0."""

    KINDS: ClassVar[dict[str, str]] = {
        "state": "int",  # RequestState
        "covered": "int",  # blocks in its REQUEST hold
        "newest_step": "int",  # newest launched step that computes it, 0 for none
        "stale_step": "int",  # output of this step and of older ones is ignored
        "computed": "int",  # tokens whose KV is written or being written by a launched step
        "written": "int",  # those of them whose step is processed, or whose load has landed
        "hashed": "int",  # leading blocks that are published: others may hit them
        "prompt": "int",  # tokens given by the client: the prompt and the chunks merged so far
        "delivered": "int",  # tokens sampled and delivered, over all turns; never taken back
        "turn_start": "int",  # delivered tokens when the present turn began
        "waits_for": "int",  # the transfer that it waits for, 0 for none
        "reserved": "int",  # blocks promised to it so that it can run after its load
        "loads_failed": "int",  # loads that failed for it
        "queued_chunks": "int",  # chunks that came before the turn's end
        "queued_tokens": "int",  # their tokens
        "input_open": "bool",  # a session whose client may still send chunks
        "resumable": "bool",  # a streaming-input session
        "priority": "int",  # lower runs first
        "arrival": "int",  # order of arrival among equals
    }
    __slots__ = tuple(KINDS)

    state: int
    covered: int
    newest_step: int
    stale_step: int
    computed: int
    written: int
    hashed: int
    prompt: int
    delivered: int
    turn_start: int
    waits_for: int
    reserved: int
    loads_failed: int
    queued_chunks: int
    queued_tokens: int
    input_open: bool
    resumable: bool
    priority: int
    arrival: int


class TransferFacts(Record):
    """A transfer's record. Its own LOAD or STORE hold covers the blocks that it touches."""

    KINDS: ClassVar[dict[str, str]] = {
        "state": "int",  # TransferState
        "kind": "int",  # HoldKind: LOAD or STORE
        "waiters": "int",  # requests that wait for it
    }
    __slots__ = tuple(KINDS)

    state: int
    kind: int
    waiters: int


class EngineFacts(Record):
    """The engine's record; the last four are its configuration and never change."""

    KINDS: ClassVar[dict[str, str]] = {
        "mode": "int",  # EngineMode
        "pausing": "int",  # PauseMode of the pause that is under way or reached, 0 for none
        "sleep_paused": "bool",  # the sleep did the pausing: waking resumes
        "sleep_level": "int",  # 0 awake, 1 or 2
        "weights_resident": "bool",
        "cache_resident": "bool",
        "launched": "int",  # newest step launched
        "processed": "int",  # newest step whose results are processed
        "pending_reset": "bool",  # a reset waits: nothing starts that would delay it
        "epoch": "int",  # of the weights: every tier's keys carry it
        "quarantined": "int",  # blocks out of the pool because nobody can say who touches them
        "steps_ahead": "int",  # how many steps may be in flight
        "block_size": "int",  # tokens a block
        "pool_blocks": "int",  # blocks in the pool, the quarantined ones included
        "model_length": "int",  # longest sequence that the model can take, in tokens
        "loads_limit": "int",  # failed loads after which a request recomputes
    }
    __slots__ = tuple(KINDS)

    mode: int
    pausing: int
    sleep_paused: bool
    sleep_level: int
    weights_resident: bool
    cache_resident: bool
    launched: int
    processed: int
    pending_reset: bool
    epoch: int
    quarantined: int
    steps_ahead: int
    block_size: int
    pool_blocks: int
    model_length: int
    loads_limit: int


class BlockFacts(Record):
    """One block. `content_of` and `hashed_as` are ghosts: erased at run time, kept by proofs.

    A prefix is known to the ghosts as a number, 0 for "nothing that anybody may rely on".
    """

    KINDS: ClassVar[dict[str, str]] = {
        "count": "int",  # holds that cover it
        "cached": "bool",  # a prefix can hit it
        "being_written": "bool",  # a load has not ended
        "quarantined": "int",  # holds in quarantine that cover it: above 0 it is out of the pool
        "content_of": "int",  # ghost: the prefix that its content was computed from
        "hashed_as": "int",  # ghost: the prefix that the index says it has
    }
    __slots__ = tuple(KINDS)

    count: int
    cached: bool
    being_written: bool
    quarantined: int
    content_of: int
    hashed_as: int


class Ask(Record):
    """What a request's event is told by the scheduler, the pool, the tier or the client."""

    KINDS: ClassVar[dict[str, str]] = {
        "tokens": "int",  # tokens of the prompt, chunk, step or output
        "blocks": "int",  # blocks to take; for trim, publish and transfer_*: blocks kept or valid
        "hits": "int",  # of the blocks to take, the leading ones that are published hits
        "fresh": "int",  # of the blocks to take, those that leave the free pool
        "free": "int",  # blocks free beyond what is reserved for others
        "reserve": "int",  # blocks to reserve for running after a load
        "remote_tokens": "int",  # tokens of the prefix that the tier has
        "step": "int",  # number of the step that this is about
        "transfer": "int",  # number of the transfer that this is about
        "joinable": "bool",  # that transfer is QUEUED or IN_FLIGHT, or about to start
        "reason": "int",  # stop: the FINISHED_* state that it means
        "at_limit": "bool",  # stop: the model's or the whole pool's length is reached
        "allowed": "bool",  # preempt: the policy lets it be a victim
        "forced": "bool",  # preempt: a forced reset or a sleep asks
        "fatal": "bool",  # transfer_failed: the policy is to fail the request
        "expired": "bool",  # deadline: the time for that wait is over
        "idle": "bool",  # forget: no hold and no transfer of it is left
        "grammar": "bool",  # add: it needs a grammar first
        "resumable": "bool",  # add: it is a streaming-input session
        "priority": "int",
        "arrival": "int",
    }
    __slots__ = tuple(KINDS)

    tokens: int
    blocks: int
    hits: int
    fresh: int
    free: int
    reserve: int
    remote_tokens: int
    step: int
    transfer: int
    joinable: bool
    reason: int
    at_limit: bool
    allowed: bool
    forced: bool
    fatal: bool
    expired: bool
    idle: bool
    grammar: bool
    resumable: bool
    priority: int
    arrival: int


class TransferAsk(Record):
    """What a transfer's event is told."""

    KINDS: ClassVar[dict[str, str]] = {
        "kind": "int",  # start: LOAD or STORE
        "published": "bool",  # start of a store: every block is published
        "unshared": "bool",  # start of a load: its blocks are fresh, only its waiters hold them
        "expired": "bool",  # lease_over: the lease has run out
    }
    __slots__ = tuple(KINDS)

    kind: int
    published: bool
    unshared: bool
    expired: bool


class EngineAsk(Record):
    """What an engine event is told."""

    KINDS: ClassVar[dict[str, str]] = {
        "step": "int",  # step_processed: its number
        "pausing": "int",  # pause, sleep: PauseMode
        "level": "int",  # sleep: 1 or 2
        "tags": "int",  # wake, woke: WEIGHTS, CACHE or both
        "running": "int",  # requests in RUNNING or PREEMPTED
        "live": "int",  # requests that are not finished
        "holders": "int",  # holds that a forced reset could not let go of, quarantine apart
        "holds": "int",  # holds left, quarantine apart
    }
    __slots__ = tuple(KINDS)

    step: int
    pausing: int
    level: int
    tags: int
    running: int
    live: int
    holders: int
    holds: int
