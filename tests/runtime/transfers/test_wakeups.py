"""The engine's loop sleeps while a transfer is open, and its connector's word wakes it."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from kvproof.runtime import loop
from kvproof.runtime.api import EngineConfig, RequestOutput
from kvproof.runtime.engine import Engine
from kvproof.runtime.fake import FakeKV, FakeRunner, expected_tokens
from kvproof.runtime.protocols import (
    Int32Array,
    NotifyingConnector,
    SignalKind,
    TransferSignal,
)
from kvproof.runtime.sampling_params import SamplingParams
from kvproof.runtime.transfers import FaultyConnector, HostTier

PATIENCE = 30.0
#: Whoever waits for a poll as rare as this has waited for ever.
NEVER = 3600.0
PROMPT = list(range(1, 10))


class Promising:
    """A tier that has every prefix and loads none of them: a load ends, in FAILED, when told."""

    def __init__(self, *, ends_behind_the_look: bool = False, mute: bool = False) -> None:
        self.begun = threading.Event()
        self._ends_behind_the_look = ends_behind_the_look
        self._mute = mute
        self._number = 0
        self._signals: deque[TransferSignal] = deque()

    def on_signal(self, call: Callable[[], None]) -> None:
        self._call = call

    def end(self) -> None:
        number, self._number = self._number, 0
        self._signals.append(TransferSignal(number, SignalKind.FAILED))
        if not self._mute:
            self._call()

    def lookup(self, keys: Sequence[bytes]) -> int:
        return len(keys)

    def start_load(self, transfer: int, keys: Sequence[bytes], blocks: Int32Array) -> None:
        self._number = transfer
        self.begun.set()

    def start_store(self, transfer: int, keys: Sequence[bytes], blocks: Int32Array) -> None:
        raise AssertionError("the tier has everything")

    def poll(self) -> Sequence[TransferSignal]:
        heard = [self._signals.popleft() for _ in range(len(self._signals))]
        if self._number and self._ends_behind_the_look:
            self.end()
        return heard

    def cancel(self, transfer: int) -> None:
        self._signals.append(TransferSignal(transfer, SignalKind.FENCED))

    def reset(self) -> bool:
        return True

    def close(self) -> None: ...


def serve(tier: Promising, during: Callable[[], None] = lambda: None) -> list[int]:
    """The tokens of a request that waits for a load which fails; then it computes."""
    engine = Engine(
        EngineConfig(
            num_blocks=16, block_size=4, max_model_len=64, loads_limit=1, check=True,
            watchdog=2 * NEVER, transfer_lease=NEVER, load_deadline=NEVER,
        ),
        FakeRunner(16, 4),
        tier,
    )  # fmt: skip
    outputs: queue.Queue[RequestOutput] = queue.Queue()
    try:
        engine.add_request("a", PROMPT, SamplingParams(max_tokens=3), on_output=outputs.put)
        assert tier.begun.wait(PATIENCE)
        during()
        tokens: list[int] = []
        while len(tokens) < 3:
            tokens += outputs.get(timeout=PATIENCE).tokens
    finally:
        engine.shutdown(drain=False)
    return tokens


@pytest.fixture(autouse=True)
def loop_sleeps_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_IDLE", NEVER)
    monkeypatch.setattr(loop, "_POLL_IN_CASE", NEVER)


def test_a_transfer_that_ends_wakes_the_loop() -> None:
    tier = Promising()
    assert serve(tier, tier.end) == expected_tokens(PROMPT, 3)


def test_a_transfer_that_ends_between_the_look_and_the_sleep_is_not_slept_over() -> None:
    assert serve(Promising(ends_behind_the_look=True)) == expected_tokens(PROMPT, 3)


def test_a_word_that_is_lost_is_made_good_by_a_rare_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_POLL_IN_CASE", 0.001)
    tier = Promising(mute=True)
    assert serve(tier, tier.end) == expected_tokens(PROMPT, 3)


def test_the_host_tier_says_when_a_copy_has_ended_and_is_not_asked() -> None:
    kv = FakeKV(num_blocks=4, block_size=4)
    tier = HostTier(kv, 4 * kv.bytes_per_block)
    ended = threading.Event()
    tier.on_signal(ended.set)
    tier.start_store(1, [b"key"], np.zeros(1, dtype=np.int32))
    assert ended.wait(PATIENCE)
    assert [signal.transfer for signal in tier.poll()] == [1]
    tier.close()


def test_a_connector_whose_delays_end_in_its_poll_is_polled() -> None:
    kv = FakeKV(num_blocks=4, block_size=4)
    tier = HostTier(kv, 4 * kv.bytes_per_block)
    assert isinstance(tier, NotifyingConnector)
    assert not isinstance(FaultyConnector(tier), NotifyingConnector)
    tier.close()
