"""The trace schema: one transition as one JSON line. It never carries prompt text or token ids.

Version 1. A line holds what `kvproof conform` needs to replay the transition: the records before
it (without fields that are 0 or false), what the event was told, and how it was answered. What the
engine does in lanes is written as the events that the lanes stand for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from .errors import LifecycleError

TRACE_VERSION = 1


class TraceFormatError(LifecycleError):
    """A line that is not a transition of a known schema version."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One event and what became of it. States, events and answers are names, in lower case."""

    sequence: int  # counts up by one within a trace
    time: float  # seconds of a monotonic clock
    machine: str  # "request", "transfer" or "engine"
    subject: str  # the request's id, the transfer's number, "" for the engine
    event: str
    source: str
    dest: str
    answer: str  # "go", "not_now", "ignore" or "reject"
    why: str
    commands: tuple[str, ...] = ()
    facts: dict[str, int] = field(default_factory=dict)  # of the subject, before the event
    engine: dict[str, int] = field(default_factory=dict)  # the engine's facts, before the event
    ask: dict[str, int] = field(default_factory=dict)
    trace: str = ""  # which engine wrote it: several may share a file

    def to_json(self) -> str:
        """The line, without a line end."""
        return json.dumps(
            {
                "v": TRACE_VERSION,
                "n": self.sequence,
                "t": round(self.time, 6),
                "machine": self.machine,
                "id": self.subject,
                "event": self.event,
                "from": self.source,
                "to": self.dest,
                "answer": self.answer,
                "why": self.why,
                "commands": list(self.commands),
                "facts": self.facts,
                "engine": self.engine,
                "ask": self.ask,
                "trace": self.trace,
            },
            separators=(",", ":"),
        )


def parse_transition(line: str) -> Transition:
    """Read a line back. Raises TraceFormatError that says what is wrong with it."""
    try:
        raw: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise TraceFormatError(f"not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise TraceFormatError("not a JSON object")
    if raw.get("v") != TRACE_VERSION:
        raise TraceFormatError(f"schema version {raw.get('v')!r}; known is {TRACE_VERSION}")
    kinds: dict[str, type | tuple[type, ...]] = {
        "n": int, "t": (int, float), "machine": str, "id": str, "event": str, "from": str,
        "to": str, "answer": str, "why": str, "commands": list, "facts": dict, "engine": dict,
        "ask": dict, "trace": str,
    }  # fmt: skip
    for name, kind in kinds.items():
        if not isinstance(raw.get(name), kind):
            raise TraceFormatError(f"field {name!r} is missing or of a wrong type")
    for name in ("facts", "engine", "ask"):
        if not all(isinstance(value, int) for value in raw[name].values()):
            raise TraceFormatError(f"field {name!r} holds something that is not a whole number")
    if not all(isinstance(command, str) for command in raw["commands"]):
        raise TraceFormatError("field 'commands' holds something that is not a name")
    return Transition(
        sequence=raw["n"],
        time=float(raw["t"]),
        machine=raw["machine"],
        subject=raw["id"],
        event=raw["event"],
        source=raw["from"],
        dest=raw["to"],
        answer=raw["answer"],
        why=raw["why"],
        commands=tuple(raw["commands"]),
        facts=dict(raw["facts"]),
        engine=dict(raw["engine"]),
        ask=dict(raw["ask"]),
        trace=raw["trace"],
    )
