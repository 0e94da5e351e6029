"""Who runs in the next step: `plan` reads and decides, `carry_out` lets the lifecycle do it.

    plan       running requests first, in the policy's order, each as many tokens as the budget
               leaves; then waiting ones, as long as blocks, budget and places last
    carry_out  errors, reclaims, victims, loads, admissions, launch

Where a block is short, the plan looks for someone who must make room for the one that lacks it:
parked sessions first, then resident waiting requests behind it, then running ones behind it, the
last first. It names nobody unless that is enough.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import numpy as np

from ..statemachine.facts import EngineFacts
from ..statemachine.gates import finishes_work, starts_work
from ..statemachine.lanes import in_flight, length, must_grow
from ..statemachine.policy import (
    ahead,
    leaves_room_to_grow,
    makes_way_for_waiting,
    may_be_victim,
    must_reclaim_held_back,
    must_reclaim_parked,
    must_reclaim_waiting,
    never_fits,
)
from ..statemachine.states import PREEMPTED
from .columns import Int64Array, every, some
from .lifecycle import Lifecycle
from .outcome import Outcome
from .plan import NO_ROWS, Admission, CarriedOut, Loading, Plan, Steady
from .room import Room
from .transfers.manager import RemotePrefix

#: (blocks free, blocks needed) -> whether a holder must give its blocks up.
GivesWay = Callable[[int, int], bool]


class Loads(Protocol):
    """The part of the transfer manager that the scheduler needs."""

    def remote_prefix(self, row: int, hits: int) -> RemotePrefix | None:
        """What can be loaded for the request in `row` behind `hits` device blocks. Reads only."""

    def admit(self, row: int, hits: Int64Array, remote: RemotePrefix, reserve: int) -> Outcome:
        """Let it wait for its load."""


class Scheduler:
    """FCFS or priority, chunked prefill under a token budget, preemption by recomputing."""

    def __init__(self, lifecycle: Lifecycle, loads: Loads | None = None) -> None:
        self._lifecycle = lifecycle
        self._loads = loads
        self._most_running = lifecycle.config.max_num_seqs
        self._steady: Steady | None = None

    # --- planning -------------------------------------------------------------------------------

    def plan(self, budget: int) -> Plan:
        """The next step, of at most `budget` tokens. Reads only."""
        lifecycle = self._lifecycle
        plan = Plan()
        engine = lifecycle.engine
        if not finishes_work(engine) or not (engine.weights_resident and engine.cache_resident):
            return plan
        steady, rows = self._steady, lifecycle.running.array
        if steady is not None and steady.holds_for(lifecycle, rows, budget):
            plan.rows, plan.tokens, plan.new_blocks = rows, steady.ones, steady.zeros
            if lifecycle.config.check:
                self._check_steady(plan, budget, engine)
            if not len(lifecycle.waiting):
                return plan
            room, budget = Room(lifecycle), budget - len(rows)
        else:
            room = Room(lifecycle)
            if len(rows):
                budget = self._plan_running(plan, room, budget, engine)
        if len(lifecycle.waiting) and not plan.victims:
            self._plan_waiting(plan, room, budget, engine)
        return plan

    def _plan_running(self, plan: Plan, room: Room, budget: int, engine: EngineFacts) -> int:
        """Every running request computes what it has not computed yet, within the budget."""
        lifecycle = self._lifecycle
        rows = lifecycle.running.array
        view = lifecycle.view
        target, limit, computed = view.target[rows], view.limit[rows], view.computed[rows]
        covered = view.covered[rows]
        tokens = target - computed
        if engine.quarantined:
            # Who needs more than the pool has left will never run again, even alone.
            longest = lifecycle.longest
            known = length(view.prompt[rows], view.delivered[rows])
            over = (target >= longest) & (target < limit) & (target == known)
            for row in rows[over].tolist():
                self._plan_error(plan, room, row)
            limit = np.minimum(limit, longest)
        # A step beyond the turn's end would compute what is thrown away.
        going = (tokens > 0) & (target < limit)
        all_go = every(going)
        if not all_go:
            rows, tokens = rows[going], tokens[going]
            computed, covered = computed[going], covered[going]
        total: int = sum(tokens.tolist())
        if total > budget:
            before = np.cumsum(tokens) - tokens
            tokens = np.clip(budget - before, 0, tokens)
            going = tokens > 0
            rows, tokens = rows[going], tokens[going]
            computed, covered = computed[going], covered[going]
            total = budget
            all_go = False
        size = engine.block_size
        growing = must_grow(computed, tokens, covered, size)
        new_blocks: Int64Array = growing.astype(np.int64)  # enough for one token more
        grows = some(growing)
        if grows:
            if total != len(rows):
                new_blocks *= -(-(computed + tokens) // size) - covered
            lacking = sum(new_blocks.tolist())
            if lacking > room.free:
                rows, tokens, new_blocks = self._make_room_to_grow(
                    plan, room, rows, computed + tokens, tokens, new_blocks, engine
                )
                total = int(tokens.sum())
                all_go = False
            else:
                room.free -= lacking
        plan.rows, plan.tokens, plan.new_blocks = rows, tokens, new_blocks
        self._steady = None
        if all_go and total == len(rows) and not engine.quarantined:
            room_left = np.minimum((covered + new_blocks) * size - target, limit - 1 - target)
            self._steady = Steady(lifecycle, rows, tokens, min(room_left.tolist()), grows)
        return budget - total

    def _check_steady(self, plan: Plan, budget: int, engine: EngineFacts) -> None:
        """What is taken from the last plan must be what a new one would say."""
        steady, fresh = self._steady, Plan()
        self._plan_running(fresh, Room(self._lifecycle), budget, engine)
        self._steady = steady
        for name in ("rows", "tokens", "new_blocks"):
            assert np.array_equal(getattr(plan, name), getattr(fresh, name)), name
        assert [fresh.victims, fresh.stalled, fresh.errors, fresh.reclaims] == [[]] * 4

    def _make_room_to_grow(
        self,
        plan: Plan,
        room: Room,
        rows: Int64Array,
        ends: Int64Array,
        tokens: Int64Array,
        new_blocks: Int64Array,
        engine: EngineFacts,
    ) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Blocks are short: go through the running requests in order, one by one."""
        kept = []
        gone = set[int]()
        for place, row in enumerate(rows.tolist()):
            if row in gone:
                continue
            needed = int(new_blocks[place])
            if never_fits(
                int(ends[place]), engine.pool_blocks, engine.quarantined, engine.block_size
            ):
                self._plan_error(plan, room, row)
                continue
            if needed > room.free:
                behind = (victim for victim in self._behind(row, plan) if victim not in gone)
                victims = self._sacrifice(plan, room, row, _always(needed), behind)
                gone.update(victims)
            if needed > room.free:
                plan.stalled.append(row)
                continue
            room.free -= needed
            kept.append(place)
        return rows[kept], tokens[kept], new_blocks[kept]

    def _plan_error(self, plan: Plan, room: Room, row: int) -> None:
        """End a request that can never go on.

        Errors are carried out before all else: it is nobody's victim, and what it has is room.
        """
        plan.errors.append(row)
        if self._lifecycle.view.covered[row]:
            room.let_go(row)

    def _behind(self, row: int, plan: Plan) -> Iterator[int]:
        """The running requests that may be victims of `row`, the last in order first."""
        view = self._lifecycle.view
        priority, arrival = int(view.priority[row]), int(view.arrival[row])
        for victim in self._lifecycle.running.array[::-1].tolist():
            if not may_be_victim(
                int(view.priority[victim]), int(view.arrival[victim]), priority, arrival
            ):
                return
            if victim not in plan.errors:
                yield victim

    def _sacrifice(
        self,
        plan: Plan,
        room: Room,
        row: int,
        needed: Callable[[Room], int],
        victims: Iterable[int],
    ) -> list[int]:
        """Name who makes room for `row`, or nobody if all of them together are too few.

        Returns the victims named. Afterwards `room.free` may still be short: what launched steps
        touch comes back when they are processed, and is waited for.
        """
        trial = room.copy()
        trial.look_at_steps()
        if self._lifecycle.parked_blocks:
            # As long as it is not enough, it is asked again in every step: all parked at once.
            tried, victims = itertools.tee(victims)
            bound = trial.copy()
            bound.let_go_of_parked(plan.reclaims)
            if self._collect(bound, needed, self._reclaimable_waiting(row, plan), tried) is None:
                if self._lifecycle.config.check:
                    asked = self._collect(trial, needed, self._reclaimable(row, plan), victims)
                    assert asked is None, "one by one they are enough, and all at once they are not"
                return []
        found = self._collect(trial, needed, self._reclaimable(row, plan), victims)
        if found is None:
            return []
        reclaims, preempted = found
        room.become(trial)
        plan.reclaims += reclaims
        plan.victims += preempted
        for victim in preempted:
            self._drop_from_step(plan, room, victim)
        return preempted

    def _collect(
        self,
        trial: Room,
        needed: Callable[[Room], int],
        reclaimable: Iterable[tuple[int, GivesWay]],
        victims: Iterable[int],
    ) -> tuple[list[int], list[int]] | None:
        """Let go of one after the other until it is enough: (reclaimed, preempted), or None."""
        reclaims: list[int] = []
        preempted: list[int] = []
        for candidate, gives_way in reclaimable:
            lacking = needed(trial)
            if trial.enough(lacking):
                break
            if gives_way(trial.free, lacking):
                trial.let_go(candidate)
                reclaims.append(candidate)
        for candidate in victims:
            if trial.enough(needed(trial)):
                break
            trial.let_go(candidate)
            preempted.append(candidate)
        return (reclaims, preempted) if trial.enough(needed(trial)) else None

    def _reclaimable(self, row: int, plan: Plan) -> Iterator[tuple[int, GivesWay]]:
        """Who holds blocks without running, and when each must give them up to `row`.

        Parked sessions first, then waiting requests, the last in order first.
        """
        lifecycle = self._lifecycle
        for parked in lifecycle.parked_blocks:
            if parked not in plan.reclaims:
                yield parked, must_reclaim_parked
        yield from self._reclaimable_waiting(row, plan)

    def _reclaimable_waiting(self, row: int, plan: Plan) -> Iterator[tuple[int, GivesWay]]:
        """The resident waiting requests among them."""
        lifecycle, view = self._lifecycle, self._lifecycle.view
        waiting = lifecycle.waiting.array
        if not waiting.size:
            return
        waiting = waiting[view.covered[waiting] > 0][::-1]
        planned = {start.row for start in plan.starts}
        held_back = not starts_work(lifecycle.engine)
        for other in waiting.tolist():
            if other not in planned and other not in plan.reclaims:
                yield other, must_reclaim_held_back if held_back else self._gives_way(other, row)

    def _gives_way(self, other: int, row: int) -> GivesWay:
        """When a waiting request, `other`, must give its blocks up to `row`."""
        view = self._lifecycle.view
        order = (view.priority[other], view.arrival[other], view.priority[row], view.arrival[row])
        return lambda free, needed: must_reclaim_waiting(free, needed, *order)

    def _plan_waiting(self, plan: Plan, room: Room, budget: int, engine: EngineFacts) -> None:
        """Admit in the policy's order; who does not fit holds back those behind it."""
        lifecycle, view = self._lifecycle, self._lifecycle.view
        places = self._most_running - len(lifecycle.running)
        works = starts_work(engine)
        for row in self._admissible(plan, engine):
            resident = view.covered[row] > 0
            if row in plan.reclaims:
                return  # it has just made room for somebody ahead of it
            if not resident and in_flight(view.newest_step[row], engine.processed):
                return
            if never_fits(
                lifecycle.length(row), engine.pool_blocks, engine.quarantined, engine.block_size
            ):
                self._plan_error(plan, room, row)
                continue
            if plan.stalled and not self._is_ahead(row, plan.stalled[0]):
                return
            if budget <= 0:
                return
            hits = NO_ROWS
            if not resident:
                hits = np.array(room.surviving(lifecycle.hits(row)), dtype=np.int64)
            remote = None
            if self._loads is not None and works and not resident and not engine.pending_reset:
                remote = self._loads.remote_prefix(row, len(hits))
            if remote is not None:
                if not self._plan_load(plan, room, row, hits, remote) or plan.victims:
                    return
                continue
            if places <= 0 and not self._takes_a_place(plan, room, row):
                return
            tokens = self._plan_admission(plan, room, row, hits, budget)
            if not tokens:
                return
            budget -= tokens
            places -= 1
            if plan.stalled or plan.victims:
                return

    def _admissible(self, plan: Plan, engine: EngineFacts) -> Iterable[int]:
        """The waiting requests that the mode and a pending reset let in, in the policy's order.

        All that are held back at once: there may be thousands, and they stay for many steps.
        """
        waiting, view = self._lifecycle.waiting, self._lifecycle.view
        if starts_work(engine) and not engine.pending_reset:
            return waiting
        rows = waiting.array
        goes = np.ones(len(rows), dtype=np.bool_)
        if not starts_work(engine):
            goes &= view.state[rows] == PREEMPTED
        if engine.pending_reset:
            goes &= view.covered[rows] > 0
        # Who has made room for a running request ends the queue, held back or not.
        goes |= np.isin(rows, plan.reclaims)
        admissible: list[int] = rows[goes].tolist()
        return admissible

    def _plan_load(
        self, plan: Plan, room: Room, row: int, hits: Int64Array, remote: RemotePrefix
    ) -> bool:
        lifecycle = self._lifecycle
        fresh = len(remote.keys)
        reserve = self._blocks(row) - len(hits) - remote.length

        def needed(in_room: Room) -> int:
            return in_room.fresh(hits, fresh) + reserve

        lacking = needed(room)
        if lacking > room.free:
            self._sacrifice(plan, room, row, needed, self._weaker(row, plan))
            lacking = needed(room)
        running = len(lifecycle.running) - len(plan.victims)
        if not leaves_room_to_grow(room.free, lacking, running):
            return False
        room.take(hits, fresh, lacking - reserve, reserve)
        assert not lifecycle.view.reserved[row]
        plan.starts.append(Loading(row, hits, remote, reserve))
        return True

    def _plan_admission(
        self, plan: Plan, room: Room, row: int, hits: Int64Array, budget: int
    ) -> int:
        """Room for all of its known tokens, or nothing. Returns the tokens of its first step."""
        view = self._lifecycle.view
        covered = int(view.covered[row])
        reserved = int(view.reserved[row])
        new = self._blocks(row) - covered - len(hits)

        def needed(in_room: Room) -> int:
            return in_room.fresh(hits, new) - reserved

        lacking = needed(room)
        if lacking > room.free:
            self._sacrifice(plan, room, row, needed, self._weaker(row, plan))
            lacking = needed(room)
        if lacking > room.free:
            return 0
        room.free += reserved
        room.take(hits, new, lacking + reserved)
        start = int(view.computed[row]) if covered else len(hits) * self._lifecycle.block_size
        tokens = min(self._lifecycle.length(row) - start, budget)
        plan.starts.append(Admission(row, hits, new, tokens))
        return tokens

    def _blocks(self, row: int) -> int:
        """Blocks for all known tokens of the request."""
        return -(-self._lifecycle.length(row) // self._lifecycle.block_size)

    def _weaker(self, row: int, plan: Plan) -> Iterator[int]:
        """Who runs and makes way for a waiting request, the last in order first."""
        view = self._lifecycle.view
        order = int(view.priority[row]), int(view.arrival[row])
        for victim in self._behind(row, plan):
            if victim not in plan.victims and makes_way_for_waiting(
                int(view.priority[victim]),
                int(view.arrival[victim]),
                victim in plan.stalled,
                *order,
            ):
                yield victim

    def _takes_a_place(self, plan: Plan, room: Room, row: int) -> bool:
        """All places are taken: whether one of a weaker request becomes free, by preemption."""
        victim = next(self._weaker(row, plan), None)
        if victim is None:
            return False
        self._drop_from_step(plan, room, victim)
        room.let_go(victim)
        plan.victims.append(victim)
        return True

    def _drop_from_step(self, plan: Plan, room: Room, victim: int) -> None:
        keep = plan.rows != victim
        room.free += int(plan.new_blocks[~keep].sum())  # its growth is called off
        plan.rows, plan.tokens = plan.rows[keep], plan.tokens[keep]
        plan.new_blocks = plan.new_blocks[keep]

    def _is_ahead(self, row: int, other: int) -> bool:
        view = self._lifecycle.view
        return bool(
            ahead(view.priority[row], view.arrival[row], view.priority[other], view.arrival[other])
        )

    # --- carrying out ---------------------------------------------------------------------------

    def carry_out(self, plan: Plan) -> CarriedOut:
        """Do what the plan says, through the lifecycle, and launch the step."""
        lifecycle = self._lifecycle
        for row in plan.errors:
            lifecycle.error(row)
        for row in plan.reclaims:
            lifecycle.reclaim(row)
        for row in plan.victims:
            lifecycle.preempt(row, allowed=True)
        admitted: list[Admission] = []
        loading: list[Loading] = []
        for start in plan.starts:
            if isinstance(start, Admission):
                if lifecycle.admit(start.row, start.hits, start.new).went:
                    admitted.append(start)
            else:
                assert self._loads is not None
                if self._loads.admit(start.row, start.hits, start.remote, start.reserve).went:
                    loading.append(start)
        rows, tokens, new_blocks = plan.rows, plan.tokens, plan.new_blocks
        if admitted:
            rows = np.concatenate([rows, [admission.row for admission in admitted]])
            tokens = np.concatenate([tokens, [admission.tokens for admission in admitted]])
            new_blocks = np.concatenate([new_blocks, np.zeros(len(admitted), dtype=np.int64)])
        launched = lifecycle.launch(rows, tokens, new_blocks) if rows.size else None
        return CarriedOut(
            launched,
            tuple(admitted),
            tuple(loading),
            tuple(plan.errors),
            tuple(plan.victims),
        )


def _always(needed: int) -> Callable[[Room], int]:
    return lambda room: needed
