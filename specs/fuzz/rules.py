"""The rules in words, and those that can be told from one snapshot alone: blocks and contents.

A broken rule is a `Violation`: the rule's name, whom it is about, a sentence, and an expression
over the engine's snapshot that must hold and does not, which becomes the assertion of the
generated test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from .target import Promise, Snapshot

#: Every rule, in words: what the report and the generated tests say of a broken one.
RULES = {
    "no-exception": "No internal exception escapes from a legal call.",
    "counts-are-holders": "A block's reference count is the number of holds that cover it.",
    "free-or-held": "Each block is either free or held, never both, never neither.",
    "touched-is-held": "What may still touch a block has a hold on it.",
    "one-container": "A live request is in exactly the container that its state says.",
    "not-forgotten": "The engine knows every request that its client has not seen ended.",
    "counters": "A counter equals what it counts.",
    "covered": "Computed tokens are covered by the blocks that the request holds.",
    "delivered": "Delivered tokens are never lost, doubled, reordered or wrong.",
    "own-tokens": "A request's tokens are its client's prompt, chunks and delivered answers.",
    "attended": "What a delivered token attended to is its own prefix's KV.",
    "within-length": "No request goes beyond the model's length.",
    "hash-is-content": "A cached block holds what its hash stands for.",
    "hash-is-content-tier": "A block that can be hit in a tier holds what its hash stands for.",
    "written-before-cached": "A block can be a hit only once it is written.",
    "refused-changes-nothing": "A call that is refused changes nothing.",
    "refused-reset-changes-nothing": "A reset that is refused leaves everything as it was.",
    "refused-reset-names-holders": "A refused reset names who holds blocks, and nobody else.",
    "forced-reset-waits-for-transfers": "A forced reset is refused only while a transfer is open.",
    "reset-clears-device": "After a reset no earlier block of the device can be a hit.",
    "reset-clears-tiers": "After a reset no earlier block of the tiers that it names can be a hit.",
    "late-signals-ignored": "Late, duplicate and unknown signals change nothing.",
    "failed-call-changes-nothing": "A pause, sleep or wake that fails leaves the mode as it was.",
    "asleep-means-idle": "Memory is given back only when nothing holds it, and no step runs then.",
    "idle-holds-nothing": "When nothing is live and nothing in flight, nothing is held.",
    "progress": "When all transfers ended, a request that fits in an empty pool goes on.",
    "parked-give-way": "A session that waits for its client does not keep others from running.",
    "transfers-end": "A transfer whose completion is lost ends by its lease.",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule."""

    rule: str
    subject: str  # a request, block, transfer, counter or call
    message: str
    assertion: str  # over `now`, the snapshot; what should be true
    detail: str = ""  # tells findings of one rule apart


def of_blocks(now: Snapshot) -> Iterator[Violation]:
    """Counts, the free list, and what may still touch a block."""
    holders = Counter(block for hold in now.holds for block in hold.blocks)
    for block in now.blocks:
        b, held = block.id, holders[block.id]
        if block.count != held:
            yield Violation(
                "counts-are-holders",
                str(b),
                f"block {b} is counted {block.count} times, and held {held} times "
                f"by {now.holders(b) or 'nobody'}",
                f"now.block({b}).count == len(now.holders({b}))",
                "too few" if block.count < held else "too many",
            )
        elif block.free != (block.count == 0):
            yield Violation(
                "free-or-held",
                str(b),
                f"block {b} is counted {block.count} times and is "
                f"{'' if block.free else 'not '}in the free list",
                f"now.block({b}).free == (now.block({b}).count == 0)",
            )
    for hold in now.holds:
        if len(set(hold.blocks)) != len(hold.blocks):
            yield Violation(
                "counts-are-holders",
                hold.owner,
                f"{hold.owner} holds a block twice: {hold.blocks}",
                f"len(set({hold.blocks!r})) == len({hold.blocks!r})",
                "twice in one hold",
            )
    free = {block.id for block in now.blocks if block.free or block.count == 0}
    for who, b in now.touched:
        if b in free:
            kind = who.partition("/")[0]
            yield Violation(
                "touched-is-held",
                who,
                f"{who} may still touch block {b}, which nobody holds",
                f"now.block({b}).count > 0",
                kind,
            )


def of_contents(now: Snapshot, promises: frozenset[Promise]) -> Iterator[Violation]:
    """What blocks and tiers hold, beside what they stand for."""
    for misread in now.misreads:
        beyond, asleep = "length" in misread.why, "given back" in misread.why
        yield Violation(
            "within-length" if beyond else "asleep-means-idle" if asleep else "attended",
            misread.request,
            f"{misread.request} was given a token computed from position {misread.position}, "
            f"block {misread.block}: {misread.why}",
            "now.misreads == ()",
            "" if beyond or asleep else _kind_of_misread(misread.why),
        )
    for block in now.blocks:
        if block.cached_as is None:
            continue
        if block.being_written:
            if Promise.CACHED_BLOCKS_ARE_WRITTEN in promises:
                yield Violation(
                    "written-before-cached",
                    str(block.id),
                    f"block {block.id} can be a hit, and is still being written",
                    f"now.block({block.id}).cached_as is None",
                )
        elif block.content != block.cached_as:
            yield Violation(
                "hash-is-content",
                str(block.id),
                f"block {block.id} is cached as {block.cached_as} and holds {block.content} "
                f"(prefix ids)",
                f"now.block({block.id}).content == now.block({block.id}).cached_as",
                "garbage" if 0 in block.content else "another prefix",
            )
    for entry in now.tiers:
        if entry.content != entry.cached_as:
            yield Violation(
                "hash-is-content-tier",
                entry.tier,
                f"the {entry.tier} tier serves {entry.content} as {entry.cached_as} (prefix ids)",
                "all(entry.content == entry.cached_as for entry in now.tiers)",
                "garbage" if 0 in entry.content else "another prefix",
            )


def _kind_of_misread(why: str) -> str:
    return "own or another's KV" if "holds the KV" in why else why


def of_modes(now: Snapshot) -> Iterator[Violation]:
    """What must not be while the engine sleeps."""
    if "cache" in now.asleep and now.holds:
        hold = now.holds[0]
        yield Violation(
            "asleep-means-idle",
            hold.owner,
            f"the cache's memory is given back, and {hold.owner} holds {hold.blocks}",
            "not (now.asleep and now.holds)",
            "held",
        )


def of_counters(now: Snapshot) -> Iterator[Violation]:
    """The engine's own counters."""
    for counter, says, should in now.counters:
        if says != should:
            yield Violation(
                "counters",
                counter,
                f"{counter} says {says}, it should be {should}",
                f"({counter!r}, {should}, {should}) in now.counters",
                counter.partition(" of ")[0],
            )
