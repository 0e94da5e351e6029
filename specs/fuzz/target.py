"""What the fuzzer asks of an engine: a small set of operations and one frozen look at its state.

An engine under test is a subclass of `Target`. It must be able to take requests, launch a step,
finish the oldest launched step, abort, and show a `Snapshot`; every other part (sessions,
transfers, resets, pause, sleep, time) is optional and named in `features`. What the engine says
of itself beyond the rules that hold for every engine is named in `promises`, so that nothing is
reported that was never promised.

There is no model. A target's worker writes what it computes into a fake KV
(`kvproof.specs.fuzz.fake_kv`) and samples with `next_token`, a function of the tokens alone:
whatever is scheduled, preempted, loaded or reset, a request's answer must be the same.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

#: The token that ends a turn.
EOS = 0


def next_token(prefix: Sequence[int], stop_every: int) -> int:
    """The fake model: the token that follows `prefix`.

    It depends on every token of the prefix, and is `EOS` whenever the prefix's length is a
    multiple of `stop_every` (0: never).
    """
    if stop_every and len(prefix) % stop_every == 0:
        return EOS
    value = 17
    for token in prefix:
        value = (value * 31 + token + 1) % 65521
    return 100 + value % 900


class Feature(enum.StrEnum):
    """A part of the protocol that an engine may leave out."""

    STOPS = "stops"  # NewRequest.stop_every: an answer may end before its longest length
    OVERLAP = "overlap"  # a second step may be launched before the first one is finished
    SESSIONS = "sessions"  # add(session=True), chunk, close_input
    PRIORITY = "priority"  # Settings.priority and NewRequest.priority
    LOADS = "loads"  # transfers into blocks: complete
    STORES = "stores"  # transfers out of blocks: complete
    FAILURES = "failures"  # fail: a transfer may legally end without success
    LATE_SIGNALS = "late-signals"  # lose, duplicate: faults of the environment
    RESET = "reset"
    RESET_RUNNING = "reset-running"  # reset(running=True)
    RESET_CONNECTOR = "reset-connector"  # reset(connector=True)
    PAUSE = "pause"  # pause, resume
    SLEEP = "sleep"  # sleep, wake
    CLOCK = "clock"  # tick


class Promise(enum.StrEnum):
    """What an engine says of itself beyond the rules that hold for every engine."""

    #: A reset that is refused leaves requests, blocks and tiers as they were.
    REFUSED_RESET_CHANGES_NOTHING = "refused-reset-changes-nothing"
    #: A refused reset names at least one owner of a hold, and nobody else.
    REFUSED_RESET_NAMES_HOLDERS = "refused-reset-names-holders"
    #: A reset with `running=True` is refused only while a transfer is open.
    FORCED_RESET_WAITS_FOR_TRANSFERS_ONLY = "forced-reset-waits-for-transfers-only"
    #: After a reset with `connector=True` that is done, no tier has anything to hit.
    CONNECTOR_RESET_CLEARS_TIERS = "connector-reset-clears-tiers"
    #: After *any* reset that is done, no tier has anything to hit.
    RESET_CLEARS_TIERS = "reset-clears-tiers"
    #: A session that waits for its client gives its blocks to a request that lacks them.
    PARKED_SESSIONS_ARE_RECLAIMED = "parked-sessions-are-reclaimed"
    #: A session's next turn is computed from its prompt and every delivered token.
    SESSIONS_KEEP_EVERY_TOKEN = "sessions-keep-every-token"
    #: Late, duplicate and unknown completions change nothing.
    LATE_SIGNALS_CHANGE_NOTHING = "late-signals-change-nothing"
    #: A transfer whose completion is lost ends by itself once `tick` was called.
    LOST_TRANSFERS_END = "lost-transfers-end"
    #: A block can be a hit only once it is written.
    CACHED_BLOCKS_ARE_WRITTEN = "cached-blocks-are-written"
    #: No request goes beyond Settings.max_length, whatever its client sends.
    SESSIONS_STAY_WITHIN_LENGTH = "sessions-stay-within-length"
    #: A session that waits for its client takes no place in Settings.max_running.
    PARKED_SESSIONS_TAKE_NO_SLOT = "parked-sessions-take-no-slot"


class RejectedError(Exception):
    """The engine's own, typed refusal of a call: legal, and it must have changed nothing.

    A target translates its engine's documented errors into this one. Anything else that comes out
    of an operation is a finding.
    """


@dataclass(frozen=True, slots=True)
class Settings:
    """The size and shape of one engine instance; the fuzzer picks small ones."""

    blocks: int = 8  # usable device blocks
    block_size: int = 4  # tokens in a block
    max_running: int = 4  # requests that may run at once
    token_budget: int = 16  # tokens in one step
    max_length: int = 32  # tokens in one request, prompt and output
    priority: bool = False  # schedule by NewRequest.priority (lower first), else by arrival
    depth: int = 1  # steps in flight at most; above 1 only with Feature.OVERLAP
    connector: str = "none"  # one of Target.connectors
    tier_blocks: int = 8  # blocks in the connector's tier, where its size can be chosen
    fail_policy: str = "recompute"  # what a failed load does to its request: recompute or fail


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request as its client sends it."""

    id: str
    prompt: tuple[int, ...]
    max_tokens: int = 4  # of one turn
    session: bool = False  # input stays open: further chunks may come
    priority: int = 0
    stop_every: int = 0  # see next_token
    remote_tokens: int = 0  # how many of its tokens a (mock) remote tier offers to load
    send: bool = False  # its KV is sent to a peer when it finishes (a store)


