"""The test connector does what it is told, and what it signals is true of the copy underneath."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from kvproof.runtime.protocols import SignalKind, TransferSignal
from kvproof.runtime.transfers import Fault, FaultyConnector, HostTier, OnCancel, random_faults

from .memory_kv import MemoryKV, blocks, keys

LANDED, FAILED, FENCED = SignalKind.LANDED, SignalKind.FAILED, SignalKind.FENCED
UNCONFIRMED = SignalKind.UNCONFIRMED
Heard = list[tuple[int, SignalKind]]


class Harness:
    """A faulty connector around a host tier that holds a, b, c and d, with a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.kv = MemoryKV(16)
        self.kv.data[...] = np.arange(1, 17)[:, None]
        self._ended = threading.Event()
        self.tier = HostTier(self.kv, 8 * self.kv.bytes_per_block)
        self.tier.on_signal(self._ended.set)
        self.connector = FaultyConnector(self.tier, kv=self.kv, clock=lambda: self.now)
        self.connector.start_store(1, keys(*"abcd"), blocks(0, 1, 2, 3))
        assert self.wait() == [(1, LANDED)]

    def poll(self) -> list[TransferSignal]:
        """One poll, after all that the tier underneath has begun is over."""
        while self.tier.stats().jobs:
            self._ended.wait(30)
            self._ended.clear()
        return list(self.connector.poll())

    def wait(self, polls: int = 1) -> Heard:
        return [(s.transfer, s.kind) for _ in range(polls) for s in self.poll()]

    def load(self, transfer: int, fault: Fault, *numbers: int) -> None:
        self.connector.next_load.append(fault)
        self.connector.start_load(transfer, keys(*"abcd"[: len(numbers)]), blocks(*numbers))

    def content(self, *numbers: int) -> list[int]:
        return self.kv.data[list(numbers), 0].tolist()


@pytest.fixture
def h() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    harness.connector.close()


def test_without_a_fault_it_only_passes_on(h: Harness) -> None:
    assert h.connector.lookup(keys(*"abcd")) == 4
    h.connector.start_load(2, keys(*"ab"), blocks(8, 9))
    assert h.wait() == [(2, LANDED)]
    assert h.content(8, 9) == [1, 2]


def test_a_held_copy_begins_when_it_is_released(h: Harness) -> None:
    h.load(2, Fault(hold=True), 8, 9)
    assert h.wait(3) == []
    assert h.connector.held == (2,)
    assert h.content(8, 9) == [9, 10]
    h.connector.release(2)
    assert h.wait(2) == [(2, LANDED)]
    assert h.content(8, 9) == [1, 2]


def test_held_copies_are_released_oldest_first(h: Harness) -> None:
    h.load(2, Fault(hold=True), 8)
    h.load(3, Fault(hold=True), 9)
    h.load(4, Fault(hold=True), 10)
    h.connector.release_next(2)
    assert h.wait(2) == [(2, LANDED), (3, LANDED)]
    assert h.connector.held == (4,)


def test_a_delayed_copy_begins_when_its_time_is_over(h: Harness) -> None:
    h.load(2, Fault(delay=1.5), 8)
    h.now = 1.0
    assert h.wait(2) == []
    h.now = 1.5
    assert h.wait(2) == [(2, LANDED)]


def test_a_lost_signal_is_heard_only_when_it_is_found(h: Harness) -> None:
    h.load(2, Fault(lose=True), 8)
    assert h.wait(5) == []
    assert h.content(8) == [1]
    assert h.connector.unanswered == (2,)
    h.connector.find(2)
    assert h.wait() == [(2, LANDED)]
    assert h.connector.unanswered == ()


def test_a_late_signal_comes_that_many_polls_later_so_signals_cross(h: Harness) -> None:
    h.load(2, Fault(late=2), 8)
    h.load(3, Fault(), 9)
    assert h.wait() == [(3, LANDED)]
    assert h.wait() == []
    assert h.wait() == [(2, LANDED)]


def test_a_repeated_signal_comes_again(h: Harness) -> None:
    h.load(2, Fault(repeat=2), 8)
    assert [h.wait() for _ in range(4)] == [[(2, LANDED)]] * 3 + [[]]


def test_signals_of_one_poll_come_in_any_order(h: Harness) -> None:
    orders = set()
    for seed in range(8):
        h.connector._rng = random.Random(seed)
        for transfer in (2, 3, 4):
            h.load(transfer, Fault(), 8)
        orders.add(tuple(h.wait()))
    assert len(orders) > 1


def test_a_truncated_load_fails_with_what_was_copied(h: Harness) -> None:
    h.load(2, Fault(only=2), 8, 9, 10, 11)
    (signal,) = h.poll()
    assert (signal.kind, signal.valid_blocks) == (FAILED, 2)
    assert h.content(8, 9, 10, 11) == [1, 2, 11, 12]


def test_a_spoiled_load_leaves_garbage_behind_what_is_valid(h: Harness) -> None:
    h.load(2, Fault(only=1, spoil=True), 8, 9, 10)
    (signal,) = h.poll()
    assert (signal.kind, signal.valid_blocks) == (FAILED, 1)
    assert h.content(8, 9, 10) == [1, 0, 0]


