"""Replays a trace through the declaration and says where it first departs.

Traces may be interleaved (several engines in one file, each under its `trace` name), spread over
several files, and partial (they begin in the middle of a request's life). Lines are read one by
one, so a file may be larger than memory: kept are the records of live subjects, and the names of
the last ones that have gone.

A line departs when its sequence is broken, when its facts are not what the lines before it left,
or when the declaration answers its event otherwise.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...statemachine.answers import Answer, Command, answer_of, commands_of, row_of
from ...statemachine.compile import Machine
from ...statemachine.engine import ENGINE
from ...statemachine.facts import (
    Ask,
    EngineAsk,
    EngineFacts,
    Record,
    RequestFacts,
    TransferAsk,
    TransferFacts,
)
from ...statemachine.request import REQUEST
from ...statemachine.table import Row
from ...statemachine.trace import TraceFormatError, Transition, parse_transition
from ...statemachine.transfer import TRANSFER


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one machine's lines are replayed."""

    machine: Machine
    facts: type[Record]
    ask: type[Record]
    gone: int  # the state in which a subject's record is dropped; -1: never


KINDS = {
    "request": _Kind(REQUEST, RequestFacts, Ask, 0),
    "transfer": _Kind(TRANSFER, TransferFacts, TransferAsk, 0),
    "engine": _Kind(ENGINE, EngineFacts, EngineAsk, -1),
}

#: Subjects that have gone and are still remembered, so that a line that revives one is noticed.
REMEMBERED = 4096

#: Characters in a line, at most; longer ones are no transitions.
LONGEST_LINE = 1 << 20

#: Engine facts that change by hold commands, not by an engine event.
UNTRACKED_ENGINE_FACTS = frozenset({"quarantined"})


