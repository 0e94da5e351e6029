"""Writes every transition as a JSON line of the declaration's trace schema.

Lines carry facts and numbers, never prompt text or token ids. There is one for each event of each
request and step, so a line is put together from texts, as `Transition.to_json` would write it.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ..statemachine.answers import ANSWER_MASK, ROW_SHIFT, Answer, Command, commands_of
from ..statemachine.engine import ENGINE
from ..statemachine.request import REQUEST
from ..statemachine.trace import TRACE_VERSION
from ..statemachine.transfer import TRANSFER
from .outcome import Fired

_MACHINES = {"request": REQUEST, "transfer": TRANSFER, "engine": ENGINE}


class TraceWriter:
    """Witness of a lifecycle; see `RequestEvents.tell`."""

    def __init__(self, path: str | Path, clock: Callable[[], float]) -> None:
        """Raises OSError when the file cannot be written."""
        # Open until `close`: the trace spans many calls. What is in the file stays: it may be the
        # trace of a process that crashed and was started again by the same command.
        self._file: IO[str] = Path(path).open("a", encoding="utf-8")  # noqa: SIM115
        if _ends_within_a_line(Path(path)):
            self._file.write("\n")  # else its half line and our first one would be one line
        self._clock = clock
        self._sequence = 0
        # Traces that are replayed together are told apart by it.
        self._name = uuid.uuid4().hex[:12]
        #: What an event and its answer are in words, by (machine, event, code, source, dest).
        self._words: dict[tuple[str, int, int, int, int], str] = {}

    def __call__(self, fired: Fired) -> None:
        """Write one transition."""
        machine, subject, event, facts, engine, ask, code, source, dest = fired
        key = (machine, event, code, source, dest)
        words = self._words.get(key)
        if words is None:
            words = self._words[key] = _in_words(*key)
        self._sequence += 1
        self._file.write(
            f'{{"v":{TRACE_VERSION},"n":{self._sequence},"t":{round(self._clock(), 6)},'
            f'"machine":"{machine}","id":{json.dumps(subject)},{words},'
            f'"facts":{_numbers(facts)},"engine":{_numbers(engine)},"ask":{_numbers(ask)},'
            f'"trace":"{self._name}"}}\n'
        )

    def close(self) -> None:
        """The trace is complete."""
        self._file.close()


def _ends_within_a_line(path: Path) -> bool:
    """Whether the last line of the file has no line end: a process that crashed leaves that."""
    if not path.is_file() or not path.stat().st_size:
        return False  # a pipe cannot be read, and needs no look
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _in_words(machine: str, event: int, code: int, source: int, dest: int) -> str:
    table = _MACHINES[machine].table
    commands = commands_of(code)
    told = {
        "event": table.events(event).name.lower(),
        "from": table.states(source).name.lower(),
        "to": table.states(dest).name.lower(),
        "answer": Answer(code & ANSWER_MASK).name.lower(),
        "why": table.rows[code >> ROW_SHIFT].why,
        "commands": [c.name.lower() for c in Command if c & commands and c.name],
    }
    return json.dumps(told, separators=(",", ":"))[1:-1]


def _numbers(facts: dict[str, int]) -> str:
    """As JSON, without what is 0 or false."""
    return (
        "{" + ",".join([f'"{name}":{int(value)}' for name, value in facts.items() if value]) + "}"
    )
