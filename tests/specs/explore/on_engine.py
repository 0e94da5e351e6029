"""A script of the explorer replayed on the engine's own lifecycle, its pool, index and ledger.

Each action is the engine's own call. Beside it stands what the environment really does: which
blocks a launched step or a worker may still touch, and which token's KV is in which slot. What
the engine says of itself (`check`, and every lane replayed by its events) and what the environment
knows must agree after each action.

An action that the engine refuses ends the replay: the script cannot happen there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from kvproof.specs.check.declaration import Declaration
from kvproof.specs.explore import Feature, Instance

from .engine_copy import engine_copy
from .environment import Environment, Write


class NotOnTheEngineError(Exception):
    """The engine has no call for this action."""


@dataclass(frozen=True)
class Replay:
    """What came of a script: what was wrong, and how many of its actions the engine did."""

    complaints: tuple[str, ...]
    done: int


def replay_on_engine(instance: Instance, labels: Sequence[str], declaration: Declaration) -> Replay:
    """Carry a script out until something is wrong, or refused, or its end.

    Raises NotOnTheEngineError for an action that the engine has no call for.
    """
    engine = _Engine(instance, declaration)
    calls = [_parsed(label) for label in labels]
    position = 0
    while position < len(calls):
        try:
            position += engine.do(calls, position)
        except _Refused:
            break
        except NotOnTheEngineError:
            raise
        except engine.refused_error:
            break
        except Exception as error:
            engine.complaints.append(f"the engine raises {type(error).__name__}: {error}")
        if not engine.complaints:
            engine.look()
        if engine.complaints:
            break
    return Replay(tuple(engine.complaints), position)


class _Refused(Exception):  # noqa: N818 - a signal
    """It does not go here."""


@dataclass(frozen=True)
class Call:
    """`admit(r0, hits=0, fresh=b0)`."""

    name: str
    subject: str
    told: dict[str, str] = field(default_factory=dict)


def _parsed(label: str) -> Call:
    found = re.fullmatch(r"(\w+)\((\w+)(.*)\)", label)
    assert found is not None, label
    told = dict(part.strip().split("=") for part in found[3].split(",") if part.strip())
    return Call(found[1], found[2], told)


class _Engine(Environment):
    """One engine: for each action of the explorer its own call."""

    def __init__(self, instance: Instance, declaration: Declaration) -> None:
        copy = engine_copy(declaration)
        self.states, self.policy = copy.states, copy.policy
        self.refused_error = copy.errors.RefusedError
        fatal = instance.has(Feature.FATAL)
        lifecycle = copy.lifecycle.Lifecycle(
            copy.api.EngineConfig(
                num_blocks=instance.blocks,
                block_size=instance.block_size,
                max_model_len=instance.model_length,
                steps_in_flight=instance.steps_ahead,
                loads_limit=instance.loads_limit,
                load_failure_policy="fail" if fatal else "recompute",
                policy="priority" if instance.has(Feature.POLICY) else "fcfs",
                check=True,
            )
        )
        self.stop_of = copy.lifecycle.Stop
        super().__init__(instance, lifecycle)
        self.transfers: dict[str, int] = {}
        self.blocks: dict[str, int] = {}  # of the script -> of the engine
        self.brings: dict[int, tuple[int, tuple[int, ...]]] = {}  # load -> first place, blocks

    # --- one action -----------------------------------------------------------------------------

    def do(self, calls: Sequence[Call], position: int) -> int:
        """Carry out the action there; returns how many actions of the script that was."""
        call = calls[position]
        following = calls[position + 1 :]
        if call.name == "launch":
            joined = list(_while(following, "launch_with"))
            self._launch([call, *joined])
            return 1 + len(joined)
        if call.name == "process":
            settled = list(_while(following, "settle"))
            self._settle(settled)
            return 1 + len(settled)
        method = getattr(self, f"_do_{call.name}", None)
        if method is None:
            raise NotOnTheEngineError(call.name)
        method(call)
        for unwaited in self.lc.take_unwaited():
            self.lc.transfer(unwaited, self.states.CANCEL)
        return 1

    def _went(self, outcome: Any) -> None:
        if outcome is None or not outcome.went:
            raise _Refused

    def _row(self, call: Call) -> int:
        if call.subject not in self.rows:
            raise _Refused
        return self.rows[call.subject]

    def _tokens(self, count: int, first: int = 0) -> Any:
        return np.arange(first + 1, first + count + 1, dtype=np.int32)

    # --- clients --------------------------------------------------------------------------------

    def _do_add(self, call: Call) -> None:
        self._went(self.lc.engine_event(self.states.EngineEvent.ADD))
        self.rows[call.subject] = self.lc.add(
            call.subject,
            self._tokens(self.instance.prompt),
            resumable=call.told.get("resumable") == "True",
            grammar=call.told.get("grammar") == "True",
            priority=int(call.told.get("priority", 0)),
        )

    def _do_chunk(self, call: Call) -> None:
        self._went(self.lc.engine_event(self.states.EngineEvent.CHUNK))
        row = self._row(call)
        view = self.lc.view
        first = self.lc.length(row) + int(view.queued_tokens[row])
        was_open = bool(view.input_open[row])
        self._went(self.lc.chunk(row, self._tokens(self.instance.chunk, first)))
        self.must(was_open, "a chunk is taken although the input is closed")

    def _do_wrong_chunk_closed(self, call: Call) -> None:
        self._do_chunk(call)

    def _do_close_input(self, call: Call) -> None:
        self._went(self.lc.close_input(self._row(call)))

    def _do_abort(self, call: Call) -> None:
        self._went(self.lc.abort(self._row(call)))

    # --- the scheduler --------------------------------------------------------------------------

    def _hits(self, call: Call, row: int) -> list[int]:
        wanted = int(call.told.get("hits", 0))
        hits = list(self.lc.hits(row))[:wanted]
        if len(hits) < wanted:
            raise _Refused
        return hits

    def _do_admit(self, call: Call) -> None:
        row, fresh = self._row(call), call.told.get("fresh")
        held = int(self.lc.view.covered[row])
        self._went(self.lc.admit(row, self._hits(call, row), 0 if fresh is None else 1))
        self.must(int(self.lc.view.covered[row]) >= held, "an admission lets go")
        if fresh is not None:
            self._named(fresh, row)

    def _do_grow(self, call: Call) -> None:
        row = self._row(call)
        self._went(self.lc.grow(row, 1))
        self._named(call.told["fresh"], row)

    def _named(self, fresh: str, row: int) -> None:
        """The script's name for the block that came last into a table; its content is gone."""
        table = self.lc.table(row)
        if len(table):
            self.blocks[fresh] = int(table[-1])
            self.slots[int(table[-1])] = [None] * self.size

    def _do_trim(self, call: Call) -> None:
        row = self._row(call)
        self._went(self.lc.trim(row, int(self.lc.view.covered[row]) - 1))

    def _do_preempt(self, call: Call) -> None:
        self._went(self.lc.preempt(self._row(call), allowed=True))

    def _do_reclaim(self, call: Call) -> None:
        row = self._row(call)
        kept = self._input(row)
        state = self.lc.state_of(row)
        self._went(self.lc.reclaim(row))
        self.must(self._input(row) == kept, "P3 a reclaimed request keeps its tokens and input")
        self.must(self.lc.state_of(row) == state, "P3 a reclaimed request stays where it was")
        self.must(not self.lc.view.covered[row], "P3 a reclaimed request is no holder any more")

    def _input(self, row: int) -> tuple[int, ...]:
        names = ("prompt", "delivered", "turn_start", "queued_chunks", "queued_tokens")
        return tuple(int(getattr(self.lc.view, name)[row]) for name in names)

    def _do_error(self, call: Call) -> None:
        self._went(self.lc.error(self._row(call)))

    def _do_deadline(self, call: Call) -> None:
        self._went(self.lc.deadline(self._row(call)))

    def _do_grammar_ready(self, call: Call) -> None:
        self._went(self.lc.grammar_ready(self._row(call)))

    def _do_grammar_failed(self, call: Call) -> None:
        self._went(self.lc.grammar_failed(self._row(call)))

    def _do_forget(self, call: Call) -> None:
        row = self._row(call)
        stepping = any(
            hold.owner == call.subject
            for held in self.lc.ledger.step_holds.values()
            for hold in held
        )
        self._went(self.lc.forget(row, idle=not stepping and not self.lc.view.waits_for[row]))
        del self.rows[call.subject]

    # --- steps ----------------------------------------------------------------------------------

    def _launch(self, calls: Sequence[Call]) -> None:
        lc = self.lc
        rows = np.array([self._row(call) for call in calls], dtype=np.int64)
        if any(lc.state_of(int(row)) != self.states.RUNNING for row in rows):
            raise _Refused
        left = lc.view.target[rows] - lc.view.computed[rows]
        told = [call.told.get("tokens") for call in calls]
        tokens = np.array([int(t or n) for t, n in zip(told, left, strict=True)], dtype=np.int64)
        ends = lc.view.computed[rows] + tokens
        if (tokens < 1).any() or (ends > lc.view.covered[rows] * self.size).any():
            raise _Refused
        writes = [
            Write(
                int(row), call.subject, tuple(lc.table(int(row)).tolist()), int(end - n), int(end)
            )
            for row, call, n, end in zip(rows, calls, tokens, ends, strict=True)
        ]
        launched = lc.launch(rows, tokens, np.zeros(len(rows), dtype=np.int64))
        if launched is None:
            raise _Refused
        self.writes[launched.step] = writes
        for write in writes:
            for place in range(write.start, write.end):
                self.slots[write.table[place // self.size]][place % self.size] = None

    def _settle(self, calls: Sequence[Call]) -> None:
        lc = self.lc
        if not lc.steps_in_flight:
            raise _Refused
        launched = lc.steps_in_flight[0]
        # The device has written, whatever has become of the requests meanwhile.
        for write in self.writes.pop(launched.step):
            for place in range(write.start, write.end):
                block = write.table[place // self.size]
                self.slots[block][place % self.size] = (self.epoch, place + 1)
        sampled = np.where(launched.samples, launched.ends + 1, -1).astype(np.int32)
        stopping = {self.rows[call.subject] for call in calls if "stop" in call.told}
        delivered = {int(row): int(lc.view.delivered[row]) for row in launched.rows}

        def judge(rows: Any, tokens: Any, lengths: Any, limits: Any) -> Iterator[Any]:
            for row, length in zip(rows.tolist(), lengths.tolist(), strict=True):
                at_limit = length >= lc.longest
                if at_limit or row in stopping:
                    capped, stopped = (
                        self.states.FINISHED_LENGTH_CAPPED, self.states.FINISHED_STOPPED,
                    )  # fmt: skip
                    yield self.stop_of(row, capped if at_limit else stopped, at_limit)

        lc.settle(launched.step, sampled, judge=judge)
        for row, count in delivered.items():
            self.must(int(lc.view.delivered[row]) >= count, "delivered tokens are taken back")

    # --- transfers ------------------------------------------------------------------------------

    def _do_load(self, call: Call) -> None:
        lc, row = self.lc, self.rows.get(call.told["request"])
        if row is None:
            raise _Refused
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
            raise _Refused
        hits = self._hits(call, row)
        number, shared = lc.joinable_load(row, len(hits))
        if not number:
            raise _Refused
        blocks = len(hits) + len(shared)
        needed = -(-lc.length(row) // self.size)
        self._went(lc.admit_joining(row, hits, number, shared, max(needed - blocks, 0)))

    def _do_store(self, call: Call) -> None:
        lc, block = self.lc, self.blocks[call.told["blocks"]]
        key = lc.ledger.index.key_of(block)
        if key is None:
            raise _Refused
        pending = bool(lc.engine.pending_reset)
        number = lc.start_store([key], [block])
        if not number:
            raise _Refused
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
        lc = self.lc
        if lc.in_flight:
            raise _Refused
        before, refusing = self._everything(), lc.refusing(force)
        decision = lc.reset(force)
        if decision.done:
            self.must(not refusing, "S6 a reset is done although somebody refuses it")
            self.must(not len(lc.ledger.index), "S7 after a reset no block is a hit")
        else:
            self.must(self._everything() == before, "S6 a refused reset changes nothing")
            kinds = {holder.kind for holder in decision.refused_by}
            named = bool(kinds & {"LOAD", "STORE"})
            self.must(named or not force, "P1 a refused forced reset has a transfer to name")
        if decision.done == refused and not self.complaints:
            raise _Refused
        return bool(decision.done)

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
            raise _Refused
        self._went(self.lc.engine_event(self.states.RESET_PENDING))

    def _do_try_reset(self, call: Call) -> None:
        if not self.lc.engine.pending_reset:
            raise _Refused

    def _do_decide_reset(self, call: Call) -> None:
        if self.lc.in_flight:
            raise _Refused
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
        self.lc.ledger.drop_cached()
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
            raise _Refused
        self._sleep(int(call.told["level"]))
        self.lc.ledger.drop_cached()

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


def _while(calls: Sequence[Call], name: str) -> Iterator[Call]:
    for call in calls:
        if call.name != name:
            return
        yield call
