"""`holds()`: who holds what, and since when."""

from __future__ import annotations

import pytest
from kvproof.runtime.api import Holder

from .harness import Bench


def of(bench: Bench, kind: str) -> Holder:
    """The only holder of that kind."""
    (holder,) = [holder for holder in bench.core.holds() if holder.kind == kind]
    return holder


def test_a_hold_is_as_old_as_its_admission_however_much_it_grows() -> None:
    bench = Bench()
    bench.now = 5.0
    bench.add("a", 5, 9)
    bench.turn()
    assert (of(bench, "REQUEST").blocks, of(bench, "REQUEST").since) == (2, 5.0)
    bench.now = 9.0
    bench.run(lambda: of(bench, "REQUEST").blocks == 3)
    bench.now = 12.0
    holder = of(bench, "REQUEST")
    assert (holder.owner, holder.state) == ("a", "RUNNING")
    assert (holder.since, holder.age) == (5.0, 7.0)


def test_a_session_that_comes_back_has_held_its_blocks_all_the_while() -> None:
    bench = Bench()
    bench.now = 5.0
    bench.add("session", 5, 2, resumable=True)
    bench.run(lambda: bench.state("session") == "WAITING_FOR_STREAMING_REQ")
    bench.now = 9.0
    bench.chunk("session", [1] * 6)
    bench.turn()
    assert bench.state("session") == "RUNNING"
    assert (of(bench, "REQUEST").blocks, of(bench, "REQUEST").since) == (4, 5.0)


def test_who_let_go_and_is_admitted_again_holds_anew() -> None:
    bench = Bench()
    bench.now = 5.0
    bench.add("a", 5, 9)
    bench.turn()
    assert bench.core.reset_prefix_cache(True).result(0)
    assert bench.core.holds() == []
    bench.now = 8.0
    bench.turn()
    assert of(bench, "REQUEST").since == 8.0


@pytest.mark.parametrize("depth", [1, 2])
def test_what_a_launched_step_still_touches_is_held_by_it_since_its_request_let_go(
    depth: int,
) -> None:
    bench = Bench(steps_in_flight=depth)
    bench.now = 5.0
    bench.add("a", 5, 9)
    for _ in range(depth):
        bench.core.launch_step()
    bench.now = 9.0
    bench.core.abort("a")
    bench.now = 11.0
    (holder,) = bench.core.holds()
    assert (holder.kind, holder.owner, holder.state) == ("STEP", str(depth), "LAUNCHED")
    assert (holder.blocks, holder.since, holder.age) == (2, 9.0, 2.0)
    assert bench.core.stats().holds == {"REQUEST": 0, "STEP": 1, "LOAD": 0, "STORE": 0}
    while bench.core.finish_step():
        pass
    assert bench.core.holds() == []
