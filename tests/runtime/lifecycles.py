"""A lifecycle with something of each kind in it, and a picture of all that it knows."""

from __future__ import annotations

from typing import Any

import numpy as np
from kvproof.runtime.api import EngineConfig
from kvproof.runtime.lifecycle import Lifecycle, Stop
from kvproof.statemachine.states import FINISHED_STOPPED


def ids(*tokens: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(tokens, dtype=np.int32)


def numbers(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


class Peopled:
    """One request in each state, at rows that have its name, and a step in flight."""

    def __init__(self, check: bool = True) -> None:
        config = EngineConfig(
            num_blocks=32, block_size=4, max_model_len=40, steps_in_flight=2, check=check
        )
        self.engine = Lifecycle(config, clock=lambda: 1.0)
        engine = self.engine
        self.parked = self.add("parked", 6, 2, resumable=True)
        self.again = self.add("again", 6, 3, resumable=True)
        self.done = self.add("done", 5, 4)
        for row in (self.parked, self.again, self.done):
            assert engine.admit(row, (), 2).went
        self.step((self.parked, self.again, self.done), (6, 6, 5))
        engine.settle(
            1,
            ids(7, 7, 7),
            judge=lambda *_: [Stop(r, FINISHED_STOPPED) for r in (self.parked, self.again)],
        )
        engine.chunk(self.again, ids(5, 6, 5))  # waits, resident, for its second turn
        engine.abort(self.done)

        self.running = self.add("running", 8, 1)
        self.session = self.add("session", 6, 5, resumable=True)
        self.preempted = self.add("preempted", 5, 6)
        for row in (self.running, self.session, self.preempted):
            assert engine.admit(row, (), 2).went
        self.step((self.running, self.session), (8, 6))
        engine.settle(2, ids(9, 9))
        engine.chunk(self.session, ids(1, 2, 3))
        assert engine.preempt(self.preempted, forced=True).went
        self.grammar = self.add("grammar", 4, 7, grammar=True)
        self.waiting = self.add("waiting", 9, 1)  # its first blocks are those of "running"
        self.fresh = self.add("fresh", 5, 8)
        assert engine.admit(self.fresh, (), 2).went  # runs, and no step has it
        self.loading = self.add("loading", 9, 9)
        self.twin = self.add("twin", 9, 9)  # may join the load
        outcome, self.load = engine.admit_loading(self.loading, (), engine.keys(self.loading, 2), 1)
        assert outcome.went
        self.step((self.running, self.session), (1, 1), (1, 0))  # step 3 is in flight
        self.hit, self.second = engine.table(self.running)[:2].tolist()
        engine.check()

    def add(self, name: str, length: int, token: int, **options: Any) -> int:
        row = self.engine.add(name, np.full(length, token, dtype=np.int32), **options)
        self.engine.set_limit(row, 40)
        return row

    def step(self, rows: Any, tokens: Any, grow: Any = None) -> None:
        new = numbers(*(grow or [0] * len(rows)))
        assert self.engine.launch(numbers(*rows), numbers(*tokens), new) is not None


def picture(engine: Lifecycle) -> tuple[Any, ...]:
    """All that the lifecycle knows, but for keys, which are made when they are first asked for."""
    ledger = engine._ledger
    return (
        engine._columns.tobytes(), engine._tables.tobytes(), engine._tokens.tobytes(),
        list(engine._ids), list(engine._salts), [list(queue) for queue in engine._queued],
        list(engine._free_rows), dict(engine._row_of), engine._arrivals, engine._reserved,
        list(engine._running), list(engine._waiting), list(engine._blocked),
        list(engine._parked), list(engine._loading_rows), list(engine._finished),
        engine.engine.as_dict(), dict(engine.ignored), engine.moves, engine.holds_version,
        list(engine._steps), [step.rows.tolist() for step in engine._steps.values()],
        [(each.state, each.held, dict(each.waiters)) for each in engine._transfers.values()],
        dict(engine._loading), list(engine._ended), list(engine._unwaited),
        engine._transfer_numbers,
        ledger.counts.tobytes(), bytes(ledger.being_written), ledger.quarantined.tobytes(),
        bytes(ledger.pool._uncached), list(ledger.pool.eviction_order()),
        dict(ledger.index._block),
        [[(hold.step, hold.blocks.tolist()) for hold in holds]
         for holds in ledger.step_holds.values()],
        [list(history) for history in engine._history],
    )  # fmt: skip
