"""Events of requests: the declaration decides on one record, then its hold commands are done.

`_fire` is the only way in which a request's facts change outside the lanes. The method of an event
says what the event has to be told; what the declaration's ask calls `fresh` or `free` is worked
out here from the pool.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..statemachine.answers import (
    ANSWER_MASK,
    COMMAND_MASK,
    GO,
    IGNORE,
    REJECT,
)
from ..statemachine.engine import ENGINE
from ..statemachine.facts import Ask, EngineAsk
from ..statemachine.lanes import capacity
from ..statemachine.request import REQUEST
from ..statemachine.states import (
    ABORT,
    ADD,
    ADMIT,
    CHUNK,
    CLOSE_INPUT,
    DEADLINE,
    ERROR,
    FINISHED,
    FINISHED_IGNORED,
    FORGET,
    GRAMMAR_FAILED,
    GRAMMAR_READY,
    GROW,
    LAUNCH_STEP,
    PREEMPT,
    RECLAIM,
    STEP_PROCESSED,
    STOP,
    UNKNOWN,
    WAITING,
    WAITING_FOR_STREAMING_REQ,
    WEIGHTS_CHANGED,
    EngineEvent,
    RequestEvent,
)
from .columns import COVERED, STATE, Blocks, Int64Array, facts_of, load_facts
from .hold_commands import HoldCommands
from .outcome import Fired, Outcome, Witness, make_blank
from .refusals import (
    STOP_REASONS,
    as_token_ids,
    integers,
    is_count,
    is_int64,
    refused_engine,
    refused_request,
    refused_row,
)

Int32Array = npt.NDArray[np.int32]


_blank = make_blank(Ask)
_blank_engine = make_blank(EngineAsk)
_DISPATCH = REQUEST.dispatch
_WIDTH = REQUEST.width
_ENGINE_DISPATCH = ENGINE.dispatch
_ENGINE_WIDTH = ENGINE.width


class RequestEvents(HoldCommands):
    """The request machine on the columns."""

    #: Who writes the trace, if anybody does.
    _witness: Witness | None = None

    def tell(self, witness: Witness | None) -> None:
        """Who is told of each event from now on, to write a trace; None for nobody."""
        self._witness = witness

    def count_ignored(self, event: RequestEvent) -> None:
        """A client's call that came too late to meet its request: counted as ignored."""
        self._ignored["request." + event.name.lower()] += 1

    # --- what an event is told ------------------------------------------------------------------

    def add(
        self,
        request_id: str,
        tokens: Int32Array,
        *,
        resumable: bool = False,
        priority: int = 0,
        salt: bytes = b"",
        grammar: bool = False,
    ) -> int:
        """Take a request in and return its row, in WAITING, _GRAMMAR or FINISHED_IGNORED.

        Raises RefusedError for an empty prompt, what are no token ids, a priority that no column
        can hold, or an id that is live or not yet forgotten.
        """
        prompt = as_token_ids(tokens)
        if prompt is None:
            raise refused_request(str(request_id), UNKNOWN, ADD, "the prompt is no list of ids")
        if not (isinstance(request_id, str) and request_id and isinstance(salt, bytes)):
            why = "its id is no text, or empty, or its salt no bytes"
            raise refused_request(str(request_id), UNKNOWN, ADD, why)
        if not is_int64(priority):
            raise refused_request(request_id, UNKNOWN, ADD, "its priority is no 64-bit integer")
        tokens = prompt
        known = self._row_of.get(request_id)
        if known is not None:
            self._ask_blank().tokens = len(tokens)
            self._fire(known, ADD)  # the table rejects it
            raise AssertionError("an id that is known was added")
        x = self._ask_blank()
        x.tokens = len(tokens)
        x.resumable = bool(resumable)
        x.priority = int(priority)
        x.arrival = self._arrivals + 1
        x.grammar = bool(grammar)
        row = self._take_row()
        self._ids[row] = request_id
        try:
            self._fire(row, ADD)
        except BaseException:
            self._ids[row] = ""
            self._columns[:, row] = 0  # a fact that no column can hold leaves those before it
            self._free_rows.append(row)
            raise
        self._arrivals += 1
        self._row_of[request_id] = row
        self._salts[row] = salt
        if self._facts[STATE, row] != FINISHED_IGNORED:
            self._tokens[row, : len(tokens)] = tokens
        return row

    def admit(self, row: int, hits: Blocks = (), new: int = 0) -> Outcome:
        """Run it: its hold covers `hits`, which are published prefix blocks, and `new` others.

        Raises RefusedError for hits that are not the published blocks of its own first tokens, and
        for more blocks than a table has room for.
        """
        self._ask_for_blocks(ADMIT, row, hits, new)
        return self._fire(row, ADMIT)

    def grow(self, row: int, new: int) -> Outcome:
        """Its table grows by `new` blocks."""
        self._ask_for_blocks(GROW, row, (), new)
        return self._fire(row, GROW)

    def trim(self, row: int, blocks: int) -> Outcome:
        """Its table is cut to `blocks` blocks. Raises RefusedError for what is no count."""
        self._must_be_known(row, RequestEvent.TRIM)
        if not is_count(blocks):
            why = f"{blocks!r} is no number of blocks"
            raise refused_request(self._ids[row], self.state_of(row), RequestEvent.TRIM, why)
        self._ask_blank().blocks = blocks
        return self._fire(row, RequestEvent.TRIM)

    def preempt(self, row: int, *, allowed: bool = False, forced: bool = False) -> Outcome:
        """It lets go and recomputes later: allowed by the policy, or forced by a reset or sleep."""
        x = self._ask_blank()
        x.allowed = allowed
        x.forced = forced
        return self._fire(row, PREEMPT)

    def reclaim(self, row: int) -> Outcome:
        """A parked or waiting request lets go of its blocks and keeps its tokens."""
        self._ask_blank()
        return self._fire(row, RECLAIM)

    def abort(self, row: int) -> Outcome:
        """The client gives up on it."""
        self._ask_blank()
        return self._fire(row, ABORT)

    def error(self, row: int) -> Outcome:
        """It cannot go on."""
        self._ask_blank()
        return self._fire(row, ERROR)

    def deadline(self, row: int) -> Outcome:
        """The time for what it waits for is over."""
        self._ask_blank().expired = True
        return self._fire(row, DEADLINE)

    def grammar_ready(self, row: int) -> Outcome:
        """Its grammar is compiled."""
        self._ask_blank()
        return self._fire(row, GRAMMAR_READY)

    def grammar_failed(self, row: int) -> Outcome:
        """Its grammar cannot be compiled."""
        self._ask_blank()
        return self._fire(row, GRAMMAR_FAILED)

    def stop(self, row: int, step: int, reason: int, *, at_limit: bool = False) -> Outcome:
        """Its turn or life is over by what `step` sampled; a queued chunk starts the next turn.

        `reason` is a FINISHED_* state; at_limit: the model's or the whole pool's length is
        reached, so that no further turn can come. Raises RefusedError for another reason.
        """
        self._must_be_known(row, STOP)
        if reason not in STOP_REASONS:
            why = f"{reason} is no way in which a turn ends by its output"
            raise refused_request(self._ids[row], self.state_of(row), STOP, why)
        x = self._ask_blank()
        x.step = step
        x.reason = reason
        x.at_limit = at_limit
        queued = self._queued[row]
        if queued:
            x.tokens = len(queued[0])
        outcome = self._fire(row, STOP)
        if outcome.went:
            # What is in flight for the turn that ended is stale.
            self._target[row] = self._record.prompt + self._record.delivered
            state = self._facts[STATE, row]
            if state == WAITING:
                self._append(row, queued.popleft())
        return outcome

    def chunk(self, row: int, tokens: Int32Array) -> Outcome:
        """A session's next input: it starts a turn, or waits for the present one to end.

        Raises RefusedError when the session's input is closed, or the chunk empty, too long or no
        list of token ids.
        """
        self._must_be_known(row, CHUNK)
        chunk = as_token_ids(tokens)
        if chunk is None:
            why = "the chunk is no list of ids"
            raise refused_request(self._ids[row], self.state_of(row), CHUNK, why)
        tokens = chunk.copy() if chunk is tokens else chunk
        self._ask_blank().tokens = len(tokens)
        parked = self._facts[STATE, row] == WAITING_FOR_STREAMING_REQ
        outcome = self._fire(row, CHUNK)
        if parked:
            self._append(row, tokens)
        else:
            self._queued[row].append(tokens)
        return outcome

    def close_input(self, row: int) -> Outcome:
        """No more input comes. Raises RefusedError for what is not a session."""
        self._ask_blank()
        return self._fire(row, CLOSE_INPUT)

    def forget(self, row: int, *, idle: bool) -> Outcome:
        """Its record goes, and the id may be used again. idle: no hold or transfer is left."""
        self._ask_blank().idle = idle
        outcome = self._fire(row, FORGET)
        if outcome.went:
            del self._row_of[self._ids[row]]
            self._ids[row] = ""
            self._salts[row] = b""
            self._chains[row] = None
            self._history[row].clear()
            self._queued[row].clear()
            self._limit[row] = 0
            self._free_rows.append(row)
        return outcome

    def set_limit(self, row: int, length: int) -> None:
        """The sequence's length at which the present turn ends: no step is launched beyond it."""
        if not (self._is_known(row) and is_count(length)):
            why = f"row {row} is no request's, or {length!r} no length"
            raise refused_engine(self.mode, "set_limit", why)
        # Not `longest`: what is in quarantine now may come back during the turn.
        self._limit[row] = min(length, capacity(self._engine.pool_blocks, self._block_size) + 1)

    def engine_event(self, event: int, **ask: int) -> Outcome:
        """An event of the engine's machine. Raises RefusedError when the table rejects it.

        Steps are numbered by `launch` and `settle` alone: their events are refused here.
        """
        if event in (LAUNCH_STEP, STEP_PROCESSED):
            raise refused_engine(self.mode, event, "launch and settle tell of steps")
        return self._engine_event(event, **ask)

    def _engine_event(self, event: int, **ask: int) -> Outcome:
        if not 0 <= event < _ENGINE_WIDTH:
            raise refused_engine(self.mode, "event", f"{event} is no event")
        e, x = self._engine, self._engine_ask
        _blank_engine(x)
        try:
            for name, value in ask.items():
                setattr(x, name, value)
        except AttributeError:
            raise refused_engine(self.mode, event, f"it is told nothing of {name!r}") from None
        source = e.mode
        before = e.as_dict() if self._witness else {}
        code = _ENGINE_DISPATCH[source * _ENGINE_WIDTH + event](e, x)
        if self._witness:
            self._witness(Fired("engine", "", event, before, {}, x.as_dict(), code, source, e.mode))
        answer = code & ANSWER_MASK
        if answer == GO:
            self._moves += 1
            if event == WEIGHTS_CHANGED:
                self._new_epoch()
        elif answer == IGNORE:
            self._ignored["engine." + EngineEvent(event).name.lower()] += 1
        elif answer == REJECT:
            raise ENGINE.refusal(code, "engine", source, event)
        return Outcome(code)

    # --- carrying out ---------------------------------------------------------------------------

    def _fire(self, row: int, event: int) -> Outcome:
        """Let the table decide on the event for the request in `row`, and do what it says.

        What the event is told stands in the ask. Raises RefusedError when the table rejects it.
        """
        if not 0 <= row < len(self._ids):
            raise refused_row(row, event)
        r, e, x = self._record, self._engine, self._ask
        load_facts(r, self._facts[:, row].tolist())
        source, covered, hashed, reserved = r.state, r.covered, r.hashed, r.reserved
        waited_for, known = r.waits_for, r.prompt + r.delivered
        before = r.as_dict() if self._witness else None
        code = _DISPATCH[source * _WIDTH + event](r, e, x)
        if before is not None and self._witness:
            fired = Fired(
                "request", self._ids[row], event, before, e.as_dict(), x.as_dict(), code, source,
                r.state,
            )  # fmt: skip
            self._witness(fired)
        answer = code & ANSWER_MASK
        if answer != GO:
            if answer == REJECT:
                raise REQUEST.refusal(code, self._ids[row], source, event)
            if answer == IGNORE:
                self._ignored["request." + RequestEvent(event).name.lower()] += 1
            return Outcome(code)
        self._facts[:, row] = facts_of(r)
        self._reserved += r.reserved - reserved
        self._moves += 1
        self._disturbances += 1
        self._history[row].append((self._clock(), event, source, r.state, code))
        state = r.state
        if state != source:
            self._move(row, r, source)
            if state in FINISHED:
                self._target[row] = known
                self._queued[row].clear()
        if r.prompt + r.delivered != known:
            self._target[row] += r.prompt + r.delivered - known
        commands = code & COMMAND_MASK
        if commands:
            self._holds_version += 1
            self._carry_out(row, commands, covered, hashed, waited_for)
        if WAITING_FOR_STREAMING_REQ in (source, state):
            self._count_parked(row)
        return Outcome(code)

    # --- asks -----------------------------------------------------------------------------------

    def _ask_blank(self) -> Ask:
        x = self._ask
        _blank(x)
        return x

    def _must_be_known(self, row: int, event: int) -> None:
        if not self._is_known(row):
            raise refused_row(row, event)

    def _ask_for_blocks(
        self, event: int, row: int, hits: Blocks, new: int, shared: Blocks = ()
    ) -> Ask:
        """Say which blocks the hold is to cover, and how many of them leave the free pool.

        Behind the hits come `shared` blocks of a load under way, for which the caller answers.
        Raises RefusedError.
        """
        self._must_be_known(row, event)
        ids = integers(hits)
        wrong = self._wrong_blocks(row, ids, new, len(shared))
        if wrong or ids is None:
            raise refused_request(self._ids[row], self.state_of(row), event, wrong)
        x = self._ask_blank()
        x.hits = len(ids)
        if len(shared):
            ids = np.concatenate([ids, np.asarray(shared, dtype=np.int64)])
        x.blocks = len(ids) + new
        x.fresh = new
        if len(ids):
            x.fresh += self._ledger.counts[ids].tolist().count(0)
        x.free = self.free_for(row)
        self._hits, self._new = ids, new
        return x

    def _wrong_blocks(self, row: int, hits: Int64Array | None, new: int, shared: int) -> str:
        """What is wrong with the blocks that a hold is to cover; "" for nothing.

        A block that is no published hit of these very tokens may be free, another tenant's, or
        still being written.
        """
        if hits is None or not is_count(new):
            return "its hits are no block ids, or its new blocks no number"
        covered = int(self._facts[COVERED, row])
        if covered + len(hits) + shared + new > self._table_width:
            return f"a table has room for {self._table_width} blocks"
        if not len(hits) or covered:
            return ""  # only a new hold has hits; the table refuses others
        if len(hits) * self._block_size >= self.length(row):
            return "its last token is never hit: a step has to compute one"
        keys = self._keys(row, len(hits))[: len(hits)]
        if not self._ledger.index.are_hits(hits.tolist(), keys):
            return "its hits are not the published blocks of its first tokens"
        return ""
