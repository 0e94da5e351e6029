"""What the environment of a replayed engine really does, and whether the engine agrees with it.

Which blocks a launched step or a worker may still touch, and which token's KV is in which slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvproof.specs.explore import Instance


@dataclass(frozen=True)
class Write:
    """What a launched step writes for one row: positions, by the table that it was given."""

    row: int
    request: str
    table: tuple[int, ...]
    start: int
    end: int


class Environment:
    """Knows what no record of the engine knows."""

    def __init__(self, instance: Instance, core: Any, states: Any) -> None:
        self.instance = instance
        self.size = instance.block_size
        self.core: Any = core
        self.lc: Any = core.lifecycle
        self.states = states
        self.complaints: list[str] = []
        self.rows: dict[str, int] = {}
        self.epoch = 0
        #: The token position whose KV is in each slot, with the epoch of its weights; None: none.
        nothing: tuple[int, int] | None = None
        self.slots = [[nothing] * self.size for _ in range(instance.blocks)]
        self.writes: dict[int, list[Write]] = {}
        self.working: set[int] = set()

    def must(self, condition: bool, words: str) -> None:
        if not condition:
            self.complaints.append(words)

    def look(self) -> None:
        """The engine's own check, and the environment's."""
        try:
            self.lc.check()
        except AssertionError as error:
            self.complaints.append(f"check: {error}")
            return
        self._touched()
        self._contents()
        self._plans()

    def _plans(self) -> None:
        """Look at what the scheduler plans next; the plan is not carried out."""
        lc = self.lc
        plan = self.core.scheduler.plan(self.instance.requests * self.instance.model_length)
        order = {
            row: (int(lc.view.priority[row]), int(lc.view.arrival[row]))
            for row in (*lc.running, *lc.waiting)
        }
        for victim in plan.victims:
            others = (place for row, place in order.items() if row not in plan.victims)
            ahead = any(place < order[victim] for place in others)
            self.must(ahead, f"P5 {lc.id_of(victim)} makes room for nobody ahead of it")
        idle = not lc.in_flight and not lc.transfers and lc.mode == self.states.ACTIVE
        if idle and not lc.engine.pending_reset and order:
            self.must(not plan.empty, "P5 where work is left, the scheduler has something to do")

    def _touched(self) -> None:
        lc = self.lc
        for step, writes in self.writes.items():
            for write in writes:
                held = set(lc.table(write.row).tolist()) if self._same(write) else set()
                for later, holds in lc.ledger.step_holds.items():
                    if later >= step:
                        for hold in holds:
                            if hold.owner == write.request:
                                held |= set(hold.blocks.tolist())
                loose = set(write.table) - held
                self.must(not loose, f"S2 step {step} may touch {loose}, which it does not hold")
        for number in self.working:
            self.must(
                number in lc.transfers, f"S2 a worker of transfer {number} may touch what is free"
            )

    def _same(self, write: Write) -> bool:
        return self.rows.get(write.request) == write.row

    def _contents(self) -> None:
        lc = self.lc
        for row in lc.known_rows():
            table, name = lc.table(row).tolist(), lc.id_of(row)
            for place in range(int(lc.view.written[row])):
                found = self.slots[table[place // self.size]][place % self.size]
                self.must(
                    found == (self.epoch, place + 1),
                    f"S10 {name} calls token {place + 1} written; there is {found}",
                )
        keys = {
            key: place
            for row in lc.known_rows()
            for place, key in enumerate(lc.keys(row, lc.length(row) // self.size))
        }
        for block in range(self.instance.blocks):
            key = lc.ledger.index.key_of(block)
            if key is not None and key in keys:
                first = keys[key] * self.size + 1
                right = [(self.epoch, first + slot) for slot in range(self.size)]
                self.must(
                    self.slots[block] == right,
                    f"S10 block {block} is a hit for {right}; there is {self.slots[block]}",
                )
