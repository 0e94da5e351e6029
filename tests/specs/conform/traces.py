"""Makes traces: a random walk through the three machines, written as an engine would write it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from kvproof.statemachine import (
    ENGINE,
    REQUEST,
    TRANSFER,
    Answer,
    Ask,
    Command,
    EngineAsk,
    EngineFacts,
    Machine,
    RequestEvent,
    RequestFacts,
    TransferAsk,
    TransferFacts,
    Transition,
    answer_of,
    commands_of,
)
from kvproof.statemachine.facts import Record


class TraceMaker:
    """Fires events at random and writes what became of them."""

    def __init__(self, seed: int, name: str = "engine-0") -> None:
        self.random = random.Random(seed)
        self.name = name
        self.lines: list[str] = []
        self.sequence = 0  # of the first line in `lines`
        self.engine = EngineFacts(
            mode=1,
            weights_resident=True,
            cache_resident=True,
            steps_ahead=2,
            block_size=4,
            pool_blocks=40,
            model_length=120,
            loads_limit=2,
        )
        self.requests = {f"r{number}": RequestFacts() for number in range(4)}
        self.newest = 3  # transfer
        self.transfers = {str(number): TransferFacts() for number in range(1, 4)}

    def walk(self, lines: int) -> list[str]:
        """A trace of that many lines."""
        while len(self.lines) < lines:
            choice = self.random.random()
            if choice < 0.7:
                name = self.random.choice(list(self.requests))
                self._fire(REQUEST, "request", name, self.requests[name], self._ask(name))
            elif choice < 0.85:
                name = self.random.choice(list(self.transfers))
                if self.transfers[name].state == 0:  # a number never comes again
                    self.newest += 1
                    self.transfers[str(self.newest)] = self.transfers.pop(name)
                    name = str(self.newest)
                ask = TransferAsk(kind=3, unshared=True, expired=self.random.random() < 0.5)
                self._fire(TRANSFER, "transfer", name, self.transfers[name], ask)
            else:
                ask = EngineAsk(step=self.engine.processed + 1, pausing=3, level=1, tags=3)
                self._fire(ENGINE, "engine", "", self.engine, ask)
        return self.lines

    def lives(self, requests: int) -> Iterator[str]:
        """The lines of so many requests, each of which comes and goes before the next one."""
        for number in range(requests):
            record = RequestFacts()
            for event in (RequestEvent.ADD, RequestEvent.ABORT, RequestEvent.FORGET):
                ask = Ask(tokens=4, idle=True)
                self.fire(REQUEST, "request", f"r{number}", record, event, ask)
            yield from self.lines
            self.sequence += len(self.lines)
            self.lines.clear()

    def _ask(self, name: str) -> Ask:
        r = self.requests[name]
        blocks = self.random.randint(1, 4)
        return Ask(
            tokens=self.random.randint(1, 4),
            blocks=blocks,
            fresh=blocks,
            free=20,
            step=self.random.choice([self.engine.launched, self.engine.processed]),
            transfer=self.random.choice([1, 2, r.waits_for]),
            remote_tokens=100,
            joinable=True,
            reason=7,
            allowed=self.random.random() < 0.7,
            expired=self.random.random() < 0.5,
            idle=True,
            resumable=self.random.random() < 0.5,
        )

    def _fire(self, machine: Machine, name: str, subject: str, record: Record, ask: Record) -> None:
        table = machine.table
        state_field = table.state_field
        legal = table.legal_events(getattr(record, state_field))
        # Mostly what can go, or the walk would be a list of refusals.
        if legal and self.random.random() < 0.85:
            event = table.events[self.random.choice(legal).upper()]
        else:
            event = self.random.choice(list(table.events))
        self.fire(machine, name, subject, record, event, ask)

    def fire(
        self, machine: Machine, name: str, subject: str, record: Record, event: Any, ask: Record
    ) -> None:
        """Fire one event and write the line."""
        table, state_field = machine.table, machine.table.state_field
        before = _nonzero(record)
        engine = _nonzero(self.engine)
        source = table.states(getattr(record, state_field)).name.lower()
        records = (record, ask) if name == "engine" else (record, self.engine, ask)
        code = machine.fire(int(event), *records)
        commands = commands_of(code)
        self.lines.append(
            Transition(
                sequence=self.sequence + len(self.lines),
                time=float(self.sequence + len(self.lines)),
                machine=name,
                subject=subject,
                event=event.name.lower(),
                source=source,
                dest=table.states(getattr(record, state_field)).name.lower(),
                answer=Answer(answer_of(code)).name.lower(),
                why=machine.row(code).why,
                commands=tuple(c.name.lower() for c in Command if commands & c and c.name),
                facts=before,
                engine=engine,
                ask=_nonzero(ask),
                trace=self.name,
            ).to_json()
        )


def _nonzero(record: Record) -> dict[str, Any]:
    return {name: int(value) for name, value in record.as_dict().items() if value}
