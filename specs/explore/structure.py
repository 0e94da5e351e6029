"""The state of a finite instance: which records there are, and which of their fields are kept.

A field that is kept has a *slot*: a name `record.field` and the least and the most that it can
be. Fields that follow from others (counts of the configuration, ghosts that are the same for all
blocks) are derived when a state is loaded. The same structure holds plain ints for the search
over the real functions and expressions for the compiled one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...statemachine.states import (
    LOAD,
    STORE,
    EngineMode,
    PauseMode,
    RequestState,
    TransferState,
)
from ..check.declaration import Declaration
from . import expressions as ex
from .expressions import Value
from .instance import Feature, Instance


@dataclass(frozen=True)
class Slot:
    """One field that a state keeps."""

    record: str
    field: str
    low: int
    high: int
    boolean: bool

    @property
    def name(self) -> str:
        return f"{self.record}.{self.field}"


class Work:
    """Ghosts of one request: what each launched step computes for it, oldest step first.

    `written` are the tokens whose KV is really in its table: `place.written`, the same for all
    blocks.
    """

    def __init__(self, steps: int) -> None:
        self.written: Value = 0
        for step in range(1, steps + 1):
            setattr(self, f"tokens{step}", 0)
            setattr(self, f"samples{step}", False)

    def tokens(self, step: int) -> Value:
        """Tokens that the step computes; 0: the request is not in it."""
        value: Value = getattr(self, f"tokens{step}")
        return value

    def samples(self, step: int) -> Value:
        """Whether the step samples a token for it."""
        value: Value = getattr(self, f"samples{step}")
        return value


class Phase:
    """What the engine's loop is in the middle of."""

    def __init__(self) -> None:
        #: A step is processed, and some of its rows are not settled yet: nothing else goes.
        self.settling: Value = False
        #: A waiting reset is being tried: no step is launched until it is decided.
        self.trying: Value = False


class Fault:
    """Ghost of one transfer: its completion will never be reported."""

    def __init__(self) -> None:
        self.lost: Value = False


class State:
    """The records of an instance, by role and by name."""

    def __init__(self, instance: Instance, declaration: Declaration) -> None:
        facts, joined = declaration.modules["facts"], declaration.modules["joined"]
        held = declaration.modules["blocks"].HeldFacts
        requests, blocks, transfers = (
            range(instance.requests),
            range(instance.blocks),
            range(instance.transfers),
        )
        self.e: Any = facts.EngineFacts()
        self.phase = Phase()
        self.requests: list[Any] = [facts.RequestFacts() for _ in requests]
        self.work = [Work(instance.steps_ahead) for _ in requests]
        self.places: list[list[Any]] = [[joined.PlaceFacts() for _ in blocks] for _ in requests]
        self.held: list[list[Any]] = [[held() for _ in blocks] for _ in requests]
        self.blocks: list[Any] = [facts.BlockFacts() for _ in blocks]
        self.more: list[Any] = [joined.MoreBlockFacts() for _ in blocks]
        self.transfers: list[Any] = [facts.TransferFacts() for _ in transfers]
        self.faults = [Fault() for _ in transfers]
        self.copies: list[list[Any]] = [[joined.CopyFacts() for _ in blocks] for _ in transfers]
        self.carried: list[list[Any]] = [[held() for _ in blocks] for _ in transfers]
        self.named: dict[str, Any] = dict(self._names())

    def _names(self) -> Iterator[tuple[str, Any]]:
        yield "e", self.e
        yield "phase", self.phase
        for index, request in enumerate(self.requests):
            yield f"r{index}", request
            yield f"work{index}", self.work[index]
            for block, (place, held) in enumerate(
                zip(self.places[index], self.held[index], strict=True)
            ):
                yield f"place{index}_{block}", place
                yield f"held{index}_{block}", held
        for index, transfer in enumerate(self.transfers):
            yield f"t{index}", transfer
            yield f"fault{index}", self.faults[index]
            for block, (copy, held) in enumerate(
                zip(self.copies[index], self.carried[index], strict=True)
            ):
                yield f"copy{index}_{block}", copy
                yield f"carried{index}_{block}", held
        for index, (block_facts, more) in enumerate(zip(self.blocks, self.more, strict=True)):
            yield f"b{index}", block_facts
            yield f"more{index}", more

    def put(self, slots: list[Slot], values: list[Any] | tuple[Any, ...]) -> None:
        """Set the kept fields. `derive` must follow."""
        for slot, value in zip(slots, values, strict=True):
            setattr(self.named[slot.record], slot.field, value)

    def values(self, slots: list[Slot]) -> list[Any]:
        """The kept fields, in the order of the slots."""
        for work, places in zip(self.work, self.places, strict=True):
            work.written = places[0].written
        return [getattr(self.named[slot.record], slot.field) for slot in slots]

    def derive(self, instance: Instance, *, normalised: bool = True) -> None:
        """Set the fields that follow from those that are kept.

        With absolute step numbers (not `normalised`) the newest processed one is kept.
        """
        e = self.e
        e.block_size, e.pool_blocks = instance.block_size, instance.blocks
        e.model_length, e.steps_ahead = instance.model_length, instance.steps_ahead
        e.loads_limit = instance.loads_limit
        e.epoch = 1
        if normalised:
            e.processed = ex.number(self.phase.settling)
        for work, places in zip(self.work, self.places, strict=True):
            for place in places:
                place.written = work.written
                place.prefix = place.position + 1
                place.epoch = 1
        for index, copies in enumerate(self.copies):
            for copy in copies:
                copy.number = index + 1
                copy.others_waiting = 0
        for more in self.more:
            more.tier_epoch, more.tier_present = 0, False
            if not instance.has(Feature.WEIGHTS):
                more.epoch = 1
        count_quarantine(self)


