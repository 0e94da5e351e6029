"""The lifecycle: the only owner of writable state, with events, lanes, transfers and holds.

Five layers, one file each, read in this order:

    state.py             what is known: columns, tables, tokens, containers
    hold_commands.py     what a hold's commands do to tables, ledger and index
    events.py            request events: the declaration decides, its hold commands are done
    transfer_events.py   transfers: their holds, waiters and quarantine
    steps.py             lanes: launching and settling steps
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..statemachine.answers import GO, answer_of
from ..statemachine.engine import ENGINE
from ..statemachine.facts import EngineAsk
from ..statemachine.reset import (
    CLIENT,
    NO_EVENT,
    drops_prefixes,
    forced_event,
    request_ends_by,
    request_refuses,
    sent_event,
    transfer_refuses,
)
from ..statemachine.states import (
    LOAD,
    PREEMPT,
    QUARANTINED,
    RESET,
    RUNNING,
    WAITING,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
    HoldKind,
    RequestState,
)
from .api import Holder
from .audit import audit
from .columns import some
from .refusals import refused_engine
from .step_records import LaunchedStep, Settled, Stop
from .steps import StepLanes
from .transfer_records import TransferRecord

__all__ = ["LaunchedStep", "Lifecycle", "Settled", "Stop", "TransferRecord"]


@dataclass(frozen=True, slots=True)
class ResetDecision:
    """What a reset did to the device: done, or refused by these holders with nothing changed."""

    refused_by: tuple[Holder, ...] = ()
    forgot: bool = False  # the cached prefixes were dropped
    let_go: tuple[int, ...] = ()  # rows that were preempted or reclaimed for it

    @property
    def done(self) -> bool:
        """Whether the device has no earlier prefix left."""
        return not self.refused_by


class Lifecycle(StepLanes):
    """Requests, blocks, transfers and steps of one engine. Not thread-safe: one loop owns it."""

    def check(self) -> None:
        """Recompute every count from the holds and every container from the states.

        Raises AssertionError that names the first thing that does not agree.
        """
        audit(self)

    # --- holds ----------------------------------------------------------------------------------

    def resident_rows(self) -> list[int]:
        """The rows whose requests have a REQUEST hold: running in order, waiting, then blocked."""
        rows = [*self._running, *self._waiting, *self._blocked]
        covered = self._view.covered[rows].tolist()
        return [row for row, held in zip(rows, covered, strict=True) if held > 0]

    def holds(self) -> list[Holder]:
        """Every hold: who keeps how many blocks, since when, and how it ends."""
        now = self._clock()
        held = [self._request_holder(row, now) for row in self.resident_rows()]
        for holds in self._ledger.step_holds.values():
            for hold in holds:
                held.append(
                    Holder(
                        kind=HoldKind.STEP.name,
                        owner=str(hold.step),
                        state="LAUNCHED",
                        blocks=len(hold.blocks),
                        since=hold.since,
                        age=now - hold.since,
                        force_would_let_go=True,
                    )
                )
        held.extend(self._transfer_holder(record, now) for record in self._transfers.values())
        return held

    def hold_counts(self) -> dict[str, int]:
        """How many holds there are, by kind."""
        kinds = [record.kind for record in self._transfers.values()]
        return {
            "REQUEST": len(self.resident_rows()),
            "STEP": sum(len(holds) for holds in self._ledger.step_holds.values()),
            "LOAD": sum(kind == LOAD for kind in kinds),
            "STORE": sum(kind != LOAD for kind in kinds),
        }

    def holds_left(self) -> int:
        """How many holds there are, quarantine apart."""
        quarantined = sum(record.state == QUARANTINED for record in self._transfers.values())
        return sum(self.hold_counts().values()) - quarantined

    def _request_holder(self, row: int, now: float) -> Holder:
        state = self.state_of(row)
        return Holder(
            kind=HoldKind.REQUEST.name,
            owner=self._ids[row],
            state=RequestState(state).name,
            blocks=int(self._view.covered[row]),
            since=self._held_since[row],
            age=now - self._held_since[row],
            ends_by="client" if request_ends_by(state) == CLIENT else "itself",
            force_would_let_go=forced_event(state) != NO_EVENT,
        )

    def _transfer_holder(self, record: TransferRecord, now: float) -> Holder:
        return Holder(
            kind=HoldKind(record.kind).name,
            owner=str(record.number),
            state=self.describe_transfer(record),
            blocks=len(record.blocks),
            since=record.since,
            age=now - record.since,
            quarantined=record.state == QUARANTINED,
        )

    # --- asking ---------------------------------------------------------------------------------

    def engine_would(self, event: int, **ask: int) -> bool:
        """Whether an event of the engine's machine would go now. Nothing changes."""
        return answer_of(ENGINE.fire(event, self.engine, EngineAsk(**ask))) == GO

    # --- reset ----------------------------------------------------------------------------------

    def refusing(self, force: bool) -> tuple[Holder, ...]:
        """Who refuses a reset now: every holder, or with `force` only transfers and their waiters.

        The caller has processed the launched steps, so there is no STEP hold.
        """
        now = self._clock()
        transfers = [
            self._transfer_holder(record, now)
            for record in self._transfers.values()
            if transfer_refuses(record.state)
        ]
        rows = self.resident_rows()
        requests = [
            self._request_holder(row, now)
            for row, state in zip(rows, self._view.state[rows].tolist(), strict=True)
            if request_refuses(state, True, force)
        ]
        return (*transfers, *requests)

    def refuses(self, force: bool) -> bool:
        """Whether anybody refuses a reset now, as `refusing` has it, without asking each of them.

        Asked in every turn while a reset waits, so what it costs must not grow with the holders.
        """
        if self._open:
            return True
        for state, holding in (
            (RUNNING, self._running),
            (WAITING_FOR_REMOTE_KVS, self._loading_rows),
            (WAITING_FOR_STREAMING_REQ, self._parked_blocks),
        ):
            if len(holding) and request_refuses(state, True, force):
                return True
        return request_refuses(WAITING, True, force) and some(
            self._view.covered[self._waiting.array] > 0
        )

    def reset(self, force: bool) -> ResetDecision:
        """Forget every cached prefix of the device, or change nothing and say who refuses.

        No step may be in flight. With `force` the running requests are preempted, last first,
        so that they come back in order, and waiting and parked ones reclaimed. Raises RefusedError
        while a step is in flight, with nothing changed.
        """
        self._must_be_settled(RESET)
        self.engine_event(RESET)
        return self._let_go_unless(self.refusing(force))

    def let_go_of_all(self) -> ResetDecision:
        """What a sleep does, and a reset that nobody refuses: all let go, prefixes are dropped.

        No step may be in flight: else RefusedError.
        """
        self._must_be_settled("let_go_of_all")
        return self._let_go_unless(())

    def _must_be_settled(self, event: int | str) -> None:
        if self.in_flight:
            raise refused_engine(self.mode, event, "the launched steps are processed first")

    def _let_go_unless(self, refused_by: tuple[Holder, ...]) -> ResetDecision:
        """Send each request the event that the declaration has for it, and drop the prefixes.

        A refused reset takes the same way: it is the declaration that then sends no event.
        """
        refusing = len(refused_by)
        rows = [*list(self._running)[::-1], *self._waiting, *self._blocked]
        states, covered = self._view.state[rows].tolist(), self._view.covered[rows].tolist()
        events = [
            sent_event(refusing, state, held > 0)
            for state, held in zip(states, covered, strict=True)
        ]
        sent = [row for row, event in zip(rows, events, strict=True) if event != NO_EVENT]
        events = [event for event in events if event != NO_EVENT]
        if drops_prefixes(refusing):
            # A lane of its own: hundreds of events, one by one, would hold up all other requests.
            self._let_go_at_once(np.array(sent, dtype=np.int64), np.array(events, dtype=np.int64))
            return ResetDecision(refused_by, True, tuple(sent))
        # Nobody, unless the declaration is faulty; then it is obeyed, so that the fault shows.
        for row, event in zip(sent, events, strict=True):
            if event == PREEMPT:
                self.preempt(row, forced=True)
            else:
                self.reclaim(row)
        return ResetDecision(refused_by, let_go=tuple(sent))
