"""What happens to one block, and how hold commands act on the pairs (hold, block).

The engine does the same in bulk over arrays; these functions are what its bulk versions are
tested against and what the proofs join the events with. `b` is the block's record.
"""

from __future__ import annotations

from typing import ClassVar

from .answers import HAND_OVER, QUARANTINE, RELEASE, TAKE, TRIM
from .facts import BlockFacts, Record
from .lanes import acquired, released


class HeldFacts(Record):
    """What the holds of one request, the step it was handed to, and one transfer say of a block.

    A hold covers a block at most once: each of these is a truth value, not a count.
    """

    KINDS: ClassVar[dict[str, str]] = {
        "by_request": "bool",  # the request's REQUEST hold covers it
        "by_step": "bool",  # a STEP hold that this request handed over covers it
        "step": "int",  # that hold's step
        "by_transfer": "bool",  # the transfer's own hold covers it
        "in_quarantine": "bool",  # that hold is in quarantine
    }
    __slots__ = tuple(KINDS)

    by_request: bool
    by_step: bool
    step: int
    by_transfer: bool
    in_quarantine: bool


def acquire(b: BlockFacts) -> None:
    """One hold more covers it."""
    b.count = acquired(b.count, 1)


def release(b: BlockFacts) -> None:
    """One hold less covers it."""
    b.count = released(b.count, 1)


def may_hand_out(b: BlockFacts) -> bool:
    """It is in the free pool: nobody holds it, nobody may still write to it."""
    return b.count == 0 and b.quarantined == 0


def hand_out(b: BlockFacts) -> None:
    """A free block is taken for new content: what was cached in it is gone."""
    b.cached = False
    b.hashed_as = 0
    b.content_of = 0
    b.count = acquired(b.count, 1)


def fill(b: BlockFacts, prefix: int) -> None:
    """Ghost: a processed step or a landed load has written all of it, for that prefix."""
    b.content_of = prefix


def may_hit(b: BlockFacts) -> bool:
    """Another request may share its content."""
    return b.cached and b.quarantined == 0


def publish(b: BlockFacts, prefix: int) -> None:
    """Its content is complete: it becomes a hit for that prefix. Already published: no change.

    A block that a load still writes, or that is in quarantine, is never published.
    """
    if not b.cached and not b.being_written and b.quarantined == 0:
        b.cached = True
        b.hashed_as = prefix


def may_drop(b: BlockFacts) -> bool:
    """A reset or an eviction may take its prefix away: a block with a hold keeps it."""
    return b.count == 0


def drop(b: BlockFacts) -> None:
    """Its prefix is no longer a hit."""
    if may_drop(b):
        b.cached = False
        b.hashed_as = 0


def quarantine(b: BlockFacts) -> None:
    """It leaves the pool and loses its hash; the hold stays. Two stores may cover it."""
    b.quarantined = acquired(b.quarantined, 1)
    b.cached = False
    b.hashed_as = 0


def end_quarantine(b: BlockFacts) -> None:
    """The confirmation came: one hold in quarantine less."""
    b.quarantined = released(b.quarantined, 1)


def request_command(
    commands: int,
    wanted: bool,
    fresh: bool,
    kept: bool,
    newest_step: int,
    h: HeldFacts,
    b: BlockFacts,
) -> None:
    """Carry out a request's hold commands on one block.

    `wanted`: the event's TAKE names this block; `fresh`: it comes out of the free pool for new
    content, rather than as a hit or as a block of a load that is joined. `kept`: it is among the
    first `covered` ones of the table. Each (hold, block) pair is taken once and released once.
    """
    if commands & TAKE and wanted and not h.by_request:
        h.by_request = True
        if fresh:
            hand_out(b)
        else:
            acquire(b)
    if commands & TRIM and h.by_request and not kept:
        h.by_request = False
        release(b)
    if commands & RELEASE and h.by_request:
        h.by_request = False
        release(b)
    if commands & HAND_OVER and h.by_request:
        h.by_request = False
        h.by_step = True
        h.step = newest_step


def step_processed(step: int, h: HeldFacts, b: BlockFacts) -> None:
    """The results of a step are processed: its STEP holds end."""
    if h.by_step and h.step == step:
        h.by_step = False
        h.step = 0
        release(b)


def transfer_command(
    commands: int, wanted: bool, writes: bool, h: HeldFacts, b: BlockFacts
) -> None:
    """Carry out a transfer's hold commands on one block. `writes`: it is a load."""
    if commands & TAKE and wanted and not h.by_transfer:
        h.by_transfer = True
        if writes:
            b.being_written = True
        acquire(b)
    if commands & RELEASE and h.by_transfer:
        h.by_transfer = False
        if writes:
            b.being_written = False
        if h.in_quarantine:
            h.in_quarantine = False
            end_quarantine(b)
        release(b)
    if commands & QUARANTINE and h.by_transfer and not h.in_quarantine:
        h.in_quarantine = True
        quarantine(b)
