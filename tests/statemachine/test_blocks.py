"""A block's count is the number of holds that cover it: each pair is taken and released once."""

import random

import pytest
from kvproof.statemachine import BlockFacts
from kvproof.statemachine.answers import (
    HAND_OVER,
    QUARANTINE,
    RELEASE,
    TAKE,
    TRIM,
)
from kvproof.statemachine.blocks import (
    HeldFacts,
    acquire,
    drop,
    end_quarantine,
    fill,
    hand_out,
    may_drop,
    may_hand_out,
    may_hit,
    publish,
    quarantine,
    release,
    request_command,
    step_processed,
    transfer_command,
)


def take(h: HeldFacts, b: BlockFacts, fresh: bool = True) -> None:
    request_command(TAKE, True, fresh, True, 0, h, b)


def holds_in(*held: HeldFacts) -> int:
    return sum(h.by_request + h.by_step + h.by_transfer for h in held)


def test_a_block_that_is_handed_out_has_one_hold_and_no_content() -> None:
    b = BlockFacts(cached=True, content_of=7, hashed_as=7)
    hand_out(b)
    assert b == BlockFacts(count=1)


def test_only_a_block_without_hold_and_quarantine_is_handed_out() -> None:
    assert may_hand_out(BlockFacts())
    assert may_hand_out(BlockFacts(cached=True))
    assert not may_hand_out(BlockFacts(count=1))
    assert not may_hand_out(BlockFacts(quarantined=1))


def test_a_published_block_is_hashed_as_its_content() -> None:
    b = BlockFacts(count=1)
    fill(b, 9)
    publish(b, 9)
    assert (b.cached, b.hashed_as) == (True, b.content_of)
    assert may_hit(b)


def test_what_is_published_is_not_published_again_under_another_hash() -> None:
    b = BlockFacts(count=1, cached=True, content_of=3, hashed_as=3)
    before = b.copy()
    publish(b, 4)
    assert b == before


@pytest.mark.parametrize("why", ["being_written", "quarantined"])
def test_what_may_still_be_written_is_never_published(why: str) -> None:
    b = BlockFacts(count=1, content_of=3, **{why: 1})
    before = b.copy()
    publish(b, 3)
    assert b == before


def test_a_block_with_a_hold_keeps_its_prefix() -> None:
    held = BlockFacts(count=1, cached=True, hashed_as=3, content_of=3)
    before = held.copy()
    drop(held)
    assert held == before
    free = BlockFacts(cached=True, hashed_as=3, content_of=3)
    assert may_drop(free)
    drop(free)
    assert not may_hit(free)


def test_a_hit_keeps_the_content_and_adds_a_hold() -> None:
    b, h = BlockFacts(cached=True, hashed_as=3, content_of=3), HeldFacts()
    take(h, b, fresh=False)
    assert (b.count, b.cached, b.content_of) == (1, True, 3)


def test_a_hold_takes_a_block_once_however_often_it_is_told() -> None:
    b, h = BlockFacts(), HeldFacts()
    for _ in range(3):
        take(h, b)
    assert b.count == holds_in(h) == 1


def test_a_hold_releases_a_block_once_however_often_it_is_told() -> None:
    b, h, other = BlockFacts(), HeldFacts(), HeldFacts()
    take(h, b)
    take(other, b, fresh=False)
    for _ in range(3):
        request_command(RELEASE, False, False, False, 0, h, b)
    assert b.count == holds_in(h, other) == 1


def test_a_hand_over_leaves_the_count_and_the_steps_end_lowers_it() -> None:
    b, h = BlockFacts(), HeldFacts()
    take(h, b)
    request_command(HAND_OVER, False, False, False, 5, h, b)
    assert (b.count, h.by_request, h.by_step, h.step) == (1, False, True, 5)
    step_processed(4, h, b)
    assert b.count == 1
    step_processed(5, h, b)
    step_processed(5, h, b)
    assert (b.count, h) == (0, HeldFacts())


