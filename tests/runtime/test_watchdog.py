"""When work exists and does not move, somebody is named for it."""

from __future__ import annotations

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