def count_quarantine(state: State) -> None:
    """The engine's count of blocks that are out of the pool."""
    state.e.quarantined = ex.total(ex.truth(block.quarantined) for block in state.blocks)


def slots_of(instance: Instance) -> list[Slot]:
    """The kept fields of an instance. Those that can only be one value are left out.

    Order: the engine, each request with its pairs, each block, each transfer with its pairs.
    """
    found: list[Slot] = []

    def keep(record: str, **fields: int | bool | tuple[int, int]) -> None:
        for field, most in fields.items():
            low, high = most if isinstance(most, tuple) else (0, int(most))
            if low < high:
                found.append(Slot(record, field, low, high, isinstance(most, bool)))

    for_engine(instance, keep)
    for index in range(instance.requests):
        for_request(instance, index, keep)
    for index in range(instance.blocks):
        for_block(instance, index, keep)
    for index in range(instance.transfers if instance.transfer_kinds else 0):
        for_transfer(instance, index, keep)
    return found


Keep = Callable[..., None]


def for_engine(instance: Instance, keep: Keep) -> None:
    """The engine's fields."""
    pauses = instance.has(Feature.PAUSE) or instance.has(Feature.SLEEP)
    sleeps = instance.has(Feature.SLEEP)
    modes = pauses or instance.has(Feature.SHUTDOWN)
    keep(
        "e",
        mode=(1, int(max(EngineMode))) if modes else (1, 1),
        pausing=int(max(PauseMode)) if pauses else 0,
        sleep_paused=sleeps,
        sleep_level=2 if sleeps else 0,
        weights_resident=sleeps,
        cache_resident=sleeps,
        launched=instance.steps_ahead,
        pending_reset=instance.has(Feature.WAITING_RESETS),
    )
    keep("phase", settling=True, trying=instance.has(Feature.WAITING_RESETS))


def for_request(instance: Instance, index: int, keep: Keep) -> None:
    """A request's fields, and those of its pairs with each block."""
    loads = instance.transfers > 0 and instance.has(Feature.LOADS)
    sessions = instance.has(Feature.SESSIONS)
    steps, tokens, blocks = instance.steps_ahead, instance.kv_tokens, instance.table_blocks
    longest = max(instance.prompt, instance.model_length - 1) if sessions else instance.prompt
    keep(
        f"r{index}",
        state=int(max(RequestState)),
        covered=blocks,
        newest_step=steps,
        stale_step=steps,
        computed=tokens,
        written=tokens,
        hashed=tokens // instance.block_size,
        prompt=longest,
        delivered=instance.model_length - instance.prompt,
        turn_start=instance.model_length - instance.prompt if sessions else 0,
        waits_for=instance.transfers if loads else 0,
        reserved=blocks if loads else 0,
        loads_failed=instance.loads_limit if loads else 0,
        queued_chunks=instance.queued_chunks if sessions else 0,
        queued_tokens=instance.queued_chunks * instance.chunk if sessions else 0,
        input_open=sessions,
        resumable=sessions,
        priority=1 if instance.has(Feature.POLICY) else 0,
        arrival=instance.requests if instance.has(Feature.POLICY) else 0,
    )
    for step in range(1, steps + 1):
        keep(f"work{index}", **{f"tokens{step}": tokens, f"samples{step}": True})
    keep(f"work{index}", written=tokens)
    for block in range(instance.blocks):
        keep(f"place{index}_{block}", position=(-1, blocks - 1), touching=steps)
        keep(f"held{index}_{block}", by_request=True, by_step=True, step=steps)


def for_block(instance: Instance, index: int, keep: Keep) -> None:
    """A block's fields."""
    prefixes = instance.kv_tokens // instance.block_size
    transfers = instance.transfers if instance.transfer_kinds else 0
    loads = transfers > 0 and instance.has(Feature.LOADS)
    keep(
        f"b{index}",
        count=2 * instance.requests + transfers,
        cached=True,
        being_written=loads,
        quarantined=transfers if instance.has(Feature.QUARANTINE) else 0,
        content_of=prefixes,
        hashed_as=prefixes,
    )
    keep(f"more{index}", epoch=1 if instance.has(Feature.WEIGHTS) else 0)


def for_transfer(instance: Instance, index: int, keep: Keep) -> None:
    """A transfer's fields, and those of its pairs with each block."""
    loads = instance.has(Feature.LOADS)
    prefixes = instance.kv_tokens // instance.block_size
    keep(
        f"t{index}",
        state=int(max(TransferState)),
        kind=STORE if instance.has(Feature.STORES) else LOAD,
        waiters=instance.requests if loads else 0,
    )
    keep(f"fault{index}", lost=instance.has(Feature.LOST))
    for block in range(instance.blocks):
        keep(f"copy{index}_{block}", carried=True, working=True, prefix=prefixes if loads else 0)
        keep(
            f"carried{index}_{block}",
            by_transfer=True,
            in_quarantine=instance.has(Feature.QUARANTINE),
        )
