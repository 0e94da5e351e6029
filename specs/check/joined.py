"""What an event does to one block: hold commands joined with the declared block functions.

These functions add nothing to the declaration. They pass an event's commands on to `blocks`, as
the engine does in bulk, and keep the *ghosts*: what the environment really does, whether or not
a record or a hold says so. Proofs execute them on symbols, the search for scripts on numbers;
both carry out the parts in the order in which `REQUEST_PARTS` and `TRANSFER_PARTS` name them.
"""

from __future__ import annotations

from typing import ClassVar

from ...statemachine.answers import MAKE_HITS
from ...statemachine.blocks import (
    HeldFacts,
    publish,
    request_command,
    transfer_command,
)
from ...statemachine.facts import (
    Ask,
    BlockFacts,
    EngineFacts,
    Record,
    RequestFacts,
    TransferFacts,
)
from ...statemachine.states import (
    BEGIN,
    LAND,
    LAUNCH,
    LOAD,
    PUBLISH,
    START,
    STORE,
    TRANSFER_FAILED,
    TRANSFER_LANDED,
)

#: The position of a block in a table that it is not in.
NOT_IN_TABLE = -1


class PlaceFacts(Record):
    """Ghosts of one request and the block: what the device really does for this request."""

    KINDS: ClassVar[dict[str, str]] = {
        "position": "int",  # where the block is in the request's table; NOT_IN_TABLE
        "prefix": "int",  # the request's prefix that ends with this position
        "touching": "int",  # newest step launched while the block was in the table
        "written": "int",  # tokens of the request whose KV is really in its table
        "epoch": "int",  # of the weights, when its hold began
        "loading": "bool",  # the load that it waits for brings the block
    }
    __slots__ = tuple(KINDS)

    position: int
    prefix: int
    touching: int
    written: int
    epoch: int
    loading: bool


class CopyFacts(Record):
    """Ghosts of one transfer and the block: what its worker really does."""

    KINDS: ClassVar[dict[str, str]] = {
        "carried": "bool",  # the block is one of those that the transfer copies
        "working": "bool",  # a worker may touch the block now
        "prefix": "int",  # the prefix that a load copies into it
        "number": "int",  # the transfer's number; never changes
        "others_waiting": "int",  # requests that wait for it, beside those that are looked at
    }
    __slots__ = tuple(KINDS)

    carried: bool
    working: bool
    prefix: int
    number: int
    others_waiting: int


class PickFacts(Record):
    """Whether, where and as what an event takes the block."""

    KINDS: ClassVar[dict[str, str]] = {
        "named": "bool",  # the event's TAKE names it
        "fresh": "bool",  # from the free pool, rather than as a hit or a block of a joined load
        "position": "int",  # where it comes in the request's table
        "prefix": "int",  # the prefix that it is, or will be, of
        "indexed": "bool",  # publish: no other block is the hit for its prefix
        "loaded": "bool",  # the load that the request waits for from now on brings it
        "valid": "bool",  # a load that ended otherwise than landed: this block is complete
    }
    __slots__ = tuple(KINDS)

    named: bool
    fresh: bool
    position: int
    prefix: int
    indexed: bool
    loaded: bool
    valid: bool


class MoreBlockFacts(Record):
    """Ghosts of the block, and of one entry of a tier below the device."""

    KINDS: ClassVar[dict[str, str]] = {
        "epoch": "int",  # of the weights, in the key under which the block was published last
        "tier_epoch": "int",  # the epoch in the key of a tier's entry
        "tier_present": "bool",  # that entry exists
    }
    __slots__ = tuple(KINDS)

    epoch: int
    tier_epoch: int
    tier_present: bool


# --- a request's event has gone: `r` is its record afterwards, `covered` was its hold before ------


def begin(
    event: int, commands: int, covered: int, r: RequestFacts, e: EngineFacts, x: Ask,
    pick: PickFacts, place: PlaceFacts, held: HeldFacts, b: BlockFacts, more: MoreBlockFacts,
) -> None:  # fmt: skip
    """A new hold: of its tokens only those of the prefix hits are in its table."""
    if covered == 0 and r.covered > 0:
        place.written = x.hits * e.block_size
        place.epoch = e.epoch


