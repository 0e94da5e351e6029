"""What blocked requests cost a step: nothing, however many they are and whatever else goes on.

Work is counted in the interpreter's instructions, which are the same on any machine: a turn beside
three hundred blocked requests takes exactly as many as one beside ten.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import pytest
from kvproof.runtime.engine import EngineCore
from kvproof.runtime.fake import FakeRunner
from kvproof.runtime.lifecycle import Lifecycle
from kvproof.runtime.plan import Plan
from kvproof.runtime.room import Room
from kvproof.runtime.scheduler import Scheduler
from kvproof.runtime.transfers.manager import STORE_SHARE
from kvproof.specs.bench.ours import SilentTier
from kvproof.statemachine.policy import must_reclaim_parked
from kvproof.statemachine.states import LOAD

from .harness import SIZE, Bench

FEW, MANY = 10, 300
TURNS = 2 * SIZE  # tables grow and blocks are published in some of them


class Tier(SilentTier):
    """Has what it is told to have, and never says a word of any transfer."""

    has = True

    def lookup(self, keys: Sequence[bytes]) -> int:
        return len(keys) if self.has else 0


def bench(blocks: int, tier: Tier | None = None, **config: Any) -> Bench:
    """Large, and without the check of every count, which looks at everybody."""
    options: dict[str, Any] = {
        "max_num_seqs": 64,
        "max_batched_tokens": 1 << 20,
        "max_model_len": SIZE * blocks,
        "check": False,
        "session_deadline": 1e9,
        "load_deadline": 1e9,
        "transfer_lease": 1e9,
        "cancel_lease": 1e9,
    }
    return Bench(
        blocks=blocks,
        connector=tier,
        runner=FakeRunner(blocks, SIZE, manual=True),
        **(options | config),
    )


def instructions(run: Callable[[], object]) -> int:
    """How many instructions the interpreter executes for it."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    gc.disable()  # a collection calls back whoever asked for it, as Hypothesis does
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def turns(at: Bench) -> list[int]:
    """What each of a few turns executes."""
    return [instructions(at.turn) for _ in range(TURNS)]


def beside_loads(number: int, tier: Tier) -> Bench:
    """So many requests wait for loads that never end; one runs."""
    at = bench(4 * MANY, tier)
    for each in range(number):
        at.add(f"b{each}", [each, each, 1, 1, 1], 2)
    at.run(lambda: len(at.lifecycle.loading_rows) == number)
    at.add("a", 3, 100)
    at.turn(SIZE)
    assert at.state("a") == "RUNNING"
    return at


def beside_parked(number: int, *, holding: bool) -> Bench:
    """So many are parked, one request runs, and another lacks more than all parked have."""
    at = bench(MANY + 400)
    for each in range(number):
        at.add(f"s{each}", [each, each, 1], 1, resumable=True)
    at.run(lambda: len(at.lifecycle.parked) == number)
    if not holding:
        assert at.core.reset_prefix_cache(True).result(0)
    at.add("a", SIZE * 300, 100)
    at.turn(SIZE)
    at.add("big", SIZE * (MANY + 300), 2)
    at.turn(SIZE)
    assert (at.state("a"), at.state("big")) == ("RUNNING", "WAITING")
    assert len(at.lifecycle.parked_blocks) == number * holding
    return at


def reset_waits(number: int, force: bool) -> Bench:
    at = beside_loads(number, Tier())
    assert not at.core.reset_prefix_cache(force, wait=50.0).done()
    return at


def drains(number: int) -> Bench:
    at = beside_loads(number, Tier())
    assert not at.core.shutdown(drain=True, timeout=1e9).done()
    return at


def stores_wait(number: int) -> Bench:
    """What fills is not in the tier, so it is stored; no store ends, so their share fills up."""
    tier = Tier()
    at = beside_loads(number, tier)
    tier.has = False
    at.add("full", SIZE * (MANY + 100), 2)
    at.run(lambda: at.clients["full"].finish is not None)
    at.turn(SIZE)
    assert at.core.transfers is not None
    assert at.core.transfers.waiting_to_store > 0
    assert at.lifecycle.storing == 4 * MANY // STORE_SHARE
    return at


def naming_refusers(patch: pytest.MonkeyPatch) -> None:
    """In each turn everybody who refuses the reset is named."""
    patch.setattr(Lifecycle, "refuses", lambda self, force: bool(self.refusing(force)))


def asking_each_parked(patch: pytest.MonkeyPatch) -> None:
    """Those who wait for blocks ask every parked session whether it holds some."""

    def reclaimable(scheduler: Scheduler, row: int, plan: Plan) -> Iterator[Any]:
        lifecycle = scheduler._lifecycle
        for parked in lifecycle.parked:
            if lifecycle.view.covered[parked] and parked not in plan.reclaims:
                yield parked, must_reclaim_parked

    patch.setattr(Scheduler, "_reclaimable", reclaimable)


def letting_each_parked_go(patch: pytest.MonkeyPatch) -> None:
    """It is tried out with one after the other whether all of them would be enough."""

    def let_go(room: Room, gone: Iterable[int]) -> None:
        for row in room._lifecycle.parked_blocks:
            if row not in gone:
                room.let_go(row)

    patch.setattr(Room, "let_go_of_parked", let_go)


def adding_up_stores(patch: pytest.MonkeyPatch) -> None:
    """The blocks of the stores are added up over all open transfers."""

    def storing(lifecycle: Lifecycle) -> int:
        records = lifecycle.open_transfers()
        return sum(len(record.blocks) for record in records if record.kind != LOAD)

    patch.setattr(Lifecycle, "storing", property(storing))


def counting_holds(patch: pytest.MonkeyPatch) -> None:
    """An engine that drains counts the holds that are left in each turn."""
    look = EngineCore._look_at_shutdown

    def count_and_look(core: EngineCore) -> None:
        core.lifecycle.holds_left()
        look(core)

    patch.setattr(EngineCore, "_look_at_shutdown", count_and_look)


SITUATIONS: dict[str, Callable[[int], Bench]] = {
    "they wait for loads": lambda number: beside_loads(number, Tier()),
    "a plain reset waits": lambda number: reset_waits(number, force=False),
    "a forced reset waits": lambda number: reset_waits(number, force=True),
    "blocks are short beside reclaimed sessions": lambda n: beside_parked(n, holding=False),
    "blocks are short beside parked sessions": lambda n: beside_parked(n, holding=True),
    "stores wait for their share": stores_wait,
    "the engine drains": drains,
}


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
def test_a_thousand_blocked_requests_take_not_one_instruction_more_than_ten(
    situation: Callable[[int], Bench],
) -> None:
    assert turns(situation(FEW)) == turns(situation(MANY))


@pytest.mark.parametrize(
    ("situation", "seed"),
    [
        ("a plain reset waits", naming_refusers),
        ("a forced reset waits", naming_refusers),
        ("blocks are short beside reclaimed sessions", asking_each_parked),
        ("blocks are short beside parked sessions", letting_each_parked_go),
        ("stores wait for their share", adding_up_stores),
        ("the engine drains", counting_holds),
    ],
)
def test_it_would_show_if_each_of_them_were_looked_at(
    situation: str, seed: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = SITUATIONS[situation]
    seed(monkeypatch)
    few, many = turns(make(FEW)), turns(make(100))
    assert all(more > 100 + least for least, more in zip(few, many, strict=True))
