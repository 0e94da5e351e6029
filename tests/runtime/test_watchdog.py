"""When work exists and does not move, somebody is named for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kvproof.runtime.protocols import Int32Array, SignalKind, TransferSignal

from .harness import Bench


def test_work_that_does_not_move_is_reported_with_its_holders() -> None:
    bench = Bench(watchdog=60.0)
    bench.add("a", 5, 9)
    bench.core.launch_step()
    bench.core.tick()
    bench.now = 61.0
    assert bench.core.healthy()[0]
    bench.core.tick()
    healthy, why = bench.core.healthy()
    assert not healthy
    assert "1 running" in why
    assert "REQUEST a (RUNNING, 2 blocks, 61 s)" in why
    assert bench.core.stats().watchdog_trips == 1
    assert bench.core.stats().stuck_for == 61.0


def test_it_is_quiet_again_once_work_moves() -> None:
    bench = Bench(watchdog=60.0)
    bench.add("a", 5, 9)
    bench.core.launch_step()
    bench.core.tick()
    bench.now = 61.0
    bench.core.tick()
    bench.core.finish_step()
    bench.core.tick()
    assert bench.core.healthy() == (True, "")
    assert bench.core.stats().stuck_for == 0.0
    bench.run()


def test_an_engine_with_nothing_to_do_or_paused_is_not_stuck() -> None:
    bench = Bench(watchdog=60.0, session_deadline=1e9)
    bench.core.tick()
    bench.now = 100.0
    bench.core.tick()
    assert bench.core.healthy()[0], "idle"
    bench.add("s", 5, 1, resumable=True)
    bench.run(lambda: bool(bench.lifecycle.parked))
    bench.now = 300.0
    bench.turn(2)
    assert bench.core.healthy()[0], "it waits for a client"
    bench.add("a", 5, 9)
    bench.turn()
    bench.run(bench.core.pause("keep").done)
    bench.now = 900.0
    bench.turn(2)
    assert bench.core.healthy()[0], "paused"


@pytest.mark.parametrize("call", ["add", "abort", "chunk", "pause"])
def test_clients_who_call_while_a_step_hangs_do_not_silence_it(call: str) -> None:
    bench = Bench(watchdog=60.0, max_num_seqs=1, max_model_len=256)
    bench.add("s", 4, 1, resumable=True)
    bench.run(lambda: bool(bench.lifecycle.parked))
    bench.add("a", 5, 9)
    bench.core.tick()
    bench.core.launch_step()
    bench.core.tick()
    for number in range(20):
        bench.now += 30.0
        if call == "add":
            bench.add(f"w{number}", 1)
        elif call == "abort":
            bench.add(f"w{number}", 1)
            bench.core.abort(f"w{number}")
        elif call == "chunk":
            bench.core.add_chunk("s", [1])
        elif call == "pause":
            bench.core.pause("keep")
            bench.core.resume()
        bench.core.tick()
    assert bench.core.stats().watchdog_trips == 1
    assert bench.core.stats().stuck_for == 600.0


@pytest.mark.parametrize("force", [False, True])
def test_resets_do_not_silence_it_while_nobody_launches(force: bool) -> None:
    """Refused or done, a reset moves no work: the request waits for a step that never comes."""
    bench = Bench(watchdog=60.0)
    bench.add("a", 5, 9)
    for _ in range(20):
        bench.core.tick()
        bench.now += 30.0
        bench.core.reset_prefix_cache(force)
    assert bench.core.stats().watchdog_trips == 1
    assert not bench.core.healthy()[0]


def test_work_that_comes_after_a_long_idle_time_has_not_stood_still() -> None:
    """A core that nobody drives while it is idle: its first look is after the request came."""
    bench = Bench(watchdog=60.0)
    bench.add("a", 5, 2)
    bench.run()
    bench.core.tick()
    bench.now = 1000.0
    bench.add("b", 5, 2)
    bench.core.tick()
    assert bench.core.healthy() == (True, "")


def test_loads_that_end_are_work_that_moves_though_no_step_can_be_launched() -> None:
    """Each fails after 50 seconds, and the next one is tried; the last one hangs."""
    failed: list[TransferSignal] = []
    tier = Tier(failed)
    bench = Bench(connector=tier, watchdog=60.0, transfer_lease=1e9, load_deadline=1e9)
    bench.add("a", 9)
    for number in range(1, 4):
        bench.core.tick()
        bench.core.launch_step()
        assert tier.loads == number
        bench.core.tick()
        assert bench.core.healthy() == (True, "")
        bench.now += 50.0
        bench.core.tick()
        assert bench.core.healthy() == (True, "")
        if number < 3:
            failed.append(TransferSignal(number, SignalKind.FAILED))
    bench.now += 20.0
    bench.core.tick()
    assert "LOAD 3" in bench.core.healthy()[1]


class Tier:
    """Has two blocks of every prompt, whose loads fail when the test says so."""

    def __init__(self, failed: list[TransferSignal]) -> None:
        self._failed = failed
        self.loads = 0

    def lookup(self, keys: Sequence[bytes]) -> int:
        return 2

    def start_load(self, transfer: int, keys: Sequence[bytes], blocks: Int32Array) -> None:
        self.loads += 1

    def start_store(self, transfer: int, keys: Sequence[bytes], blocks: Int32Array) -> None:
        raise AssertionError("nothing is computed")

    def poll(self) -> Sequence[TransferSignal]:
        said = list(self._failed)
        self._failed.clear()
        return said

    def cancel(self, transfer: int) -> None:
        raise AssertionError("nothing is cancelled")

    def reset(self) -> bool:
        return True

    def close(self) -> None:
        pass
