"""Writes every transition as a JSON line of the declaration's trace schema.

Lines carry facts and numbers, never prompt text or token ids.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ..statemachine.answers import ANSWER_MASK, ROW_SHIFT, Answer, Command, commands_of
from ..statemachine.engine import ENGINE
from ..statemachine.request import REQUEST
from ..statemachine.trace import Transition
from ..statemachine.transfer import TRANSFER

_MACHINES = {"request": REQUEST, "transfer": TRANSFER, "engine": ENGINE}


class TraceWriter:
    """Witness of a lifecycle; see `RequestEvents.witness`."""

    def __init__(self, path: str | Path, clock: Callable[[], float]) -> None:
        """Raises OSError when the file cannot be written."""
        # Open until `close`: the trace spans many calls.
        self._file: IO[str] = Path(path).open("w", encoding="utf-8")  # noqa: SIM115
        self._clock = clock
        self._sequence = 0
        # Traces that are replayed together are told apart by it.
        self._name = uuid.uuid4().hex[:12]

    def __call__(
        self,
        machine: str,
        subject: str,
        event: int,
        facts: dict[str, int],
        engine: dict[str, int],
        ask: dict[str, int],
        code: int,
        source: int,
        dest: int,
    ) -> None:
        """Write one transition."""
        table = _MACHINES[machine].table
        self._sequence += 1
        transition = Transition(
            sequence=self._sequence,
            time=self._clock(),
            machine=machine,
            subject=subject,
            event=table.events(event).name.lower(),
            source=table.states(source).name.lower(),
            dest=table.states(dest).name.lower(),
            answer=Answer(code & ANSWER_MASK).name.lower(),
            why=table.rows[code >> ROW_SHIFT].why,
            commands=tuple(
                command.name.lower()
                for command in Command
                if command & commands_of(code) and command.name
            ),
            facts=_nonzero(facts),
            engine=_nonzero(engine),
            ask=_nonzero(ask),
            trace=self._name,
        )
        self._file.write(transition.to_json() + "\n")

    def close(self) -> None:
        """The trace is complete."""
        self._file.close()


def _nonzero(facts: dict[str, int]) -> dict[str, int]:
    return {name: int(value) for name, value in facts.items() if value}
