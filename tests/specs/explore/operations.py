"""What a replayed script does to transfers, resets and modes of the engine, call by call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvproof.specs.explore import Instance

from .environment import Environment
from .tier import Tier


class NotOnTheEngineError(Exception):
    """The engine has no call for this action."""


class Refused(Exception):  # noqa: N818 - a signal
    """It does not go here."""


@dataclass(frozen=True)
class Call:
    """`admit(r0, hits=0, fresh=b0)`."""

    name: str
    subject: str
    told: dict[str, str] = field(default_factory=dict)


class Operations(Environment):
    """A method for each action of that kind, by its name."""

    def __init__(self, instance: Instance, core: Any, tier: Tier, states: Any) -> None:
        super().__init__(instance, core, states)
        self.tier = tier
        self.transfers: dict[str, int] = {}
        self.blocks: dict[str, int] = {}  # of the script -> of the engine
        self.brings: dict[int, tuple[int, tuple[int, ...]]] = {}  # load -> first place, blocks

    def _went(self, outcome: Any) -> None:
        if outcome is None or not outcome.went:
            raise Refused

    def _row(self, call: Call) -> int:
        if call.subject not in self.rows:
            raise Refused
        return self.rows[call.subject]

    def _hits(self, call: Call, row: int) -> list[int]:
        wanted = int(call.told.get("hits", 0))
        hits = list(self.lc.hits(row))[:wanted]
        if len(hits) < wanted:
            raise Refused
        return hits

    # --- transfers ------------------------------------------------------------------------------

    def _do_load(self, call: Call) -> None:
        lc, row = self.lc, self.rows.get(call.told["request"])
        if row is None:
            raise Refused
        fresh = call.told["fresh"].split("+")
        hits = self._hits(call, row)
        blocks = len(hits) + len(fresh)
        needed = -(-lc.length(row) // self.size)
        pending = bool(lc.engine.pending_reset)
        outcome, number = lc.admit_loading(
            row, hits, lc.keys(row, blocks)[len(hits) : blocks], max(needed - blocks, 0)
        )
        self._went(outcome)
        self.must(not pending, "P2 a load starts while a reset is pending")
        self.transfers[call.subject] = number
        record = lc.transfers[number]
        self.brings[number] = (record.first, tuple(record.blocks.tolist()))
        for name, block in zip(fresh, record.blocks.tolist(), strict=True):
            self.blocks[name] = block
            self.slots[block] = [None] * self.size

    def _do_join(self, call: Call) -> None:
        lc, row = self.lc, self.rows.get(call.told["request"])
        if row is None:
            raise Refused
        hits = self._hits(call, row)
        number, shared = lc.joinable_load(row, len(hits))
        if not number:
            raise Refused
        blocks = len(hits) + len(shared)
        needed = -(-lc.length(row) // self.size)
        self._went(lc.admit_joining(row, hits, number, shared, max(needed - blocks, 0)))

    def _do_store(self, call: Call) -> None:
        lc, block = self.lc, self.blocks[call.told["blocks"]]
        key = lc.ledger.index.key_of(block)
        if key is None:
            raise Refused
        pending = bool(lc.engine.pending_reset)
        number = lc.start_store([key], [block])
        if not number:
            raise Refused
        self.must(not pending, "P2 a store starts while a reset is pending")
        self.transfers[call.subject] = number

    def _signal(self, call: Call, event: int, **told: Any) -> None:
        self._went(self.lc.engine_event(self.states.EngineEvent.SIGNAL))
        number = self.transfers.get(call.subject, 0)
        states = self.states
        record = self.lc.transfers.get(number)
        before = None if record is None else record.state
        if event == states.BEGIN and record is not None:
            self.working.add(number)
        if event in (states.LAND, states.FAIL, states.FENCE):
            self.working.discard(number)
            first, blocks = self.brings.get(number, (0, ()))
            valid = len(blocks) if event == states.LAND else int(told.get("valid_blocks", 0))
            for place, block in enumerate(blocks if event != states.FENCE else ()):
                for slot in range(self.size if place < valid else 0):
                    position = (first + place) * self.size + slot + 1
                    self.slots[block][slot] = (self.epoch, position)
        self._went(self.lc.transfer(number, event, **told))
        if event == states.LEASE_OVER and record is not None:
            self.must(record.state != before, "P2 a lease that is over moves its transfer")

    def _do_begin(self, call: Call) -> None:
        self._signal(call, self.states.BEGIN)

    def _do_land(self, call: Call) -> None:
        self._signal(call, self.states.LAND)

    def _do_fail(self, call: Call) -> None:
        number = self.transfers.get(call.subject, 0)
        first, _ = self.brings.get(number, (0, ()))
        valid = max(0, int(call.told["valid"]) - first)
        self._signal(call, self.states.FAIL, valid_blocks=valid)

    def _do_fence(self, call: Call) -> None:
        self._signal(call, self.states.FENCE)

    def _do_wrong_late_fence(self, call: Call) -> None:
        """A fence is confirmed for a transfer that has ended already."""
        number = self.transfers[call.subject]
        before, ended = self._everything(), self.lc.ended_transfers[number].state
        self._went(self.lc.transfer(number, self.states.FENCE))
        same = self.lc.ended_transfers[number].state == ended and self._everything() == before
        self.must(same, "S3 a late fence changes nothing")

    def _do_give_up(self, call: Call) -> None:
        self._signal(call, self.states.GIVE_UP)

    def _do_lease_over(self, call: Call) -> None:
        self._signal(call, self.states.LEASE_OVER, expired=True)

    def _do_retire(self, call: Call) -> None:
        """The engine retires what has ended by itself."""

    def _do_lose(self, call: Call) -> None:
        """Nothing is ever reported of it."""

    # --- resets ---------------------------------------------------------------------------------

    def _do_reset(self, call: Call) -> None:
        self._reset(call.told["force"] == "True", refused=False)

    def _do_reset_refused(self, call: Call) -> None:
        self._reset(call.told["force"] == "True", refused=True)

    def _reset(self, force: bool, *, refused: bool) -> bool:
        """The client's own call, for the tier as well. Returns whether the reset was done.

        Raises Refused if it was done although the script says `refused`, or the other way round.
        """
        lc = self.lc
        if lc.in_flight:
            raise Refused
        before, refusing, cleared = self._everything(), lc.refusing(force), self.tier.cleared
        result = self.core.reset_prefix_cache(force, reset_connector=True).result(timeout=0)
        if result.success:
            self.must(not refusing, "S6 a reset is done although somebody refuses it")
            self.must(not len(lc.ledger.index), "S7 after a reset no block is a hit")
            self.must(self.tier.cleared > cleared, "S7 after a reset the tier has no entry")
        else:
            self.must(self._everything() == before, "S6 a refused reset changes nothing")
            self.must(self.tier.cleared == cleared, "S6 a refused reset leaves the tier alone")
            self.must(not result.tiers, "S6 a refused reset drops no prefix")
            kinds = {holder.kind for holder in result.holders}
            named = bool(kinds & {"LOAD", "STORE"})
            self.must(named or not force, "P1 a refused forced reset has a transfer to name")
        if result.success == refused and not self.complaints:
            raise Refused
        return bool(result.success)

    def _everything(self) -> object:
        lc = self.lc
        return (
            lc.engine.as_dict(),
            {row: lc.view.facts(row) for row in lc.known_rows()},
            lc.view.tables.tolist(), lc.ledger.counts.tolist(),
            [lc.ledger.index.key_of(block) for block in range(self.instance.blocks)],
        )  # fmt: skip

    def _do_ask_reset(self, call: Call) -> None:
        if not self.lc.refusing(True):
            raise Refused
        self._went(self.lc.engine_event(self.states.RESET_PENDING))

    def _do_try_reset(self, call: Call) -> None:
        if not self.lc.engine.pending_reset:
            raise Refused

    def _do_decide_reset(self, call: Call) -> None:
        if self.lc.in_flight:
            raise Refused
        if not self.lc.refusing(True):
            self._reset(True, refused=False)
            self._went(self.lc.engine_event(self.states.RESET_DECIDED))

    def _do_withdraw_reset(self, call: Call) -> None:
        self._went(self.lc.engine_event(self.states.RESET_DECIDED))

    def _do_evict(self, call: Call) -> None:
        """The engine evicts for room only; all that can be is the one of the script, or none."""
        block = self.blocks.get(call.subject, -1)
        index = self.lc.ledger.index
        cached = [b for b in range(self.instance.blocks) if index.is_cached(b)]
        if cached != [block]:
            raise NotOnTheEngineError("evict one of several")
        held = int(self.lc.ledger.counts[block]) > 0
        self.lc.forget_prefixes()
        self.must(not held or index.is_cached(block), "S2 what loses its prefix nobody holds")

    # --- modes ----------------------------------------------------------------------------------

    def _mode(self, event: str, **told: int) -> None:
        self._went(self.lc.engine_event(getattr(self.states.EngineEvent, event), **told))
        e, states = self.lc.engine, self.states
        if event.endswith("_FAILED") and e.mode == states.ACTIVE:
            idle = not e.pausing and not e.sleep_paused and not e.sleep_level
            self.must(idle, "S8 an engine that is active is awake and has no pause")

    def _do_pause(self, call: Call) -> None:
        self._mode("PAUSE", pausing=("abort", "wait", "keep").index(call.told["mode"]) + 1)

    def _do_resume(self, call: Call) -> None:
        self._mode("RESUME")

    def _do_pause_failed(self, call: Call) -> None:
        self._mode("PAUSE_FAILED")

    def _do_pause_reached(self, call: Call) -> None:
        running = len(self.lc.running)
        preempted = sum(self.lc.state_of(row) == self.states.PREEMPTED for row in self.lc.waiting)
        self._mode("PAUSE_REACHED", running=running + preempted)

    def _do_sleep(self, call: Call) -> None:
        lc = self.lc
        refusing = lc.refusing(True)
        if lc.mode == self.states.PAUSED and not refusing and not lc.engine.quarantined:
            lc.let_go_of_all()
        self._sleep(int(call.told["level"]))

    def _do_sleep_at_once(self, call: Call) -> None:
        if self.lc.mode != self.states.PAUSED:
            raise Refused
        self._sleep(int(call.told["level"]))
        self.lc.forget_prefixes()

    def _sleep(self, level: int) -> None:
        transfers = sum(h.kind in ("LOAD", "STORE") for h in self.lc.refusing(True))
        held = int(self.lc.ledger.counts.sum())
        self._mode("SLEEP", level=level, pausing=3, holders=transfers, holds=held)
        if self.lc.mode == self.states.SLEEPING:
            self.must(not held, "S8 memory is given back although it is held")

    def _do_sleep_failed(self, call: Call) -> None:
        self._mode("SLEEP_FAILED")

    def _do_wake(self, call: Call) -> None:
        self._mode("WAKE", tags=3)

    def _do_woke(self, call: Call) -> None:
        self._mode("WOKE", tags=int(call.told["tags"]))

    def _do_wake_failed(self, call: Call) -> None:
        self._mode("WAKE_FAILED")

    def _do_wrong_step(self, call: Call) -> None:
        self._mode("LAUNCH_STEP")
        e = self.lc.engine
        self.must(
            bool(e.weights_resident and e.cache_resident), "S8 a step runs without its memory"
        )

    def _do_weights_changed(self, call: Call) -> None:
        lc = self.lc
        before = lc.hasher.chain(b"", lc.engine.epoch).root
        self._mode("WEIGHTS_CHANGED", holds=lc.holds_left())
        self.epoch += 1
        after = lc.hasher.chain(b"", lc.engine.epoch).root
        self.must(before != after, "S7 after weights_changed keys are as they were")

    def _do_shutdown(self, call: Call) -> None:
        self._mode("SHUTDOWN")

    def _do_drained(self, call: Call) -> None:
        self._mode("DRAINED", live=self.lc.live, holds=self.lc.holds_left())
