"""The actions of the system: everything that can happen to one block, request and transfer.

An action is what the engine does in one go: an event with its hold commands, and, where the
design says so, the events that follow from it in the same go (a transfer's end and the signals
to those who wait for it; a processed step and the end of its STEP holds; a reset). Whoever acts
is `r` or `t`, since they are arbitrary; those who look on are `r2` and `t2`; what all others do in
the same action (`bulk`) is what was proved of `r`, any number of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import z3

from ...statemachine.answers import GO, STOP_WAITING, WAIT
from ...statemachine.reset import NO_EVENT
from ...statemachine.states import (
    ABSENT,
    JOIN,
    LANDED,
    LEAVE,
    LOAD,
    PREEMPT,
    RECLAIM,
    RESET,
    START,
    STEP_PROCESSED,
    STORE,
    TRANSFER_FAILED,
    TRANSFER_LANDED,
    EngineEvent,
    EngineMode,
    RequestEvent,
    RequestState,
    TransferEvent,
    TransferState,
)
from ..symbolic import terms
from ..symbolic.records import Record
from ..symbolic.terms import BoolTerm, Term
from .contracts import OPEN
from .draft import Call, Draft
from .logic import both, either, implies, no, one
from .memory import memory
from .running import Fingerprint, Place, Running
from .state import Variables, View

ENUMS = {
    "request": (RequestState, RequestEvent),
    "transfer": (TransferState, TransferEvent),
    "engine": (EngineMode, EngineEvent),
}


@dataclass(frozen=True)
class Transition:
    """One way in which an action changes the state.

    `condition` and `after` are terms over the state before and over what the events are told.
    """

    action: str
    label: str
    calls: tuple[Call, ...]
    condition: BoolTerm
    before: View
    after: View
    contracts: tuple[str, ...]

    def goes(self, machine: str, event: int) -> bool:
        """Whether this is a way in which the event goes."""
        return any(
            call.machine == machine and call.event == event and call.answer == GO
            for call in self.calls
        )


class System:
    """All transitions of one declaration."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.variables = Variables(running)

    @cached_property
    def transitions(self) -> tuple[Transition, ...]:
        """Everything that changes something, in a fixed order."""
        segments: list[tuple[str, Iterable[Transition]]] = [
            *((f"request {event.name}", self._request(event)) for event in RequestEvent),
            *((f"transfer {event.name}", self._transfer(event)) for event in TransferEvent),
            ("steps", self._steps()),
            *((f"engine {event.name}", self._engine(event)) for event in EngineEvent),
            ("resets", self._resets()),
            ("environment", self._environment()),
        ]
        found = [each for name, segment in segments for each in self._segment(name, segment)]
        return tuple(each for each in found if terms.as_constant(each.condition) is not False)

    def _segment(self, name: str, segment: Iterable[Transition]) -> list[Transition]:
        """The transitions of a segment; those of another copy, if all that it runs is the same."""
        facts = self.running.declaration.sources["facts.py"]
        number = 0
        while (known := _segments.get((name, facts, number))) is not None:
            ran, transitions = known
            if all(self.running.fingerprint_of(place) == print_ for place, print_ in ran):
                return [self._mine(each) for each in transitions]
            number += 1
        self.running.used.clear()
        found = list(segment)
        used = [(place, self.running.fingerprint_of(place)) for place in self.running.used]
        _segments[name, facts, number] = (used, found)
        return found

    def _mine(self, transition: Transition) -> Transition:
        return replace(
            transition,
            before=self.variables.view(transition.before.values),
            after=self.variables.view(transition.after.values),
        )

    # --- requests -------------------------------------------------------------------------------

    def _request(self, event: RequestEvent) -> Iterator[Transition]:
        """`r` acts; `r2`, `t2` look on. Its transfer, if it joins or leaves one, is `t`."""
        if event in (TRANSFER_LANDED, TRANSFER_FAILED):
            return  # with the transfer's end
        for draft in self._start().fire("request", int(event), only_go=True):
            for way in self._on_block(draft):
                for done in self._transfer_of(way):
                    yield self._finished(event.name.lower(), done)

    def _on_block(self, draft: Draft) -> list[Draft]:
        """What the last call, of the request, does to the block."""
        call = draft.calls[-1]
        if call.answer != GO:
            return [draft]
        covered = self.variables.terms["r.covered"]
        for part in self.running.declaration.modules["joined"].REQUEST_PARTS:
            draft = draft.apply(
                part,
                event=call.event,
                commands=call.commands,
                covered=covered,
                x=self.running.records["ask"],
            )
        return [draft]

    def _transfer_of(self, draft: Draft) -> list[Draft]:
        """A request that begins to wait joins its transfer, one that no longer waits leaves it."""
        call = draft.calls[-1]
        before = self.variables.view()
        if call.commands & WAIT:
            # A transfer that exists is joined; one that does not exist yet is started first.
            exists = draft.given(before.t.state != ABSENT).fire("transfer", JOIN)
            starting = draft.knowing(t__state=terms.number(ABSENT))
            return exists + [
                way.follow("transfer", JOIN)
                for started in starting.given(before.transfer_ask.kind == LOAD).fire(
                    "transfer", START
                )
                for way in self._transfer_on_block(started)
            ]
        if call.commands & STOP_WAITING:
            return [draft.given(before.r.waits_for == before.copy.number).follow("transfer", LEAVE)]
        return [draft]

    # --- transfers ------------------------------------------------------------------------------

    def _transfer(self, event: TransferEvent) -> Iterator[Transition]:
        """`t` acts, `t2` looks on; the requests that wait for it are told of its end at once."""
        if event in (JOIN, LEAVE):
            return  # with the request that joins or leaves
        start = self._start(self.variables.second_request())
        for draft in start.fire("transfer", int(event), only_go=True):
            if event == START:
                draft = draft.given(draft.view().transfer_ask.kind == STORE)
            for way in self._transfer_on_block(draft):
                for done in self._waiters_told(way):
                    yield self._finished(event.name.lower(), done)

    def _transfer_on_block(self, draft: Draft) -> list[Draft]:
        call = draft.calls[-1]
        if call.answer != GO:
            return [draft]
        quarantined = draft.view().b.quarantined > 0
        for part in self.running.declaration.modules["joined"].TRANSFER_PARTS:
            draft = draft.apply(
                part,
                event=call.event,
                commands=call.commands,
                pick=self.running.records["transfer_pick"],
            )
        # The engine's count of blocks in quarantine: this one, and how many others there are.
        after = draft.view()
        if not terms.same(quarantined, after.b.quarantined > 0):
            draft = draft.given(after.bulk.quarantined >= 0).put(
                e__quarantined=after.bulk.quarantined + one(after.b.quarantined > 0)
            )
        return [draft]

    def _waiters_told(self, draft: Draft) -> list[Draft]:
        """If the transfer has ended: `r`, if it waits for it, and all others that do, are told."""
        source, dest = draft.calls[-1].source, terms.as_constant(draft.view().t.state)
        if source not in OPEN or dest in OPEN:
            return [draft]
        event = TRANSFER_LANDED if dest == LANDED else TRANSFER_FAILED
        before = self.variables.view()
        waits = before.r.waits_for == before.copy.number
        told = [draft.given(no(waits))]
        for way in draft.given(waits).fire("request", event):
            for done in self._on_block(way):
                leaves = done.calls[-1].commands & STOP_WAITING
                told.append(done.follow("transfer", LEAVE) if leaves else done)
        return [self._others_told(way, dest == LANDED) for way in told]

    def _others_told(self, draft: Draft, landed: bool) -> Draft:
        """All other waiters: their holds on the block end, or they publish it, as `r` would."""
        s = draft.view()
        kept = either(no(both(s.copy.carried, s.t.kind == LOAD)), s.transfer_pick.valid)
        draft = draft.given(
            s.bulk.left >= 0,
            s.bulk.left <= s.others.request,
            s.bulk.left == 0 if landed else implies(no(kept), s.bulk.left == s.others.request),
            # Who does not wait for it keeps what it has.
            implies(s.copy.others_waiting == 0, both(s.bulk.left == 0, no(s.bulk.published))),
            # What a request publishes is complete: as `r`, it knows what it has written.
            implies(s.bulk.published, both(s.others.request > s.bulk.left, s.b.content_of > 0)),
        )
        left = draft.put(
            t__waiters=s.t.waiters - s.copy.others_waiting,
            copy__others_waiting=terms.number(0),
            others__request=s.others.request - s.bulk.left,
            b__count=s.declared("lanes", "released", count=s.b.count, times=s.bulk.left),
        )
        published = left.run("blocks", "publish", prefix=s.b.content_of)
        epoch = terms.choice(s.b.cached, s.more.epoch, s.e.epoch)
        return left.where(s.bulk.published, published.put(more__epoch=epoch))

    # --- steps, the engine, resets ----------------------------------------------------------------

    def _steps(self) -> Iterator[Transition]:
        """A step's results are in: the engine counts it, and its STEP holds end."""
        for draft in self._alone().fire("engine", STEP_PROCESSED, only_go=True):
            s = draft.view()
            draft = draft.run("blocks", "step_processed", step=s.engine_ask.step, h=self._held())
            s = draft.view()
            draft = draft.given(
                s.bulk.ended >= 0,
                s.bulk.ended <= s.others.step,
                # Of every other request too: what it handed over waits for a launched step.
                implies(s.e.processed == s.e.launched, s.bulk.ended == s.others.step),
            ).put(
                others__step=s.others.step - s.bulk.ended,
                b__count=s.declared("lanes", "released", count=s.b.count, times=s.bulk.ended),
            )
            yield self._finished("step_processed", draft)

    def _engine(self, event: EngineEvent) -> Iterator[Transition]:
        """The engine alone: modes, pauses, memory, shutdown."""
        if event in (STEP_PROCESSED, RESET):
            return
        for draft in self._alone().fire("engine", int(event), only_go=True):
            yield self._finished(event.name.lower(), draft)

    def _resets(self) -> Iterator[Transition]:
        """A reset, decided when the launched steps are processed."""
        for start in self._alone().fire("engine", RESET, only_go=True):
            draft = start.given(
                self.variables.terms["e.launched"] == self.variables.terms["e.processed"],
                self._refusing_counted(start.view()),
            )
            for state in RequestState:
                here = draft.knowing(r__state=terms.number(int(state)))
                s = here.view()
                event = s.declared(
                    "reset",
                    "sent_event",
                    refusing=s.reset.refusing,
                    state=s.r.state,
                    resident=s.r.covered > 0,
                )
                ways = [here.given(event == NO_EVENT)]
                for sent in (PREEMPT, RECLAIM):
                    asked = here.given(z3.simplify(event == sent))
                    if sent == PREEMPT:
                        asked = asked.given(s.ask.forced)
                    if asked.possible():
                        ways += [
                            done
                            for way in asked.fire("request", sent)
                            for done in self._on_block(way)
                        ]
                for way in ways:
                    yield self._finished("reset", self._dropped(way))

    def _refusing_counted(self, s: View) -> BoolTerm:
        """`refusing` counts who refuses: `r`, `t` and, when it is 0, nobody else either."""
        request = s.declared(
            "reset",
            "request_refuses",
            state=s.r.state,
            resident=s.r.covered > 0,
            force=s.reset.force,
        )
        transfer = s.declared("reset", "transfer_refuses", state=s.t.state)
        others = both(
            s.others.load + s.others.store == s.others.quarantined,
            implies(no(s.reset.force), s.others.request == 0),
        )
        return both(
            s.reset.refusing >= one(request) + one(transfer),
            implies(s.reset.refusing == 0, others),
        )

    def _dropped(self, draft: Draft) -> Draft:
        """The others have let go as `r` has; prefixes are dropped; then the tier is cleared."""
        s = draft.view()
        drops = s.declared("reset", "drops_prefixes", refusing=s.reset.refusing)
        left = draft.put(
            others__request=terms.number(0),
            b__count=s.declared("lanes", "released", count=s.b.count, times=s.others.request),
        )
        draft = draft.where(drops, left.run("blocks", "drop"))
        cleared = both(
            s.declared(
                "reset", "clears_tier", refusing=s.reset.refusing, tier_asked=s.reset.tier_asked
            ),
            s.reset.tier_cleared,
        )
        return draft.put(more__tier_present=both(s.more.tier_present, no(cleared)))

    def _environment(self) -> Iterator[Transition]:
        """What nobody is asked about: a worker stops touching the block; a prefix is evicted."""
        yield self._finished("worker_done", self._alone().put(copy__working=terms.FALSE))
        yield self._finished("evict", self._alone().run("blocks", "drop"))

    # --- helpers --------------------------------------------------------------------------------

    def _start(self, absent: dict[str, Term] | None = None) -> Draft:
        return Draft(self.variables, absent or {})

    def _alone(self) -> Draft:
        """Only one request and one transfer are looked at: what happens, happens to all alike."""
        return self._start({**self.variables.second_request(), **self.variables.second_transfer()})

    def _held(self) -> Record:
        return self.running.records["held"]

    def _finished(self, action: str, draft: Draft) -> Transition:
        absent: dict[str, Term] = {}
        if terms.same(draft.view().r2.state, terms.number(0)):
            absent |= self.variables.second_request()
        if terms.same(draft.view().t2.state, terms.number(0)):
            absent |= self.variables.second_transfer()
        parts = [_call_name(call) for call in draft.calls]
        return Transition(
            action,
            ", ".join(parts) or action,
            draft.calls,
            both(*draft.conditions),
            self.variables.view(absent),
            self.variables.view(draft.values),
            draft.contracts,
        )


_Segment = tuple[list[tuple[Place, Fingerprint]], list[Transition]]
#: What was put together before: of each segment, by number, all that it ran, and the transitions.
_segments: dict[tuple[str, str, int], _Segment] = memory()


def _call_name(call: Call) -> str:
    states, events = ENUMS[call.machine]
    return f"{events(call.event).name.lower()} in {states(call.source).name} (row {call.row})"