@dataclass(frozen=True, slots=True)
class Departure:
    """The first line at which a trace leaves the declaration."""

    file: str
    line: int  # counted from 1
    what: str  # in words
    subject: str = ""
    event: str = ""
    legal: tuple[str, ...] = ()  # events that would have been legal in that state
    conjunct: str = ""  # the guard that was false, if one was

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a replay found."""

    lines: int
    matched: int  # lines that were replayed and agreed
    subjects: int
    departure: Departure | None
    used_rows: dict[str, Counter[int]]  # machine -> how often each row decided
    cut_off: tuple[str, ...] = ()  # file:line of each half line that was passed over

    @property
    def conforms(self) -> bool:
        """Whether there was something to replay, and all of it agreed."""
        return self.departure is None and self.matched > 0

    def unused_rows(self) -> list[tuple[str, int, Row]]:
        """The rows of the tables that the trace never used."""
        return [
            (name, number, row)
            for name, kind in KINDS.items()
            for number, row in enumerate(kind.machine.table.rows)
            if self.used_rows[name][number] == 0
        ]


class _DepartureError(Exception):
    """Carries a departure's words out of the checks of one line."""

    def __init__(self, what: str, conjunct: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.conjunct = conjunct


@dataclass
class Replay:
    """The state of a replay; feed it lines with `step`."""

    records: dict[tuple[str, str, str], Record] = field(default_factory=dict)
    engines: dict[str, dict[str, int]] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)  # the newest transfer's number
    arrived: dict[str, int] = field(default_factory=dict)  # the first request's arrival
    used_rows: dict[str, Counter[int]] = field(
        default_factory=lambda: {name: Counter() for name in KINDS}
    )
    subjects: int = 0  # met so far
    gone: OrderedDict[tuple[str, str, str], None] = field(default_factory=OrderedDict)

    def step(self, line: Transition) -> None:
        """Check one line and take it in. Raises `_DepartureError`."""
        kind = KINDS.get(line.machine)
        if kind is None:
            raise _DepartureError(f"there is no machine {line.machine!r}")
        if (line.subject == "") != (line.machine == "engine"):
            raise _DepartureError("only the engine, of which there is one, has no name")
        if line.machine == "transfer" and not (line.subject.isdecimal() and len(line.subject) < 20):
            raise _DepartureError(f"transfers have numbers; {line.subject!r} is none")
        self._check_order(line)
        before = _record(kind.facts, line.facts, "facts")
        key = (line.trace, line.machine, line.subject)
        self._check_facts(key, kind, before)
        engine = before if line.machine == "engine" else self._engine(line)
        ask = _record(kind.ask, line.ask, "ask")
        after = self._run(kind, line, before, engine, ask)
        if line.machine == "engine":
            self.engines[line.trace] = after.as_dict()
        known = key in self.records
        if getattr(after, kind.machine.table.state_field) != kind.gone:
            self.subjects += not known and key not in self.gone
            self.records[key] = after
            self.gone.pop(key, None)
        elif known:
            del self.records[key]
            self.gone[key] = None
            if len(self.gone) > REMEMBERED:
                self.gone.popitem(last=False)

    def _check_order(self, line: Transition) -> None:
        last = self.sequences.get(line.trace)
        if last is not None and line.sequence != last + 1:
            raise _DepartureError(f"line {line.sequence} of the trace follows line {last}")
        if line.time < self.times.get(line.trace, line.time):
            raise _DepartureError("time runs backwards")
        self.sequences[line.trace] = line.sequence
        self.times[line.trace] = line.time
        if line.event == "add" and line.machine == "request" and line.answer == "go":
            self.arrived.setdefault(line.trace, line.ask.get("arrival", 0))
        if line.machine == "transfer" and line.event == "start" and line.answer == "go":
            number, newest = int(line.subject), self.started.get(line.trace, 0)
            if number <= newest:
                raise _DepartureError(f"transfer {number} starts after {newest}: none comes twice")
            self.started[line.trace] = number

    def _check_facts(self, key: tuple[str, str, str], kind: _Kind, before: Record) -> None:
        known = self.records.get(key)
        if known is None:
            if key in self.gone and getattr(before, "state", kind.gone) != kind.gone:
                raise _DepartureError("the subject is gone, and yet it has a record")
            first = self.arrived.get(key[0])
            if first is not None and getattr(before, "arrival", 0) > first:
                raise _DepartureError("it arrived after the trace began, and no line adds it")
            return
        skip = UNTRACKED_ENGINE_FACTS if key[1] == "engine" else frozenset()
        for name, value in before.as_dict().items():
            left = getattr(known, name)
            if name not in skip and int(value) != int(left):
                raise _DepartureError(
                    f"{name} is {int(value)}, the lines before left it at {int(left)}"
                )

    def _engine(self, line: Transition) -> Record:
        engine = _record(EngineFacts, line.engine, "engine")
        known = self.engines.get(line.trace)
        if known is not None:
            for name, value in engine.as_dict().items():
                if name not in UNTRACKED_ENGINE_FACTS and int(value) != int(known[name]):
                    raise _DepartureError(
                        f"the engine's {name} is {int(value)}, "
                        f"the lines before left it at {int(known[name])}"
                    )
        else:
            self.engines[line.trace] = engine.as_dict()
        return engine

    def _run(
        self, kind: _Kind, line: Transition, before: Record, engine: Record, ask: Record
    ) -> Record:
        """Run the event on a copy and compare all that the line says of it."""
        table = kind.machine.table
        events = {event.name.lower(): int(event) for event in table.events}
        states = {int(state): state.name.lower() for state in table.states}
        if line.event not in events:
            raise _DepartureError(f"there is no event {line.event!r}")
        state = getattr(before, table.state_field)
        if state not in states:
            raise _DepartureError(f"there is no state {state}")
        if line.source != states[state]:
            raise _DepartureError(f"from {line.source!r}, but the facts say {states[state]!r}")
        after = type(before)(**before.as_dict())
        records = (after, ask) if line.machine == "engine" else (after, engine, ask)
        code = kind.machine.fire(events[line.event], *records)
        row = table.rows[row_of(code)]
        answer = Answer(answer_of(code)).name.lower()
        if line.answer != answer:
            raise _DepartureError(
                f"answered {line.answer}; the declaration answers {answer}: {row.why}",
                _deciding_guard(row, records),
            )
        dest = states[getattr(after, table.state_field)]
        if line.dest != dest:
            raise _DepartureError(f"to {line.dest!r}; the declaration goes to {dest!r}: {row.why}")
        if line.why != row.why:
            raise _DepartureError(f"because {line.why!r}; the declaration says {row.why!r}")
        commands = _command_names(code)
        if tuple(sorted(line.commands)) != commands:
            raise _DepartureError(
                f"hold commands {sorted(line.commands)}; the declaration gives {list(commands)}"
            )
        self.used_rows[line.machine][row_of(code)] += 1
        return after


