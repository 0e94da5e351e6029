"""Counts are holds, also in bulk."""

import numpy as np
import pytest
from kvproof.runtime.holds import BlockLedger, StepHold


def ledger(blocks: int = 12) -> BlockLedger:
    return BlockLedger(blocks, compares_tokens=False)


def array(*blocks: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(blocks, dtype=np.int32)


def test_two_holds_that_end_together_are_both_counted_on_the_blocks_they_share() -> None:
    """`counts[ids] -= 1` drops one of them: shown first, so that the test can fail."""
    blocks = ledger()
    shared = blocks.take_fresh(2)
    blocks.acquire(shared)
    own = blocks.take_fresh(1)
    holds = [array(*shared), array(*shared, *own)]

    naive = blocks.counts.copy()
    naive[np.concatenate(holds)] -= 1
    assert naive[shared].tolist() == [1, 1], "the naive bulk decrement loses counts"

    blocks.release_many(holds)
    assert blocks.counts.tolist() == [0] * 12
    assert blocks.pool.free == 12


def test_steps_that_end_release_duplicates_once_for_each_hold() -> None:
    blocks = ledger()
    shared = blocks.take_fresh(3)
    blocks.acquire(shared)
    blocks.acquire(shared)
    for owner in ("a", "b", "c"):
        blocks.hand_over(StepHold(7, owner, array(*shared), 0.0))
    assert blocks.promised() == 3
    assert blocks.pool.free == 9
    blocks.end_step(6)
    assert blocks.pool.free == 9
    blocks.end_step(7)
    assert blocks.pool.free == 12


def test_what_another_hold_keeps_is_not_promised() -> None:
    blocks = ledger()
    shared = blocks.take_fresh(2)
    blocks.acquire(shared[:1])
    blocks.hand_over(StepHold(1, "a", array(*shared), 0.0))
    assert blocks.promised() == 1


def test_a_request_lets_go_of_its_tail_first() -> None:
    blocks = ledger(4)
    table = blocks.take_fresh(4)
    for number, block in enumerate(table):
        blocks.publish(block, bytes([number]), b"", b"")
    blocks.release(array(*table))
    assert list(blocks.pool.eviction_order()) == table[::-1]
    assert blocks.take_fresh(1) == [table[3]]
    assert [blocks.index.is_cached(block) for block in table] == [True, True, True, False]


@pytest.mark.parametrize("seed", range(5))
def test_holds_that_end_together_free_as_if_one_after_the_other(seed: int) -> None:
    """Same counts, same order of eviction."""
    random = np.random.default_rng(seed)
    together, apart = ledger(20), ledger(20)
    holds = []
    for _ in range(6):
        size = int(random.integers(1, 8))
        holds.append(random.choice(20, size=size, replace=False).astype(np.int32))
    every = np.unique(np.concatenate(holds))
    for side in (together, apart):
        taken = side.take_fresh(20)
        side.release(array(*[block for block in taken if block not in every]))
        for block in every.tolist():
            side.publish(block, b"key %d" % block, b"", b"")
        for hold in holds:
            side.acquire(hold.tolist())
        side.release(every.astype(np.int32))
    together.release_many(holds)
    for hold in holds:
        apart.release(hold)
    assert together.counts.tolist() == apart.counts.tolist() == [0] * 20
    assert list(together.pool.eviction_order()) == list(apart.pool.eviction_order())


def test_a_hit_that_nobody_held_leaves_the_free_pool() -> None:
    blocks = ledger(4)
    (block,) = blocks.take_fresh(1)
    blocks.publish(block, b"key", b"", b"")
    blocks.release(array(block))
    assert blocks.pool.free == 4
    blocks.acquire([block])
    assert blocks.pool.free == 3
    assert blocks.index.is_cached(block), "a hit stays a hit"


def test_a_block_in_quarantine_is_no_hit_and_cannot_become_one() -> None:
    blocks = ledger(4)
    table = blocks.take_fresh(2)
    blocks.publish(table[0], b"key", b"", b"")
    blocks.quarantine(array(*table))
    blocks.publish(table[1], b"other", b"", b"")
    assert len(blocks.index) == 0
    assert blocks.quarantined_blocks == 2
    blocks.quarantine(array(table[0]))
    blocks.end_quarantine(array(*table))
    assert blocks.quarantined_blocks == 1, "a second hold in quarantine still covers it"


def test_a_block_that_a_load_writes_is_not_published() -> None:
    blocks = ledger(4)
    (block,) = blocks.take_fresh(1)
    blocks.begin_writing([block])
    blocks.publish(block, b"key", b"", b"")
    assert not blocks.index.is_cached(block)
    blocks.end_writing([block])
    blocks.publish(block, b"key", b"", b"")
    assert blocks.index.is_cached(block)


def test_what_is_published_is_listed_for_the_stores_once() -> None:
    blocks = ledger(4)
    first, second = blocks.take_fresh(2)
    blocks.published = []
    blocks.publish(first, b"key", b"", b"")
    blocks.publish(first, b"key", b"", b"")
    blocks.publish(second, b"key", b"", b"")
    assert blocks.published == [(b"key", first)]