def test_a_trim_releases_what_is_behind_the_kept_blocks_only() -> None:
    kept, cut = BlockFacts(), BlockFacts()
    of_kept, of_cut = HeldFacts(), HeldFacts()
    for h, b in ((of_kept, kept), (of_cut, cut)):
        take(h, b)
        request_command(TRIM, False, False, b is kept, 0, h, b)
    assert (kept.count, cut.count) == (1, 0)


def test_a_load_marks_its_block_as_being_written_until_it_ends() -> None:
    b, h = BlockFacts(count=1), HeldFacts()
    transfer_command(TAKE, True, True, h, b)
    assert (b.count, b.being_written) == (2, True)
    transfer_command(RELEASE, False, True, h, b)
    assert (b.count, b.being_written) == (1, False)


def test_a_store_reads_only() -> None:
    b, h = BlockFacts(count=1, cached=True), HeldFacts()
    transfer_command(TAKE, True, False, h, b)
    assert (b.count, b.being_written, b.cached) == (2, False, True)


def test_a_block_in_quarantine_keeps_its_hold_and_is_neither_hit_nor_handed_out() -> None:
    b, h = BlockFacts(cached=True, hashed_as=4), HeldFacts()
    transfer_command(TAKE, True, False, h, b)
    for _ in range(2):
        transfer_command(QUARANTINE, False, False, h, b)
    assert (b.count, b.quarantined, b.cached, b.hashed_as) == (1, 1, False, 0)
    assert not may_hit(b)
    assert not may_hand_out(b)
    transfer_command(RELEASE, False, False, h, b)
    assert may_hand_out(b)


def test_two_stores_in_quarantine_are_confirmed_one_by_one() -> None:
    b, one, two = BlockFacts(), HeldFacts(), HeldFacts()
    for h in (one, two):
        transfer_command(TAKE, True, False, h, b)
        transfer_command(QUARANTINE, False, False, h, b)
    transfer_command(RELEASE, False, False, one, b)
    assert (b.quarantined, may_hand_out(b)) == (1, False)
    transfer_command(RELEASE, False, False, two, b)
    assert (b.quarantined, may_hand_out(b)) == (0, True)
    quarantine(b)
    end_quarantine(b)
    assert b.quarantined == 0


class Walk:
    """Random commands of three requests and three transfers on one block."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.block = BlockFacts()
        self.requests = [HeldFacts() for _ in range(3)]
        self.transfers = [HeldFacts() for _ in range(3)]
        self.writes = [True, False, False]

    def move(self) -> None:
        chance = self.chance
        number = chance.randrange(3)
        if chance.random() < 0.5:
            commands = chance.choice((TAKE, RELEASE, TRIM, HAND_OVER, 0))
            h = self.requests[number]
            if commands == TAKE and h.by_step:
                step_processed(h.step, h, self.block)  # admitted only after its step
            fresh = may_hand_out(self.block)
            kept = chance.random() < 0.5
            request_command(commands, True, fresh, kept, chance.randrange(1, 4), h, self.block)
        elif chance.random() < 0.5:
            step = chance.randrange(1, 4)
            for h in self.requests:
                step_processed(step, h, self.block)
        else:
            commands = chance.choice((TAKE, RELEASE, QUARANTINE))
            h = self.transfers[number]
            transfer_command(commands, True, self.writes[number], h, self.block)

    def wrong(self) -> list[str]:
        held = (*self.requests, *self.transfers)
        b = self.block
        truths = {
            "the count is the number of holds": b.count == holds_in(*held),
            "quarantined is the number of holds in quarantine": b.quarantined
            == sum(h.in_quarantine for h in held),
            "written means that a load holds it": b.being_written == self.transfers[0].by_transfer,
            "in the pool means that nobody holds it": not may_hand_out(b) or holds_in(*held) == 0,
        }
        return [truth for truth, holds in truths.items() if not holds]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_commanded_the_count_is_the_number_of_holds(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(300):
        walk.move()
        assert walk.wrong() == []


def test_a_release_that_forgets_who_held_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    walk = Walk(1)
    acquire(walk.block)
    assert walk.wrong() == ["the count is the number of holds", *walk.wrong()[1:]]
    release(walk.block)
    assert walk.wrong() == []