@dataclass(frozen=True, slots=True)
class ResetAnswer:
    """What a reset said: `done`, or refused because of `holders` (request and transfer ids)."""

    done: bool
    holders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestView:
    """One request of this run; also one that the engine has forgotten, with its last state."""

    id: str
    state: str  # the declaration's name, e.g. "WAITING_FOR_REMOTE_KVS"
    containers: tuple[str, ...]  # where it is found, of "waiting", "blocked", "running"
    blocks: tuple[int, ...]  # its block table, in order
    computed: int  # tokens whose KV it counts as computed
    tokens: tuple[int, ...]  # all that the engine knows: prompt, chunks, output
    delivered: tuple[int, ...]  # output given to the client, all turns
    finished: bool = False
    known: bool = True  # False: the engine has forgotten it, or never took it in
    waits_for: str | None = None  # a transfer's id


@dataclass(frozen=True, slots=True)
class Hold:
    """A set of blocks that one owner keeps; a block is counted once for each hold on it."""

    owner: str  # a request's, transfer's or step's id
    kind: str  # REQUEST, STEP, LOAD or STORE
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TransferView:
    """A transfer as the *environment* knows it, whatever the engine has recorded.

    The id names kind, request and ordinal ("load/r1/1"), so that it stays the same when unrelated
    operations are removed from a sequence.
    """

    id: str
    kind: str  # LOAD or STORE
    request: str | None
    blocks: tuple[int, ...]  # the device blocks that it may still read or write
    open: bool  # still running; False: it ended, and its signal was or will be delivered
    lost: bool = False  # no signal will come; it may touch its blocks for ever


@dataclass(frozen=True, slots=True)
class BlockView:
    """One device block. Contents are prefix ids of `FakeKV`, one for each slot; 0 is garbage."""

    id: int
    count: int  # the engine's reference count
    free: bool  # it is in the engine's free list
    content: tuple[int, ...] = ()
    cached_as: tuple[int, ...] | None = None  # what its hash stands for; None: not cached
    being_written: bool = False  # a launched step or an open load will still write it


