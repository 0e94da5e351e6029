"""Every order of a few events around one load: two requests, a tier, a reset, leases, aborts.

States are found breadth first by replaying the operations that lead to them on a fresh engine; two
runs that come to the same facts, holds and signals count as one. Each new state is also run to its
end, where every token must be right and nothing held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from kvproof.runtime.transfers import Fault, OnCancel

from .engine_harness import EngineHarness

PROMPT = list(range(10, 22))
NAMES = ("leader", "follower")


def launch(h: EngineHarness) -> None:
    h.core.launch_step()


def finish(h: EngineHarness) -> None:
    h.core.finish_step()


def tick(h: EngineHarness) -> None:
    h.core.tick()


def copy(h: EngineHarness) -> None:
    h.connector.release()
    h.connector.settle_all()


def follow(h: EngineHarness) -> None:
    if "follower" not in h.told:
        h.add("follower", [*PROMPT, 77], 2)


def abort_leader(h: EngineHarness) -> None:
    h.core.abort("leader")


def abort_follower(h: EngineHarness) -> None:
    h.core.abort("follower")


def reset(h: EngineHarness) -> None:
    h.core.reset_prefix_cache(reset_running_requests=True)


def waiting_reset(h: EngineHarness) -> None:
    h.core.reset_prefix_cache(reset_running_requests=True, reset_connector=True, wait=500.0)


def lease(h: EngineHarness) -> None:
    if h.now < 200.0:
        h.now += 61.0


OPERATIONS = (
    launch, finish, tick, copy, follow, abort_leader, abort_follower, reset, waiting_reset, lease,
)  # fmt: skip


def start(fault: Fault) -> EngineHarness:
    """A request that can be admitted to load what only the tier has; the load goes wrong so."""
    h = EngineHarness(blocks=10, steps_in_flight=2)
    h.only_in_tier("first", PROMPT)
    h.connector.next_load.append(fault)
    h.add("leader", [*PROMPT, 66], 2)
    return h


def fingerprint(h: EngineHarness) -> tuple[Any, ...]:
    """What the future depends on."""
    lifecycle = h.core.lifecycle
    rows = tuple(
        (lifecycle.id_of(row), *lifecycle.view.facts(row).items(), *lifecycle.table(row).tolist())
        for row in lifecycle.known_rows()
    )
    transfers = tuple(
        (number, *record.facts.as_dict().values(), *record.blocks.tolist())
        for number, record in lifecycle.transfers.items()
    )
    told = tuple((name, len(told.tokens), told.finish) for name, told in h.told.items())
    cached = tuple(lifecycle.ledger.index.is_cached(block) for block in range(10))
    return (
        rows, transfers, told, cached, h.now, h.connector.held, h.connector.unanswered,
        lifecycle.processed, lifecycle.launched, lifecycle.engine.pending_reset,
        h.tier.stats().blocks, tuple(lifecycle.ledger.counts.tolist()),
    )  # fmt: skip


def check(h: EngineHarness) -> None:
    h.core.lifecycle.check()
    h.tier.check()
    assert h.runner.corruptions == []
    for name, told in h.told.items():
        assert told.tokens == h.expected(name, 2)[: len(told.tokens)]


def run_to_the_end(h: EngineHarness) -> None:
    lifecycle = h.core.lifecycle

    def over() -> bool:
        h.connector.settle_all()
        return not (lifecycle.live or lifecycle.in_flight or lifecycle.transfers)

    h.run(over)
    h.settle()
    h.assert_nothing_is_held()
    check(h)


def explore(fault: Fault, depth: int) -> int:
    """Visit every state within that many operations. Returns how many there are."""
    known: set[tuple[Any, ...]] = set()
    queue: deque[tuple[Callable[[EngineHarness], None], ...]] = deque([()])
    while queue:
        path = queue.popleft()
        h = start(fault)
        try:
            for operation in path:
                operation(h)
            check(h)
            seen = fingerprint(h)
            if seen in known:
                continue
            known.add(seen)
            run_to_the_end(h)
        except BaseException as error:
            error.add_note("after " + ", ".join(operation.__name__ for operation in path))
            raise
        finally:
            h.close()
        if len(path) < depth:
            queue.extend((*path, operation) for operation in OPERATIONS)
    return len(known)


HELD = {how: Fault(hold=True, on_cancel=how) for how in OnCancel}
FAULTS = {
    **{how.value: fault for how, fault in HELD.items()},
    "torn": Fault(hold=True, only=1, spoil=True),
    "lost": Fault(lose=True),
    "late and repeated": Fault(late=2, repeat=1, on_cancel=OnCancel.FINISH),
}


@pytest.mark.parametrize(
    "fault",
    ["silent", *(pytest.param(f, marks=pytest.mark.long) for f in ("finish", "torn", "lost"))],
)
def test_every_order_of_three_operations_ends_well(fault: str) -> None:
    assert explore(FAULTS[fault], 3) > 30


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_every_order_of_seven_operations_ends_well(fault: str) -> None:
    assert explore(FAULTS[fault], 7) > 500
