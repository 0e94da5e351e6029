"""Random records for the tests: small numbers, so that equalities and limits really occur."""

import random
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from kvproof.statemachine import (
    ENGINE,
    REQUEST,
    TRANSFER,
    Ask,
    EngineAsk,
    EngineFacts,
    Machine,
    RequestFacts,
    TransferAsk,
    TransferFacts,
)
from kvproof.statemachine.facts import Record

R = TypeVar("R", bound=Record)

MACHINES = (REQUEST, TRANSFER, ENGINE)
NAMES = [machine.table.name for machine in MACHINES]
RECORDS: dict[str, tuple[type[Record], ...]] = {
    "request": (RequestFacts, EngineFacts, Ask),
    "transfer": (TransferFacts, EngineFacts, TransferAsk),
    "engine": (EngineFacts, EngineAsk),
}
#: Facts whose values are not small counts.
SPECIAL: dict[str, Sequence[int]] = {
    "mode": (1, 1, 1, 1, 2, 3, 4, 5, 6, 7),
    "weights_resident": (True, True, True, False),
    "cache_resident": (True, True, True, False),
    "pending_reset": (True, False, False, False),
    "kind": range(5),
    "pausing": range(5),
    "reason": range(6, 13),
    "hits": (0, 0, 0, 1, 2),
    "free": range(7),
    "remote_tokens": range(12),
    "block_size": range(1, 4),
    "pool_blocks": range(3, 9),
    "model_length": range(4, 20),
}


def random_record(kind: type[R], chance: random.Random, **known: int) -> R:
    """A record of small random facts; `known` ones are set."""
    facts: dict[str, Any] = {}
    for name, of in kind.KINDS.items():
        usual = (False, True) if of == "bool" else (0, 0, 1, 1, 2, 3, 4)
        facts[name] = chance.choice(SPECIAL.get(name, usual))
    return kind(**{**facts, **known})


def cells(machine: Machine) -> Iterator[tuple[int, int]]:
    """Every (state, event) of a machine."""
    for state in machine.table.states:
        for event in machine.table.events:
            yield int(state), int(event)


def random_records(machine: Machine, state: int, chance: random.Random) -> list[Record]:
    """What an event of this machine is called with: the subject in `state` first."""
    subject, *others = RECORDS[machine.table.name]
    known = {machine.table.state_field: state}
    return [random_record(subject, chance, **known), *(random_record(k, chance) for k in others)]