def test_a_failed_load_copies_nothing(h: Harness) -> None:
    h.load(2, Fault(only=0), 8)
    (signal,) = h.poll()
    assert (signal.kind, signal.valid_blocks) == (FAILED, 0)
    assert h.content(8) == [9]


def test_a_truncated_store_fails(h: Harness) -> None:
    h.connector.next_store.append(Fault(only=1))
    h.connector.start_store(2, keys(*"ef"), blocks(4, 5))
    assert h.wait() == [(2, FAILED)]
    assert h.connector.lookup(keys(*"ef")) == 1


def test_a_transfer_can_be_refused(h: Harness) -> None:
    h.connector.next_load.append(Fault(refuse=True))
    with pytest.raises(OSError, match="cannot be reached"):
        h.connector.start_load(2, keys("a"), blocks(8))
    assert h.wait() == []


def test_a_held_copy_that_obeys_its_cancel_never_begins(h: Harness) -> None:
    h.load(2, Fault(hold=True), 8)
    h.connector.cancel(2)
    assert h.wait() == [(2, FENCED)]
    h.connector.release()
    assert h.wait(2) == []
    assert h.content(8) == [9]


def test_a_copy_that_finishes_despite_its_cancel_lands_and_is_fenced(h: Harness) -> None:
    h.load(2, Fault(hold=True, on_cancel=OnCancel.FINISH), 8)
    h.connector.cancel(2)
    assert h.wait(2) == []
    h.connector.release()
    assert h.wait(2) == [(2, LANDED), (2, FENCED)]


def test_a_copy_that_finishes_despite_its_cancel_is_fenced_even_if_its_end_is_lost(
    h: Harness,
) -> None:
    h.load(2, Fault(hold=True, lose=True, on_cancel=OnCancel.FINISH), 8)
    h.connector.cancel(2)
    h.connector.release()
    assert h.wait(2) == [(2, FENCED)]


def test_a_silent_copy_may_still_run_and_is_fenced_when_confirmed(h: Harness) -> None:
    h.load(2, Fault(hold=True, on_cancel=OnCancel.SILENT), 8)
    h.connector.cancel(2)
    h.connector.release()
    assert h.wait(2) == []
    assert h.content(8) == [1], "the engine must not have handed block 8 out"
    assert h.connector.unanswered == (2,)
    h.connector.confirm(2)
    assert h.wait() == [(2, FENCED)]


def test_a_silent_copy_that_is_confirmed_before_it_begins_never_does(h: Harness) -> None:
    h.load(2, Fault(hold=True, on_cancel=OnCancel.SILENT), 8)
    h.connector.cancel(2)
    h.connector.confirm(2)
    h.connector.release()
    assert h.wait(2) == [(2, FENCED)]
    assert h.content(8) == [9]


def test_an_unconfirmed_cancel_says_so(h: Harness) -> None:
    h.load(2, Fault(hold=True, on_cancel=OnCancel.UNCONFIRMED), 8)
    h.connector.cancel(2)
    assert h.wait() == [(2, UNCONFIRMED)]
    h.connector.settle_all()
    assert h.wait() == [(2, FENCED)]


def test_cancelling_after_a_lost_signal_is_answered(h: Harness) -> None:
    h.load(2, Fault(lose=True), 8)
    assert h.wait() == []
    h.connector.cancel(2)
    assert h.wait() == [(2, FENCED)]
    assert h.connector.unanswered == ()


def test_a_reset_fails_on_command_and_then_clears(h: Harness) -> None:
    h.connector.resets_to_fail = 1
    assert not h.connector.reset()
    assert h.connector.lookup(keys("a")) == 1
    assert h.connector.reset()
    assert h.connector.lookup(keys("a")) == 0


def test_a_store_held_over_a_reset_brings_nothing_old_into_the_tier(h: Harness) -> None:
    h.connector.next_store.append(Fault(hold=True, on_cancel=OnCancel.SILENT))
    h.connector.start_store(2, keys("e"), blocks(4))
    h.connector.cancel(2)
    assert h.connector.reset()
    h.connector.release()
    assert h.wait(2) == []
    assert h.connector.lookup(keys("e")) == 0


def test_a_signal_out_of_nowhere_is_passed_on(h: Harness) -> None:
    h.connector.inject(TransferSignal(99, LANDED))
    assert h.wait() == [(99, LANDED)]


@pytest.mark.parametrize("seed", range(30))
def test_every_transfer_ends_once_all_is_settled_and_never_before_its_copy(seed: int) -> None:
    h = Harness()
    rng = random.Random(seed)
    h.connector.choose = random_faults(rng, rate=0.8)
    h.connector._rng = rng
    open_: set[int] = set()
    for transfer in range(2, 60):
        h.now += rng.random()
        start = rng.choice((h.connector.start_load, h.connector.start_store))
        try:
            start(transfer, keys(*"abcd"), blocks(8, 9, 10, 11))
            open_.add(transfer)
        except OSError:
            pass
        if open_ and rng.random() < 0.3:
            h.connector.cancel(rng.choice(sorted(open_)))
        open_ -= {s.transfer for s in h.poll() if s.kind is not UNCONFIRMED}
    h.now += 60.0
    for _ in range(40):
        h.connector.settle_all()
        open_ -= {s.transfer for s in h.poll() if s.kind is not UNCONFIRMED}
    assert open_ == set()
    assert h.connector.unanswered == ()
    h.tier.check()
    h.connector.close()
