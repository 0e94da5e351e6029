"""The host tier by itself: what is copied when, and what its signals may be relied on for."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from kvproof.runtime.protocols import SignalKind, TransferSignal
from kvproof.runtime.transfers import HostTier

from .memory_kv import MemoryKV, blocks, keys

LANDED, FAILED, FENCED = SignalKind.LANDED, SignalKind.FAILED, SignalKind.FENCED


class Harness:
    """A tier of a few slots whose signals a test waits for, without sleeping."""

    def __init__(self, slots: int = 8, piece_blocks: int = 2) -> None:
        self.kv = MemoryKV(16)
        self.kv.data[...] = np.arange(1, 17)[:, None]
        self._heard = threading.Semaphore(0)
        size = self.kv.bytes_per_block
        self.tier = HostTier(self.kv, slots * size, piece_blocks * size)
        self.tier.on_signal(self._heard.release)

    def signals(self, count: int = 1) -> list[TransferSignal]:
        """The signals after that many jobs have ended."""
        for _ in range(count):
            assert self._heard.acquire(timeout=30), "no signal came"
        return list(self.tier.poll())

    def kinds(self, count: int = 1) -> list[tuple[int, SignalKind]]:
        return [(signal.transfer, signal.kind) for signal in self.signals(count)]

    def store(self, transfer: int, names: str, *numbers: int) -> None:
        self.tier.start_store(transfer, keys(*names), blocks(*numbers))
        assert self.kinds() == [(transfer, LANDED)]


@pytest.fixture
def h() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    harness.kv.let_copies_go()
    harness.tier.check()
    harness.tier.close()


def test_what_was_stored_comes_back_bit_for_bit(h: Harness) -> None:
    h.store(1, "abc", 3, 9, 5)
    assert h.tier.lookup(keys(*"abcd")) == 3
    h.kv.data[...] = 0
    h.tier.start_load(2, keys(*"abc"), blocks(0, 15, 7))
    assert h.kinds() == [(2, LANDED)]
    assert h.kv.data[[0, 15, 7], 0].tolist() == [4, 10, 6]


def test_a_store_is_no_hit_before_its_last_byte_is_copied(h: Harness) -> None:
    h.kv.stop_copies()
    h.tier.start_store(1, keys(*"abc"), blocks(0, 1, 2))
    assert h.kv.entered.wait(30)
    assert h.tier.lookup(keys("a")) == 0
    h.kv.let_copies_go()
    assert h.kinds() == [(1, LANDED)]
    assert h.tier.lookup(keys(*"abc")) == 3


def test_a_load_is_signalled_after_its_last_byte_is_written(h: Harness) -> None:
    h.store(1, "abc", 0, 1, 2)
    h.kv.stop_copies()
    h.tier.start_load(2, keys(*"abc"), blocks(8, 9, 10))
    assert h.kv.entered.wait(30)
    assert list(h.tier.poll()) == []
    h.kv.let_copies_go()
    assert h.kinds() == [(2, LANDED)]
    assert h.kv.data[[8, 9, 10], 0].tolist() == [1, 2, 3]


def test_what_is_stored_already_is_not_copied_again(h: Harness) -> None:
    h.store(1, "ab", 0, 1)
    h.kv.copies.clear()
    h.store(2, "abc", 0, 1, 2)
    assert h.kv.copies == [("read", (2,))]


def test_what_another_store_is_copying_is_not_copied_again(h: Harness) -> None:
    h.kv.stop_copies()
    h.tier.start_store(1, keys(*"ab"), blocks(0, 1))
    h.tier.start_store(2, keys(*"abc"), blocks(0, 1, 2))
    h.kv.let_copies_go()
    assert h.kinds(2) == [(1, LANDED), (2, LANDED)]
    assert h.kv.copies == [("read", (0, 1)), ("read", (2,))]


def test_the_budget_is_kept(h: Harness) -> None:
    h.store(1, "abcdefgh", *range(8))
    h.store(2, "ijk", 8, 9, 10)
    stats = h.tier.stats()
    assert stats.blocks == stats.capacity_blocks == 8
    assert h.tier.lookup(keys(*"ijk")) == 3
    assert h.tier.lookup(keys(*"abcdefgh")) == 5


def test_what_a_queued_load_will_read_is_not_evicted(h: Harness) -> None:
    h.store(1, "ab", 0, 1)
    h.kv.stop_copies()
    h.tier.start_load(2, keys(*"ab"), blocks(14, 15))
    h.tier.start_store(3, keys(*"cdefghij"), blocks(*range(2, 10)))
    assert h.tier.lookup(keys(*"ab")) == 2
    h.kv.let_copies_go()
    assert h.kinds(2) == [(2, LANDED), (3, LANDED)]
    assert h.kv.data[[14, 15], 0].tolist() == [1, 2]
    assert h.tier.lookup(keys(*"cdefgh")) == 6
    assert h.tier.lookup(keys("i")) == 0


def test_a_store_for_which_there_is_no_room_fails(h: Harness) -> None:
    h.store(1, "abcdefgh", *range(8))
    h.kv.stop_copies()
    h.tier.start_load(2, keys(*"abcdefgh"), blocks(*range(8, 16)))
    h.tier.start_store(3, keys("z"), blocks(0))
    h.kv.let_copies_go()
    assert h.kinds(2) == [(2, LANDED), (3, FAILED)]


def test_a_load_of_forgotten_keys_fails_with_what_it_could_copy(h: Harness) -> None:
    h.store(1, "ab", 4, 5)
    h.tier.start_load(2, keys(*"abc"), blocks(10, 11, 12))
    (signal,) = h.signals()
    assert (signal.kind, signal.valid_blocks) == (FAILED, 2)
    assert h.kv.data[[10, 11, 12], 0].tolist() == [5, 6, 13]


def test_a_device_error_fails_the_load_behind_the_pieces_that_were_copied(h: Harness) -> None:
    h.store(1, "abcd", 0, 1, 2, 3)
    h.kv.fail_next = [None, RuntimeError("device")]
    h.tier.start_load(2, keys(*"abcd"), blocks(8, 9, 10, 11))
    (signal,) = h.signals()
    assert (signal.kind, signal.valid_blocks) == (FAILED, 2)


def test_a_device_error_keeps_what_a_store_had_copied(h: Harness) -> None:
    h.kv.fail_next = [None, RuntimeError("device")]
    h.tier.start_store(1, keys(*"abcd"), blocks(0, 1, 2, 3))
    (signal,) = h.signals()
    assert signal.kind is FAILED
    assert h.tier.lookup(keys(*"abcd")) == 2


def test_a_queued_copy_that_is_cancelled_never_touches_a_block(h: Harness) -> None:
    h.store(1, "ab", 0, 1)
    h.kv.stop_copies()
    h.tier.start_store(2, keys("c"), blocks(2))
    assert h.kv.entered.wait(30)
    h.tier.start_load(3, keys(*"ab"), blocks(8, 9))
    h.tier.cancel(3)
    assert h.kinds() == [(3, FENCED)]
    h.kv.let_copies_go()
    assert h.kinds() == [(2, LANDED)]
    assert h.kv.data[[8, 9], 0].tolist() == [9, 10]


def test_a_running_copy_that_is_cancelled_is_fenced_only_when_its_worker_is_out(
    h: Harness,
) -> None:
    h.store(1, "abcd", 0, 1, 2, 3)
    h.kv.stop_copies()
    h.tier.start_load(2, keys(*"abcd"), blocks(8, 9, 10, 11))
    assert h.kv.entered.wait(30)
    h.tier.cancel(2)
    assert list(h.tier.poll()) == []
    h.kv.let_copies_go()
    assert h.kinds() == [(2, FENCED)]
    assert h.kv.data[[10, 11], 0].tolist() == [11, 12], "the second piece was not copied"


def test_a_copy_that_ends_before_its_cancel_is_heard_lands_and_is_fenced(h: Harness) -> None:
    h.store(1, "ab", 0, 1)
    h.kv.stop_copies()
    h.tier.start_load(2, keys(*"ab"), blocks(8, 9))
    assert h.kv.entered.wait(30)
    h.tier.cancel(2)
    assert list(h.tier.poll()) == []
    h.kv.let_copies_go()
    assert h.kinds() == [(2, LANDED), (2, FENCED)]


def test_cancelling_what_nobody_knows_is_answered(h: Harness) -> None:
    h.tier.cancel(77)
    assert h.kinds() == [(77, FENCED)]


def test_a_reset_leaves_nothing_to_load_and_a_running_load_what_it_reads(h: Harness) -> None:
    h.store(1, "abcd", 0, 1, 2, 3)
    h.kv.stop_copies()
    h.tier.start_load(2, keys(*"abcd"), blocks(8, 9, 10, 11))
    assert h.kv.entered.wait(30)
    assert h.tier.reset()
    assert h.tier.lookup(keys("a")) == 0
    h.tier.start_store(3, keys(*"efghijkl"), blocks(*range(8)))
    h.kv.let_copies_go()
    h.signals(2)
    assert h.kv.data[[8, 9, 10, 11], 0].tolist() == [1, 2, 3, 4]


def test_a_store_that_began_before_a_reset_is_no_hit_after_it(h: Harness) -> None:
    h.kv.stop_copies()
    h.tier.start_store(1, keys("a"), blocks(0))
    assert h.kv.entered.wait(30)
    assert h.tier.reset()
    h.kv.let_copies_go()
    assert h.kinds() == [(1, LANDED)]
    assert h.tier.lookup(keys("a")) == 0


def test_loads_go_before_stores(h: Harness) -> None:
    h.store(1, "ab", 0, 1)
    h.kv.stop_copies()
    h.tier.start_store(2, keys("c"), blocks(2))
    assert h.kv.entered.wait(30)
    h.tier.start_store(3, keys("d"), blocks(3))
    h.tier.start_load(4, keys("a"), blocks(8))
    h.kv.let_copies_go()
    assert h.kinds(3) == [(2, LANDED), (4, LANDED), (3, LANDED)]


def test_a_number_under_way_cannot_be_started_again(h: Harness) -> None:
    h.kv.stop_copies()
    h.tier.start_store(1, keys("a"), blocks(0))
    with pytest.raises(ValueError, match="under way"):
        h.tier.start_store(1, keys("b"), blocks(1))
    h.kv.let_copies_go()
    assert h.kinds() == [(1, LANDED)]


def test_closing_leaves_no_thread_and_fences_what_was_queued() -> None:
    before = set(threading.enumerate())
    harness = Harness()
    harness.kv.stop_copies()
    harness.tier.start_store(1, keys(*"abcd"), blocks(0, 1, 2, 3))
    assert harness.kv.entered.wait(30)
    harness.tier.start_store(2, keys("e"), blocks(4))
    closer = threading.Thread(target=harness.tier.close)
    closer.start()
    while not harness.tier._closed:
        pass
    harness.kv.let_copies_go()
    closer.join()
    harness.tier.close()
    assert set(threading.enumerate()) == before
    assert [(s.transfer, s.kind) for s in harness.tier.poll()] == [(1, FENCED), (2, FENCED)]
    harness.tier.check()
    with pytest.raises(RuntimeError, match="closed"):
        harness.tier.start_store(3, keys("f"), blocks(5))


def test_a_tier_without_room_stores_nothing_and_says_so() -> None:
    harness = Harness(slots=0)
    harness.tier.start_store(1, keys("a"), blocks(0))
    assert harness.kinds() == [(1, FAILED)]
    harness.tier.close()