def _deciding_guard(row: Row, records: tuple[Record, ...]) -> str:
    """The guard whose truth value made a refusal row decide."""
    for guard in row.unless:
        return f"not {guard.__name__}"
    for guard in row.conditions:
        return guard.__name__
    return ""


def _command_names(code: int) -> tuple[str, ...]:
    commands = commands_of(code)
    return tuple(
        sorted(command.name.lower() for command in Command if commands & command and command.name)
    )


def _record(kind: type[Record], values: dict[str, int], what: str) -> Record:
    unknown = sorted(set(values) - set(kind.KINDS))
    if unknown:
        raise _DepartureError(f"{what}: {', '.join(unknown)} is not known")
    for name, value in values.items():
        if not isinstance(value, int):
            raise _DepartureError(f"{what}: {name} is {value!r}, not a number")
    return kind(**values)


def read_lines(paths: Iterable[Path]) -> Iterator[tuple[Path, int, str]]:
    """The lines of the files, one by one, without those that are blank.

    Of a line that is too long only the first part is read: it is no transition.
    """
    for path in paths:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = iter(lambda: file.readline(LONGEST_LINE), "")
            for number, text in enumerate(lines, start=1):
                if text.strip():
                    yield path, number, text


def conform(lines: Iterable[tuple[Path, int, str]], replay: Replay | None = None) -> Verdict:
    """Replay lines (file, number, text) until the first departure or the end.

    A process that is killed leaves half a line: no JSON, behind a line that agreed. It is passed
    over, and named in the verdict, if nothing of its trace follows: it has no line end and ends its
    file, or it has one and the next line of the file begins another trace. Anywhere else it is a
    departure.

    `replay`: the state that earlier lines left, which is continued; None: these are the first.
    """
    replay = Replay() if replay is None else replay
    read = matched = 0
    departure: Departure | None = None
    half: Departure | None = None  # the previous line, if it may be half a line
    ended = True  # whether `half` has a line end
    whole: Path | None = None  # the file of the previous line, if that line agreed
    cut_off: list[str] = []
    for path, number, text in lines:
        read += 1
        traces = len(replay.sequences)
        departure = _replayed(replay, path, number, text)
        if half is not None:
            begins = len(replay.sequences) > traces
            if (half.file == str(path) and not begins) or (half.file != str(path) and ended):
                departure = half
                break
            cut_off.append(f"{half.file}:{half.line}")
            half = None
        if departure is not None and path == whole and not _is_json(text):
            half, departure, whole = departure, None, None
            ended = text.endswith("\n")
            continue
        if departure is not None:
            break
        matched += 1
        whole = path
    else:
        if half is not None and ended:
            departure = half
        elif half is not None:
            cut_off.append(f"{half.file}:{half.line}")
    return Verdict(read, matched, replay.subjects, departure, replay.used_rows, tuple(cut_off))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _replayed(replay: Replay, path: Path, number: int, text: str) -> Departure | None:
    """Replay one line. Returns its departure, or None if it agrees."""
    line = None
    try:
        line = parse_transition(text)
        replay.step(line)
    except TraceFormatError as error:
        return Departure(str(path), number, str(error))
    except _DepartureError as error:
        return _departure(path, number, line, error)
    return None


def _departure(
    path: Path, number: int, line: Transition | None, error: _DepartureError
) -> Departure:
    assert line is not None
    legal: tuple[str, ...] = ()
    kind = KINDS.get(line.machine)
    if kind is not None:
        table = kind.machine.table
        state = next((s for s in table.states if s.name.lower() == line.source), None)
        legal = tuple(table.legal_events(int(state))) if state is not None else ()
    return Departure(str(path), number, error.what, line.subject, line.event, legal, error.conjunct)
