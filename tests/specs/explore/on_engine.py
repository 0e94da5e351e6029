"""A script of the explorer replayed on the engine's own core: lifecycle, ledger, index, resets.

Each action is the engine's own call, with `check` on: what the engine does in bulk it compares with
the declaration. Beside it stands what the environment really does: which blocks a launched step or
a worker may still touch, and which token's KV is in which slot. What the engine says of itself
(`check`, and every lane replayed by its events) and what the environment knows must agree after
each action. An action that the engine refuses ends the replay: the script cannot happen there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from kvproof.specs.check.declaration import Declaration
from kvproof.specs.explore import Feature, Instance

from .engine_copy import engine_copy
from .environment import Write
from .operations import Call, NotOnTheEngineError, Operations, Refused
from .tier import Tier


@dataclass(frozen=True)
class Replay:
    """What came of a script: what was wrong, and how many of its actions the engine did."""

    complaints: tuple[str, ...]
    done: int


def replay_on_engine(
    instance: Instance,
    labels: Sequence[str],
    declaration: Declaration,
    *,
    again: int | None = None,
) -> Replay:
    """Carry a script out until something is wrong, or refused, or its end.

    `again`: the number of the action at which a lasso's loop begins; None: the script has no loop.
    In a loop that goes on for ever every wait's time runs out: after each of its actions, tried
    one by one, the deadline of each load that is waited for must end the wait.

    Raises NotOnTheEngineError for an action that the engine has no call for.
    """
    calls = [_parsed(label) for label in labels]
    engine = _Engine(instance, declaration)
    position = engine.run(calls)
    for end in range(len(calls) if again is None else again, len(calls)):
        if engine.complaints:
            break
        engine = _Engine(instance, declaration)
        engine.run(calls[: end + 1])
        engine.end_waits()
    return Replay(tuple(engine.complaints), position)


def _parsed(label: str) -> Call:
    found = re.fullmatch(r"(\w+)\((\w+)(.*)\)", label)
    assert found is not None, label
    told = dict(part.strip().split("=") for part in found[3].split(",") if part.strip())
    return Call(found[1], found[2], told)


class _Engine(Operations):
    """One engine: for each action of the explorer its own call."""

    def __init__(self, instance: Instance, declaration: Declaration) -> None:
        copy = engine_copy(declaration)
        self.refused_errors = (copy.errors.RefusedError, copy.api.RejectedCallError)
        fatal = instance.has(Feature.FATAL)
        config = copy.api.EngineConfig(
            num_blocks=instance.blocks,
            block_size=instance.block_size,
            max_model_len=instance.model_length,
            steps_in_flight=instance.steps_ahead,
            loads_limit=instance.loads_limit,
            load_failure_policy="fail" if fatal else "recompute",
            policy="priority" if instance.has(Feature.POLICY) else "fcfs",
            check=True,
        )
        self.stop_of = copy.lifecycle.Stop
        runner = copy.fake.FakeRunner(instance.blocks, instance.block_size, manual=True)
        tier = Tier()
        super().__init__(instance, copy.core.EngineCore(config, runner, tier), tier, copy.states)

    def run(self, calls: Sequence[Call]) -> int:
        """Carry actions out and look after each. Returns how many were done."""
        position = 0
        while position < len(calls) and not self.complaints:
            try:
                position += self.do(calls, position)
            except (Refused, *self.refused_errors):
                break
            except NotOnTheEngineError:
                raise
            except Exception as error:
                self.complaints.append(f"the engine raises {type(error).__name__}: {error}")
            if not self.complaints:
                self.look()
        return position

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

    def end_waits(self) -> None:
        """The deadline of every load that is waited for has passed, whatever the engine's mode."""
        for row in list(self.lc.loading_rows):
            went = self.lc.deadline(row).went
            self.must(went, f"P4 {self.lc.id_of(row)} waits for its load for ever")
        self.look()

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
        self.lc.set_limit(self.rows[call.subject], self.instance.model_length)

    def _do_chunk(self, call: Call) -> None:
        self._went(self.lc.engine_event(self.states.EngineEvent.CHUNK))
        row = self._row(call)
        view = self.lc.view
        first = self.lc.length(row) + int(view.queued_tokens[row])
        was_open = bool(view.input_open[row])
        self._went(self.lc.chunk(row, self._tokens(self.instance.chunk, first)))
        self.must(was_open, "a chunk is taken although the input is closed")

    def _do_wrong_publish_too_much(self, call: Call) -> None:
        """Nothing to do: the settled step's lane works out by itself how much is published."""
        raise Refused

    def _do_wrong_chunk_closed(self, call: Call) -> None:
        self._do_chunk(call)

    def _do_close_input(self, call: Call) -> None:
        self._went(self.lc.close_input(self._row(call)))

    def _do_abort(self, call: Call) -> None:
        self._went(self.lc.abort(self._row(call)))

    # --- the scheduler --------------------------------------------------------------------------

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
            raise Refused
        left = lc.view.target[rows] - lc.view.computed[rows]
        told = [call.told.get("tokens") for call in calls]
        tokens = np.array([int(t or n) for t, n in zip(told, left, strict=True)], dtype=np.int64)
        ends = lc.view.computed[rows] + tokens
        if (tokens < 1).any() or (ends > lc.view.covered[rows] * self.size).any():
            raise Refused
        writes = [
            Write(
                int(row), call.subject, tuple(lc.table(int(row)).tolist()), int(end - n), int(end)
            )
            for row, call, n, end in zip(rows, calls, tokens, ends, strict=True)
        ]
        launched = lc.launch(rows, tokens, np.zeros(len(rows), dtype=np.int64))
        if launched is None:
            raise Refused
        self.writes[launched.step] = writes
        for write in writes:
            for place in range(write.start, write.end):
                self.slots[write.table[place // self.size]][place % self.size] = None

    def _settle(self, calls: Sequence[Call]) -> None:
        lc = self.lc
        if not lc.steps_in_flight:
            raise Refused
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


def _while(calls: Sequence[Call], name: str) -> Iterator[Call]:
    for call in calls:
        if call.name != name:
            return
        yield call