@dataclass(frozen=True, slots=True)
class TierEntry:
    """One block's worth of KV in another tier that can be hit."""

    tier: str
    content: tuple[int, ...]
    cached_as: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Misread:
    """A delivered token was computed from a position that held another prefix's KV, or garbage.

    A target records the misread with the token and reports it when the token is delivered: what a
    step reads for a request that has let go of its blocks hurts nobody.
    """

    request: str
    position: int
    block: int
    why: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that the oracle looks at, taken after each operation. Plain data throughout."""

    requests: tuple[RequestView, ...]
    blocks: tuple[BlockView, ...]
    holds: tuple[Hold, ...]
    transfers: tuple[TransferView, ...] = ()
    tiers: tuple[TierEntry, ...] = ()
    steps_in_flight: int = 0
    #: (step or transfer, block): who may still read or write it, and relies on a hold for that.
    #: Leave out what the engine orders by other means (one stream, a flush before reuse).
    touched: tuple[tuple[str, int], ...] = ()
    misreads: tuple[Misread, ...] = ()  # all so far
    counters: tuple[tuple[str, int, int], ...] = ()  # name, what it says, what it should say
    mode: str = "ACTIVE"  # ACTIVE, PAUSED or SLEEPING
    asleep: tuple[str, ...] = ()  # of "weights", "cache": not resident

    def request(self, request_id: str) -> RequestView | None:
        """The request with this id, or None when there was none."""
        return next((request for request in self.requests if request.id == request_id), None)

    def block(self, block_id: int) -> BlockView:
        """The block with this id; KeyError when there is none."""
        for block in self.blocks:
            if block.id == block_id:
                return block
        raise KeyError(block_id)

    def holders(self, block: int) -> tuple[str, ...]:
        """The owners of the holds that cover a block; one owner may appear more than once."""
        return tuple(h.owner for h in self.holds for b in h.blocks if b == block)

    def free_blocks(self) -> tuple[int, ...]:
        """The ids of the blocks in the free list."""
        return tuple(block.id for block in self.blocks if block.free)


class Target(abc.ABC):
    """An engine under test. Ids in calls are those of earlier calls or of the last snapshot."""

    features: ClassVar[frozenset[Feature]] = frozenset()
    promises: ClassVar[frozenset[Promise]] = frozenset()
    connectors: ClassVar[tuple[str, ...]] = ("none",)
    #: The calls that may come while Settings.depth steps are in flight. An engine whose loop
    #: serves its clients only between steps lists those that reach it all the same.
    calls_when_full: ClassVar[frozenset[str] | None] = None  # None: every call
    #: The calls that first process the launched steps by themselves: what those change is not
    #: the call's doing, so "changes nothing" is asked only when none is in flight.
    settles_first: ClassVar[frozenset[str]] = frozenset()

    #: Lines that a generated test starts with, before its imports.
    preamble_of_tests: ClassVar[str] = ""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @classmethod
    def version(cls) -> str:
        """The engine's name and version, for reports."""
        return cls.__name__

    @classmethod
    def caveat(cls) -> str:
        """What a reader of a report must know of this engine's version; "" when there is nothing.

        A target relies on what its engine does inside: it says here when that is not as it was.
        """
        return ""

    @classmethod
    def needed_by_tests(cls, settings: Settings) -> tuple[str, ...]:
        """Definitions, as "module:name", that a generated test needs and no name leads to."""
        return ()

    @classmethod
    def features_with(cls, connector: str) -> frozenset[Feature]:
        """The features with one connector; override it where they differ."""
        return cls.features

    @classmethod
    def promises_with(cls, connector: str) -> frozenset[Promise]:
        """The promises with one connector; override it where they differ."""
        return cls.promises

    # Required.
    @abc.abstractmethod
    def add(self, request: NewRequest) -> None:
        """Take a new request in; its id is not in use."""

    @abc.abstractmethod
    def step(self) -> bool:
        """Schedule and launch a step. False: the engine has no work, and none was launched."""

    @abc.abstractmethod
    def finish_step(self) -> None:
        """Let the device execute the oldest launched step, and process its results."""

    @abc.abstractmethod
    def abort(self, request: str) -> None:
        """The client gives up on a request; also legal when it is finished or unknown."""

    @abc.abstractmethod
    def snapshot(self) -> Snapshot:
        """The state now."""

    def close(self) -> None:  # noqa: B027
        """Give back what the instance holds (threads, files). Called once, at the end."""

    # Feature.SESSIONS
    def chunk(self, request: str, tokens: tuple[int, ...], max_tokens: int) -> None:
        """Send a session its next input."""
        raise NotImplementedError

    def close_input(self, request: str) -> None:
        """Tell a session that no more input comes."""
        raise NotImplementedError

    # Feature.LOADS, Feature.STORES
    def complete(self, transfer: str) -> None:
        """An open transfer ends well; the engine learns of it now, or with its next step."""
        raise NotImplementedError

    # Feature.FAILURES
    def fail(self, transfer: str, valid_blocks: int) -> None:
        """An open transfer fails; only its first blocks hold what they should."""
        raise NotImplementedError

    # Feature.LATE_SIGNALS
    def lose(self, transfer: str) -> None:
        """An open transfer's completion will never be reported."""
        raise NotImplementedError

    def duplicate(self, transfer: str) -> None:
        """The completion of a transfer that ended is reported once more."""
        raise NotImplementedError

    # Feature.RESET*
    def reset(self, running: bool, connector: bool) -> ResetAnswer:
        """Drop all cached prefixes: of running requests too, of the connector's tier too."""
        raise NotImplementedError

    # Feature.PAUSE
    def pause(self, mode: str) -> None:
        """Stop stepping; what runs is aborted ("abort"), finished ("wait") or kept ("keep")."""
        raise NotImplementedError

    def resume(self) -> None:
        """Go on after a pause."""
        raise NotImplementedError

    # Feature.SLEEP
    def sleep(self, level: int) -> bool:
        """Give memory back: 1 the cache, 2 the weights too. False: refused."""
        raise NotImplementedError

    def wake(self) -> bool:
        """Take the memory again. False: refused."""
        raise NotImplementedError

    # Feature.CLOCK
    def tick(self) -> None:
        """Time passes: every lease and deadline that is running now is over."""
        raise NotImplementedError
