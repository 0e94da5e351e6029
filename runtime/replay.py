"""Lanes against events: a lane call is repeated event by event on copied records and compared.

Used with `check` on, where any difference is our own bug and fails at once, and while a trace is
written, because a trace consists of events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..statemachine.answers import ANSWER_MASK, COMMAND_MASK, GO, RELEASE, Answer
from ..statemachine.facts import Ask, RequestFacts
from ..statemachine.request import REQUEST
from ..statemachine.states import (
    GROW,
    LAUNCH,
    OUTPUT,
    PREEMPT,
    PUBLISH,
    RECLAIM,
    RequestEvent,
    RequestState,
)
from .columns import FACTS, Int64Array, facts_of, load_facts
from .outcome import Fired

if TYPE_CHECKING:
    from .step_records import BoolArray, LaunchedStep
    from .steps import StepLanes


class LaneReplay:
    """The columns before a lane call, and the records on which it is repeated."""

    def __init__(self, lanes: StepLanes, rows: Int64Array) -> None:
        self._lanes = lanes
        self._before = lanes._facts.copy()
        self._rows = rows.tolist()
        self._free = lanes.free_for()
        self._engine = lanes.engine
        self._records: list[RequestFacts] = []
        assert len(set(self._rows)) == len(self._rows), "a row is twice in one step"
        for row in self._rows:
            record = RequestFacts()
            load_facts(record, self._before[:, row].tolist())
            self._records.append(record)

    def launched(self, step: int, tokens: Int64Array, new_blocks: Int64Array) -> None:
        """Repeat GROW and LAUNCH, all of which must go, and compare."""
        for number, record in enumerate(self._records):
            new = int(new_blocks[number])
            if new:
                ask = Ask(blocks=new, fresh=new, free=self._free)
                self._expect(number, record, GROW, ask, GO)
                self._free -= new
            ask = Ask(step=step, tokens=int(tokens[number]))
            self._expect(number, record, LAUNCH, ask, GO)
        self._compare()

    def settled(
        self, step: int, launched: LaunchedStep, writes: BoolArray, outputs: BoolArray
    ) -> None:
        """Repeat PUBLISH for each row, and OUTPUT where a token was sampled, and compare.

        The events decide by themselves what is stale or has let go; the lane's masks must agree.
        The lane publishes as many blocks as are full: one more must be refused.
        """
        size = self._lanes.block_size
        for number, record in enumerate(self._records):
            tokens = int(launched.counts[number])
            full = (record.written + tokens) // size
            if writes[number]:
                if self._lanes.config.check:
                    more = Ask(step=step, tokens=tokens, blocks=full + 1)
                    self._refused(number, record, PUBLISH, more)
                ask = Ask(step=step, tokens=tokens, blocks=full)
                self._expect(number, record, PUBLISH, ask, GO)
        for number, record in enumerate(self._records):
            if outputs[number]:
                self._expect(number, record, OUTPUT, Ask(step=step, tokens=1), GO)
        self._compare()

    def let_go(self, runs: BoolArray) -> None:
        """Repeat PREEMPT for those that ran and RECLAIM for the others: each is released."""
        for number, record in enumerate(self._records):
            event = PREEMPT if runs[number] else RECLAIM
            code = self._expect(number, record, event, Ask(forced=True), GO)
            assert code & COMMAND_MASK == RELEASE, self._name(number, event)
        self._compare()

    def skipped(self, step: int, skips: BoolArray, event: int, tokens: Int64Array) -> None:
        """Where the lane did nothing, the event must change nothing either."""
        for number, record in enumerate(self._records):
            if skips[number]:
                ask = Ask(step=step, tokens=int(tokens[number]), blocks=record.hashed)
                self._refused(number, record, event, ask)

    def _refused(self, number: int, record: RequestFacts, event: int, ask: Ask) -> None:
        code = REQUEST.fire(event, record.copy(), self._engine, ask)
        assert code & ANSWER_MASK != GO, f"{self._name(number, event)} goes with {ask}"

    def _expect(self, number: int, record: RequestFacts, event: int, ask: Ask, answer: int) -> int:
        witness = self._lanes._witness
        before = record.as_dict() if witness else {}
        source = record.state
        code = REQUEST.fire(event, record, self._engine, ask)
        assert code & ANSWER_MASK == answer, (
            f"{self._name(number, event)} answers {Answer(code & ANSWER_MASK).name}: "
            f"{REQUEST.row(code).why}"
        )
        if witness:
            fired = Fired(
                "request", self._lanes.id_of(self._rows[number]), event, before,
                self._engine.as_dict(), ask.as_dict(), code, source, record.state,
            )  # fmt: skip
            witness(fired)
        return code

    def _name(self, number: int, event: int) -> str:
        row = self._rows[number]
        state = RequestState(int(self._before[0, row])).name
        return f"{RequestEvent(event).name} of {self._lanes.id_of(row)!r} in {state}"

    def _compare(self) -> None:
        after: Any = self._lanes._facts
        expected = self._before.copy()
        for row, record in zip(self._rows, self._records, strict=True):
            expected[:, row] = facts_of(record)
        if not np.array_equal(expected, after):
            facts, rows = np.nonzero(expected != after)
            wrong = [
                f"{self._lanes.id_of(row)!r}.{FACTS[fact]} is {after[fact, row]}, "
                f"the events say {expected[fact, row]}"
                for fact, row in zip(facts.tolist(), rows.tolist(), strict=True)
            ]
            raise AssertionError("a lane differs from its events: " + "; ".join(wrong))
