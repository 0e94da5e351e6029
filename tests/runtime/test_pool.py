"""The free list: what is handed out first, and in which runs."""

import numpy as np
import pytest
from kvproof.runtime.pool import BlockPool


def test_fresh_blocks_are_handed_out_in_adjacent_runs() -> None:
    pool = BlockPool(16)
    assert pool.take(5) == ([0, 1, 2, 3, 4], 0)
    assert pool.take(3) == ([5, 6, 7], 0)
    assert pool.free == 8


def test_a_table_grows_into_the_block_behind_its_last_one() -> None:
    pool = BlockPool(16)
    pool.take(8)
    pool.put_uncached([1, 5, 6])
    assert pool.take(1, after=4) == ([5], 0)
    assert pool.take(1, after=15)[0] == [1], "there is nothing behind the last block"


def test_several_blocks_follow_the_last_one_if_a_run_is_free_there() -> None:
    pool = BlockPool(16)
    pool.take(16)
    pool.put_uncached([0, 1, 2, 9, 10, 11])
    assert pool.take(3, after=8) == ([9, 10, 11], 0)
    assert pool.take(3, after=8) == ([0, 1, 2], 0)


def test_a_fragmented_pool_gives_what_it_has() -> None:
    pool = BlockPool(64)
    pool.take(64)
    pool.put_uncached(range(0, 64, 2))
    blocks, evicted = pool.take(10)
    assert blocks == list(range(0, 20, 2))
    assert evicted == 0
    assert pool.free == 22


def test_cached_blocks_are_evicted_last_and_in_the_order_in_which_they_were_let_go() -> None:
    pool = BlockPool(8)
    pool.take(8)
    pool.put_cached([7, 2, 5])
    pool.put_uncached([0])
    assert list(pool.eviction_order()) == [7, 2, 5]
    assert pool.take(3) == ([0, 7, 2], 2)
    assert pool.free == 1


def test_a_hit_leaves_the_free_list() -> None:
    pool = BlockPool(4)
    pool.take(4)
    pool.put_cached([3, 1])
    pool.remove([3])
    assert not pool.is_free(3)
    assert pool.free == 1
    with pytest.raises(KeyError):
        pool.remove([2])


def test_dropping_what_is_cached_frees_it_for_runs() -> None:
    pool = BlockPool(6)
    pool.take(6)
    pool.put_cached([2, 1, 0])
    assert pool.drop_cached().tolist() == [2, 1, 0]
    assert pool.uncached_free == 3
    assert pool.take(3) == ([0, 1, 2], 0)


def test_no_sequence_of_calls_loses_or_doubles_a_block() -> None:
    random = np.random.default_rng(5)
    pool = BlockPool(40)
    held: set[int] = set()
    for _ in range(2000):
        wanted = int(random.integers(0, pool.free + 1))
        blocks, _ = pool.take(wanted, int(random.integers(-1, 40)))
        assert len(set(blocks)) == wanted
        assert not held & set(blocks)
        held |= set(blocks)
        back = [block for block in held if random.random() < 0.5]
        held -= set(back)
        half = len(back) // 2
        pool.put_cached(back[:half])
        pool.put_uncached(back[half:])
        assert pool.free == 40 - len(held)
