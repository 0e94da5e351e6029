"""The order of eviction, against a plain list."""

import random

import numpy as np
import pytest
from kvproof.runtime.eviction import EvictionOrder


def test_what_was_let_go_first_is_evicted_first() -> None:
    order = EvictionOrder(8)
    order.append([5, 2])
    order.append(np.array([7], dtype=np.int32))
    assert order.pop(2) == [5, 2]
    assert list(order) == [7]


def test_a_hit_leaves_from_the_middle_and_comes_back_as_the_last() -> None:
    order = EvictionOrder(8)
    order.append([1, 2, 3])
    order.remove([2])
    assert 2 not in order
    order.append([2])
    assert order.pop(3) == [1, 3, 2]


def test_what_is_not_there_can_neither_be_hit_nor_evicted() -> None:
    order = EvictionOrder(8)
    order.append([1, 2, 3])
    with pytest.raises(KeyError):
        order.remove([3, 4])
    with pytest.raises(IndexError):
        order.pop(4)
    assert list(order) == [1, 2, 3], "a refusal changes nothing"


@pytest.mark.parametrize("blocks", [1, 5, 700])
def test_it_is_a_list_from_which_any_can_be_removed(blocks: int) -> None:
    """So many calls that the order is written afresh many times."""
    choose = random.Random(blocks)
    order, model = EvictionOrder(blocks), list[int]()
    for _ in range(300):
        outside = [block for block in range(blocks) if block not in model]
        more = choose.sample(outside, choose.randint(0, len(outside)))
        order.append(more)
        model += more
        hits = choose.sample(model, choose.randint(0, len(model)))
        order.remove(hits)
        model = [block for block in model if block not in hits]
        wanted = choose.randint(0, len(model))
        assert order.pop(wanted) == model[:wanted]
        model = model[wanted:]
        assert (list(order), len(order)) == (model, len(model))
    order.clear()
    assert (list(order), len(order)) == ([], 0)
