"""A tiny instance with concrete numbers, driven by the real functions.

A few requests, blocks and transfers, every hold and ghost kept pair by pair: no symbol, no
abstraction, no count of others. It serves to find the shortest script of events that reaches a
broken state, to show that every row can be taken, and to hold the abstraction of the proofs
against reality: `project` says what the proofs' variables are worth here, whoever is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

from ...statemachine.states import (
    ACTIVE,
    LIVE,
    LOAD,
    PREEMPTED,
    RUNNING,
)
from .declaration import Declaration

#: A whole state: one tuple of facts a record, in the order of `Shape.names`.
State = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Size:
    """How large an instance is, and what is configured."""

    requests: int = 1
    blocks: int = 1
    transfers: int = 1
    block_size: int = 1
    model_length: int = 4
    steps_ahead: int = 1
    loads_limit: int = 1


class World:
    """A state that can be changed: records by name, such as `r0`, `b1`, `held0.1`, `copy1.0`.

    `held<i>.<b>` are the holds of request i on block b, `kept<j>.<b>` those of transfer j;
    `place` and `copy` are their ghosts.
    """

    def __init__(self, shape: Shape, state: State) -> None:
        self.shape = shape
        self._state = state
        self._records: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        record = self._records.get(name)
        if record is None:
            index = self.shape.index[name]
            record = self.shape.make(index, self._state[index])
            self._records[name] = record
        return record

    def state(self) -> State:
        """The state as it is now."""
        facts = list(self._state)
        for name, record in self._records.items():
            index = self.shape.index[name]
            facts[index] = self.shape.read(index, record)
        return tuple(facts)


class Shape:
    """Which records an instance has, and how they are packed."""

    def __init__(self, declaration: Declaration, size: Size) -> None:
        self.declaration = declaration
        self.size = size
        facts, blocks, joined = (
            declaration.modules[name] for name in ("facts", "blocks", "joined")
        )
        kinds: dict[str, type] = {"e": facts.EngineFacts}
        for block in range(size.blocks):
            kinds[f"b{block}"] = facts.BlockFacts
            kinds[f"more{block}"] = joined.MoreBlockFacts
        for request in range(size.requests):
            kinds[f"r{request}"] = facts.RequestFacts
            for block in range(size.blocks):
                kinds[f"held{request}.{block}"] = blocks.HeldFacts
                kinds[f"place{request}.{block}"] = joined.PlaceFacts
        for transfer in range(size.transfers):
            kinds[f"t{transfer}"] = facts.TransferFacts
            for block in range(size.blocks):
                kinds[f"kept{transfer}.{block}"] = blocks.HeldFacts
                kinds[f"copy{transfer}.{block}"] = joined.CopyFacts
        self.names = tuple(kinds)
        self.index = {name: number for number, name in enumerate(kinds)}
        self._fields = tuple(tuple(_kinds_of(kind)) for kind in kinds.values())
        self._makers = tuple(_maker(kind) for kind in kinds.values())
        self._getters = tuple(attrgetter(*fields) for fields in self._fields)
        self.ask = facts.Ask
        self.transfer_ask = facts.TransferAsk
        self.engine_ask = facts.EngineAsk
        self.pick = joined.PickFacts

    def make(self, index: int, facts: tuple[int, ...]) -> Any:
        """A record of the declaration's own class."""
        return self._makers[index](facts)

    def read(self, index: int, record: Any) -> tuple[int, ...]:
        """The facts of a record."""
        found: tuple[int, ...] = self._getters[index](record)
        return found

    def start(self) -> World:
        """Nothing is known, nothing held, the engine is ACTIVE."""
        blank = tuple(tuple(0 for _ in fields) for fields in self._fields)
        world = World(self, blank)
        engine, size = world["e"], self.size
        engine.mode = ACTIVE
        engine.weights_resident = engine.cache_resident = True
        engine.steps_ahead = size.steps_ahead
        engine.block_size = size.block_size
        engine.pool_blocks = size.blocks
        engine.model_length = size.model_length
        engine.loads_limit = size.loads_limit
        for request in range(size.requests):
            for block in range(size.blocks):
                world[f"place{request}.{block}"].position = -1
        for transfer in range(size.transfers):
            for block in range(size.blocks):
                world[f"copy{transfer}.{block}"].number = transfer + 1
        return world