def enter(
    event: int, commands: int, covered: int, r: RequestFacts, e: EngineFacts, x: Ask,
    pick: PickFacts, place: PlaceFacts, held: HeldFacts, b: BlockFacts, more: MoreBlockFacts,
) -> None:  # fmt: skip
    """The block comes into the request's table, whatever becomes of the hold."""
    if pick.named and place.position < 0:
        place.position = pick.position
        place.prefix = pick.prefix
        place.loading = pick.loaded


def leave(
    event: int, commands: int, covered: int, r: RequestFacts, e: EngineFacts, x: Ask,
    pick: PickFacts, place: PlaceFacts, held: HeldFacts, b: BlockFacts, more: MoreBlockFacts,
) -> None:  # fmt: skip
    """The table is as long as the record says: what is behind its end is no longer in it."""
    if place.position >= r.covered:
        place.position = NOT_IN_TABLE
        place.loading = False
    if event == TRANSFER_LANDED or event == TRANSFER_FAILED:  # noqa: SIM109 - no `in` on symbols
        place.loading = False
    if r.covered == 0:
        place.written = 0


def obey(
    event: int, commands: int, covered: int, r: RequestFacts, e: EngineFacts, x: Ask,
    pick: PickFacts, place: PlaceFacts, held: HeldFacts, b: BlockFacts, more: MoreBlockFacts,
) -> None:  # fmt: skip
    """The hold commands, by the declared function."""
    kept = place.position >= 0
    request_command(commands, pick.named, pick.fresh, kept, r.newest_step, held, b)


def touch(
    event: int, commands: int, covered: int, r: RequestFacts, e: EngineFacts, x: Ask,
    pick: PickFacts, place: PlaceFacts, held: HeldFacts, b: BlockFacts, more: MoreBlockFacts,
) -> None:  # fmt: skip
    """A launched step touches the whole table, and overwrites where its tokens go."""
    if event == LAUNCH and place.position >= 0:
        place.touching = x.step
        if (
            place.position * e.block_size < r.computed
            and (place.position + 1) * e.block_size > r.computed - x.tokens
        ):
            b.content_of = 0


def write(
    event: int, commands: int, covered: int, r: RequestFacts, e: EngineFacts, x: Ask,
    pick: PickFacts, place: PlaceFacts, held: HeldFacts, b: BlockFacts, more: MoreBlockFacts,
) -> None:  # fmt: skip
    """What is really there, by the step that is processed or the load that has ended."""
    if event == PUBLISH:
        place.written = place.written + x.tokens
        if place.position >= 0 and (place.position + 1) * e.block_size <= place.written:
            b.content_of = place.prefix
    if event == TRANSFER_LANDED:
        place.written = x.tokens
    if event == TRANSFER_FAILED and r.covered > 0:
        place.written = x.blocks * e.block_size


def index(
    event: int, commands: int, covered: int, r: RequestFacts, e: EngineFacts, x: Ask,
    pick: PickFacts, place: PlaceFacts, held: HeldFacts, b: BlockFacts, more: MoreBlockFacts,
) -> None:  # fmt: skip
    """Its leading blocks become hits, under keys that carry the epoch of the weights."""
    if commands & MAKE_HITS and pick.indexed and place.position >= 0 and place.position < r.hashed:
        if not b.cached:
            more.epoch = e.epoch
        publish(b, place.prefix)


REQUEST_PARTS = (begin, enter, leave, obey, touch, write, index)

# --- a transfer's event has gone: `t` is its record afterwards -----------------------------------


def carry(
    event: int, commands: int, t: TransferFacts, e: EngineFacts,
    pick: PickFacts, copy: CopyFacts, held: HeldFacts, b: BlockFacts, more: MoreBlockFacts,
) -> None:  # fmt: skip
    """What the worker does: it begins with the transfer, and a complete copy has its prefix."""
    if event == START:
        copy.carried = pick.named
        copy.prefix = pick.prefix
    if event == BEGIN:
        copy.working = copy.carried
    if copy.carried and t.kind == LOAD and (event == LAND or pick.valid):
        b.content_of = copy.prefix
    if event == LAND and copy.carried and t.kind == STORE:
        more.tier_present = True
        more.tier_epoch = e.epoch


def obey_transfer(
    event: int, commands: int, t: TransferFacts, e: EngineFacts,
    pick: PickFacts, copy: CopyFacts, held: HeldFacts, b: BlockFacts, more: MoreBlockFacts,
) -> None:  # fmt: skip
    """The hold commands, by the declared function."""
    transfer_command(commands, pick.named, t.kind == LOAD, held, b)


TRANSFER_PARTS = (carry, obey_transfer)
