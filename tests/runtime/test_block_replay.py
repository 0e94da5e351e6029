"""In check mode, what the engine does to many blocks at once is compared with the declaration.

Faults are put into the array code, and the calls that use it must fail at once, before any audit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from kvproof.runtime.block_replay import BlockReplay
from kvproof.runtime.holds import BlockLedger
from kvproof.runtime.lifecycle import Lifecycle
from kvproof.runtime.pool import BlockPool
from kvproof.runtime.prefix import PrefixIndex
from kvproof.runtime.transfer_events import ENDED_KEPT
from kvproof.statemachine.states import BEGIN, CANCEL, FENCE, GIVE_UP, LAND

from .test_lifecycle import add, ids, launch, lifecycle, running


def published(engine: Lifecycle) -> int:
    """A running request whose first two blocks are hits."""
    row = running(engine, "a", 8)
    engine.settle(launch(engine, [row], [8], [0]), ids(5))
    return row


def a_store(engine: Lifecycle) -> int:
    row = published(engine)
    blocks = engine.table(row).tolist()
    number = engine.start_store(engine.keys(row, 2)[:2], blocks)
    assert number
    engine.transfer(number, BEGIN)
    return number


def admit_and_grow(engine: Lifecycle) -> None:
    row = published(engine)
    launch(engine, [row], [1], [1])


def admit_with_hits(engine: Lifecycle) -> None:
    published(engine)
    row = add(engine, "b", 9)
    assert engine.admit(row, engine.hits(row), 1).went


def abort_under_a_step(engine: Lifecycle) -> None:
    row = published(engine)
    launch(engine, [row], [1], [1])
    engine.abort(row)
    engine.settle(2, ids(6))


def land_a_store(engine: Lifecycle) -> None:
    assert engine.transfer(a_store(engine), LAND).went


def give_up_a_store(engine: Lifecycle) -> None:
    number = a_store(engine)
    engine.transfer(number, CANCEL)
    assert engine.transfer(number, GIVE_UP).went
    assert engine.transfer(number, FENCE).went


def reset(engine: Lifecycle) -> None:
    published(engine)
    assert engine.reset(force=True).done


def forget(engine: Lifecycle) -> None:
    engine.abort(published(engine))
    assert engine.ledger.index.cached.sum() == 2
    engine.forget_prefixes()
    assert not engine.ledger.index.cached.any()


CALLS = (
    admit_and_grow,
    admit_with_hits,
    abort_under_a_step,
    land_a_store,
    give_up_a_store,
    reset,
    forget,
)


@pytest.mark.parametrize("call", CALLS)
def test_without_a_fault_nothing_differs(call: Callable[[Lifecycle], None]) -> None:
    engine = lifecycle()
    call(engine)
    engine.check()


def one_less(ledger: BlockLedger, blocks: np.ndarray) -> None:  # type: ignore[type-arg]
    ledger.counts[blocks[:-1]] -= 1


def take_twice(ledger: BlockLedger, blocks: np.ndarray) -> None:  # type: ignore[type-arg]
    ledger.counts[blocks] += 2


def end_at_the_next(ledger: BlockLedger, step: int) -> None:
    held = ledger.step_holds
    held[step + 1] = [replace(hold, step=step + 1) for hold in held.pop(step, [])]


#: Fault -> class and method, what replaces it, a call that uses it, words of the error.
FAULTS: dict[str, tuple[type, str, Callable[..., object], Callable[[Lifecycle], None], str]] = {
    "a growing table's block is not counted": (
        BlockLedger, "take_one_each", lambda ledger, after: ledger.pool.take(len(after))[0],
        admit_and_grow, "the tables that grow",
    ),
    "hits are counted twice": (
        BlockLedger, "acquire", take_twice, admit_with_hits, "the hold of 'b'",
    ),
    "a release forgets the last block": (
        BlockLedger, "release", one_less, land_a_store, "the hold of transfer 1",
    ),
    "a hold is released instead of handed over": (
        BlockLedger, "hand_over", lambda ledger, hold: ledger.release(hold.blocks),
        abort_under_a_step, "a STEP hold has",
    ),
    "a step's holds end with the next": (
        BlockLedger, "end_step", end_at_the_next, abort_under_a_step, "STEP holds are left",
    ),
    "what is given up stays a hit": (
        PrefixIndex, "drop", lambda index, blocks: None, give_up_a_store, "the hold of transfer 1",
    ),
    "the end of a quarantine is not counted": (
        BlockLedger, "end_quarantine", lambda ledger, blocks: None, give_up_a_store,
        "the hold of transfer 1",
    ),
    "a reset keeps the prefixes": (
        BlockLedger, "release_and_forget", lambda ledger, ended: 0, reset, "what lets go at once",
    ),
    "what is forgotten stays a hit": (
        BlockLedger, "drop_cached", lambda ledger: 0, forget, "what is forgotten",
    ),
    "what is written is no hit": (
        BlockLedger, "publish", lambda *told: None, forget, "what 'a' publishes",
    ),
    "a held block is handed out": (
        BlockPool, "take", lambda pool, wanted, after=-1: (list(range(wanted)), 0),
        admit_and_grow, "is handed out",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_array_code_is_caught_by_the_call_that_uses_it(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, name, instead, call, words = FAULTS[fault]
    monkeypatch.setattr(where, name, instead)
    monkeypatch.setattr(Lifecycle, "check", lambda engine: None)
    with pytest.raises(AssertionError, match=words):
        call(lifecycle())


def test_without_check_nothing_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*told: object) -> None:
        raise AssertionError("repeated")

    monkeypatch.setattr(BlockReplay, "__init__", never)
    for call in CALLS:
        call(lifecycle(check=False))
    with pytest.raises(AssertionError, match="repeated"):
        admit_and_grow(lifecycle())


def test_blocks_that_a_hold_does_not_cover_are_told_of_its_commands_too() -> None:
    ledger = BlockLedger(4, compares_tokens=False)
    replay = BlockReplay(ledger)
    told: list[int] = []
    replay._tell(lambda block, h, b: told.append(block), (2,))
    assert told == [2, -1], "the three others have the same facts: they are one case"


def test_the_last_transfers_that_ended_are_remembered_and_late_signals_for_them_ignored() -> None:
    engine = lifecycle()
    row = published(engine)
    blocks, keys = engine.table(row).tolist(), engine.keys(row, 2)[:2]
    for _ in range(ENDED_KEPT + 2):
        number = engine.start_store(keys, blocks)
        engine.transfer(number, BEGIN)
        assert engine.transfer(number, LAND).went
    assert list(engine.ended_transfers) == list(range(3, ENDED_KEPT + 3))
    counts = engine.ledger.counts.tolist()
    for known in (ENDED_KEPT + 2, 1):
        assert not engine.transfer(known, FENCE).went
    assert engine.ignored == {"transfer.fence": 2}
    assert engine.ledger.counts.tolist() == counts
    engine.check()