@cache
def _maker(kind: type) -> Callable[[tuple[int, ...]], Any]:
    """Makes a record of its facts. A search makes millions: one assignment, no loop over names."""
    fields = "".join(f"record.{name}, " for name in _kinds_of(kind))
    scope: dict[str, Any] = {"new": object.__new__, "kind": kind}
    exec(f"def make(facts):\n record = new(kind)\n {fields}= facts\n return record", scope)
    maker: Callable[[tuple[int, ...]], Any] = scope["make"]
    return maker


def _kinds_of(kind: type) -> Mapping[str, str]:
    found: Mapping[str, str] = vars(kind)["KINDS"]
    return found


@dataclass(frozen=True)
class Eyes:
    """Whom the proofs look at: indices, None for nobody."""

    request: int
    request2: int | None
    transfer: int
    transfer2: int | None
    block: int


def everybody(size: Size) -> Iterator[Eyes]:
    """Every choice of who is looked at."""
    for block in range(size.blocks):
        for request in range(size.requests):
            seconds: Sequence[int | None] = [
                other for other in range(size.requests) if other != request
            ] or [None]
            for request2 in seconds:
                for transfer in range(size.transfers):
                    others: Sequence[int | None] = [
                        other for other in range(size.transfers) if other != transfer
                    ] or [None]
                    for transfer2 in others:
                        yield Eyes(request, request2, transfer, transfer2, block)


_BY_REQUEST = ("by_request", "by_step", "step")


def project(world: World, eyes: Eyes, name: str) -> int:
    """What a variable of the proofs is worth in a state, for those who are looked at."""
    record, _, field = name.partition(".")
    second = record.endswith("2")
    record = record.rstrip("2")
    request = eyes.request2 if second else eyes.request
    transfer = eyes.transfer2 if second else eyes.transfer
    found: int
    if record == "others":
        return _others(world, eyes, field)
    if record == "e":
        found = getattr(world["e"], field)
    elif record in ("b", "more"):
        found = getattr(world[f"{record}{eyes.block}"], field)
    elif record == "r" or record == "place" or (record == "held" and field in _BY_REQUEST):
        if request is None:
            return -1 if name == "place2.position" else 0
        found = getattr(
            world[f"r{request}" if record == "r" else f"{record}{request}.{eyes.block}"], field
        )
    elif name == f"copy{'2' if second else ''}.others_waiting":
        return _waiting(world, eyes, transfer)
    elif transfer is None:
        return 10**6 if name == "copy2.number" else 0
    elif record == "t":
        found = getattr(world[f"t{transfer}"], field)
    else:
        kept = "kept" if record == "held" else record
        found = getattr(world[f"{kept}{transfer}.{eyes.block}"], field)
    return found


def _waiting(world: World, eyes: Eyes, transfer: int | None) -> int:
    if transfer is None:
        return 0
    return sum(
        world[f"r{request}"].waits_for == transfer + 1
        for request in range(world.shape.size.requests)
        if request not in (eyes.request, eyes.request2)
    )


def _others(world: World, eyes: Eyes, field: str) -> int:
    size = world.shape.size
    requests = [each for each in range(size.requests) if each not in (eyes.request, eyes.request2)]
    transfers = [
        each for each in range(size.transfers) if each not in (eyes.transfer, eyes.transfer2)
    ]
    held = [world[f"held{each}.{eyes.block}"] for each in requests]
    kept = [(world[f"t{each}"], world[f"kept{each}.{eyes.block}"]) for each in transfers]
    count: Mapping[str, Callable[[], int]] = {
        "request": lambda: sum(each.by_request for each in held),
        "step": lambda: sum(each.by_step for each in held),
        "load": lambda: sum(each.by_transfer and t.kind == LOAD for t, each in kept),
        "store": lambda: sum(each.by_transfer and t.kind != LOAD for t, each in kept),
        "quarantined": lambda: sum(each.in_quarantine for _, each in kept),
        "running": lambda: sum(
            world[f"r{each}"].state in (RUNNING, PREEMPTED) for each in requests
        ),
        "live": lambda: sum(world[f"r{each}"].state in LIVE for each in requests),
    }
    return count[field]()
