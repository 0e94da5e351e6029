"""What the host tier keeps and what it gives up first."""

from __future__ import annotations

import random

import pytest
from kvproof.runtime.transfers.index import TierIndex

from .memory_kv import keys


def filled(slots: int, *names: str) -> TierIndex:
    index = TierIndex(slots)
    wanted = keys(*names)
    index.install(wanted, index.reserve(len(wanted)), index.generation)
    return index


def test_only_leading_keys_count() -> None:
    index = filled(4, "a", "b", "d")
    assert index.leading(keys("a", "b", "c", "d")) == 2
    assert index.leading(keys("c", "a")) == 0


def test_the_least_recently_used_entry_goes_first() -> None:
    index = filled(3, "a", "b", "c")
    index.touch(keys("a"))
    index.touch(keys("b"))
    assert len(index.reserve(1)) == 1
    assert b"c" not in index
    assert b"a" in index


def test_a_chain_loses_its_tail_before_its_head() -> None:
    index = filled(4, "head", "middle", "tail")
    index.give_back(index.reserve(2))
    assert index.leading(keys("head", "middle", "tail")) == 2


def test_an_entry_that_is_read_is_not_evicted() -> None:
    index = filled(2, "a", "b")
    pinned = index.pin(keys("a"))
    assert len(index.reserve(2)) == 1
    assert b"a" in index
    assert b"b" not in index
    index.unpin(pinned)
    assert len(index.reserve(1)) == 1
    assert b"a" not in index


def test_with_everything_in_use_nothing_can_be_reserved() -> None:
    index = filled(2, "a", "b")
    index.pin(keys("a", "b"))
    assert index.reserve(1) == []


def test_the_slot_of_a_dropped_entry_is_free_only_after_its_last_reader() -> None:
    index = filled(1, "a")
    first, second = index.pin(keys("a")), index.pin(keys("a"))
    index.clear()
    assert index.free == 0
    index.unpin(first)
    assert index.free == 0
    index.unpin(second)
    assert index.free == 1


def test_a_store_that_began_before_a_clear_installs_nothing() -> None:
    index = TierIndex(2)
    generation, slots = index.generation, index.reserve(1)
    index.clear()
    assert index.install(keys("a"), slots, generation) == 0
    assert b"a" not in index
    assert index.free == 2


def test_slots_of_one_reservation_are_adjacent_while_the_tier_is_unfragmented() -> None:
    index = TierIndex(8)
    assert index.reserve(3) == [0, 1, 2]
    assert index.reserve(2) == [3, 4]
    index.install(keys("a", "b", "c"), [0, 1, 2], index.generation)
    index.install(keys("d", "e"), [3, 4], index.generation)
    assert index.reserve(5) != []
    # a, b, c were evicted together and are adjacent again.
    assert index.free == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_slot_is_lost_or_used_twice(seed: int) -> None:
    rng = random.Random(seed)
    index = TierIndex(6)
    names = keys(*"abcdefghij")
    pinned: list[list] = []
    reserved: list[tuple[list[bytes], list[int], int]] = []
    for _ in range(400):
        match rng.randrange(6):
            case 0:
                pinned.append(index.pin(rng.sample(names, 3)))
            case 1 if pinned:
                index.unpin(pinned.pop(rng.randrange(len(pinned))))
            case 2:
                wanted = rng.sample(names, 2)
                slots = index.reserve(2)
                reserved.append((wanted[: len(slots)], slots, index.generation))
            case 3 if reserved:
                index.install(*reserved.pop(rng.randrange(len(reserved))))
            case 4 if reserved:
                index.give_back(reserved.pop()[1])
            case 5 if rng.random() < 0.1:
                index.clear()
        index.check()
        dropped = {e.slot for entries in pinned for e in entries if not e.kept}
        in_reserve = sum(len(slots) for _, slots, _ in reserved)
        assert len(index) + index.free + len(dropped) + in_reserve == index.slots
