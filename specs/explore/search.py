"""Level-synchronous breadth-first search over packed states, by array operations.

A level is expanded chunk by chunk: its words are unpacked to columns, one kernel evaluates every
guard and every invariant, and for each action that is enabled somewhere another computes the new
values of the fields that it changes. All successors of a chunk are packed and inserted at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import expressions as ex
from .action import helps
from .backend import Array, Backend, NumpyBackend
from .compiled import Command, System
from .deadlock import NOT_STUCK, never_stuck, work_left
from .expressions import Value
from .invariants import Invariant
from .kernels import Kernel, NewByte
from .layout import Layout, Place
from .symmetry import Canonical
from .visited import Visited

#: States that are expanded at once.
CHUNK = 1 << 16


@dataclass(frozen=True)
class Finding:
    """Something that must not be, in a state or on a transition from it.

    `action` is the number of the command, -1 where the state itself is at fault.
    """

    name: str
    subject: str
    state: int
    action: int = -1


@dataclass
class Progress:
    """How far a search is."""

    level: int = 0
    states: int = 1
    expanded: int = 0
    transitions: int = 0
    seconds: float = 0.0


@dataclass
class Found:
    """The result of a search. `complete`: every reachable state was expanded."""

    states: int
    transitions: int
    levels: list[int]
    seconds: float
    complete: bool
    findings: list[Finding] = field(default_factory=list)
    fired: dict[int, int] = field(default_factory=dict)  # by number of command: how often


class _Update:
    """How one command packs its successors, and what is wrong with some of them."""

    def __init__(self, command: Command, layout: Layout, backend: Backend) -> None:
        self.command = command
        #: For each condition of the kernel what it means: (name, subject).
        self.faults: list[tuple[str, str]] = []
        wanted: list[Value] = []
        fields: dict[int, list[tuple[Place, Value]]] = {}
        for name, value in command.updates.items():
            place = layout.by_name[name]
            slot = place.slot
            outside = ex.either(
                ex.no(ex.at_most(slot.low, ex.number(value))),
                ex.no(ex.at_most(ex.number(value), slot.high)),
            )
            if outside is not False:
                self.faults.append(("a fact leaves its range", name))
                wanted.append(outside)
            fields.setdefault(place.byte, []).append((place, value))
        for check in command.checks:
            self.faults.append((check.name, command.action.label))
            wanted.append(ex.no(check.holds))
        new = [_new_byte(byte, parts) for byte, parts in sorted(fields.items())]
        self.bytes = [each.byte for each in new]
        self.kernel = Kernel(layout, backend, wanted, new)


def _new_byte(byte: int, parts: list[tuple[Place, Value]]) -> NewByte:
    keep, constant, fields = 255, 0, []
    for place, value in parts:
        keep &= ~(place.mask << place.shift)
        if isinstance(value, ex.Expr):
            fields.append((place, value))
        else:
            # Out of range, it is a finding anyway.
            constant |= ((int(value) - place.slot.low) & place.mask) << place.shift
    return NewByte(byte, keep, constant, tuple(fields))


def _not_stuck(system: System) -> tuple[Invariant, Value]:
    """Where work is left, somebody can act who is not a client."""
    holds: Value = True
    if never_stuck(system.instance):
        able = [command.guard for command in system.commands if helps(command.action)]
        holds = ex.either(ex.no(work_left(system.terms())), *able)
    return Invariant(NOT_STUCK, "engine", lambda world: True), holds


class Search:
    """One search of a system. Raises InstanceError if its states cannot be packed."""

    def __init__(
        self,
        system: System,
        *,
        backend: Backend | None = None,
        symmetry: bool = False,
        chunk: int = CHUNK,
    ) -> None:
        self.system = system
        self.backend = backend or NumpyBackend()
        self.layout = Layout(system.slots, aligned=symmetry)
        self.canonical = Canonical(self.layout, system.instance, self.backend) if symmetry else None
        self.commands = system.commands
        self.chunk = chunk
        self._updates = [_Update(command, self.layout, self.backend) for command in self.commands]
        self._invariants = list(system.invariants)
        guards = [command.guard for command in self.commands]
        self._invariants += [_not_stuck(system)]
        broken = [ex.no(holds) for _, holds in self._invariants]
        self._conditions = Kernel(self.layout, self.backend, [*guards, *broken])
        self.visited = Visited(self.backend, self.layout.words)
        self.parents = self.backend.full(1 << 16, -1)
        self.through = self.backend.full(1 << 16, -1)

    def run(
        self,
        *,
        most_states: int | None = None,
        most_levels: int | None = None,
        stop_at_first: bool = True,
        report: Callable[[Progress], None] | None = None,
    ) -> Found:
        """Search to the end, to a limit, or to the first level with a finding."""
        begin = time.monotonic()
        start = self.backend.from_rows([self.layout.pack(self.system.initial)])
        self.visited.add(start if self.canonical is None else self.canonical.apply(start))
        found = Found(1, 0, [1], 0.0, True)
        progress = Progress()
        first, last = 0, 1
        while first < last:
            if most_levels is not None and len(found.levels) > most_levels:
                found.complete = False
                break
            for low in range(first, last, self.chunk):
                high = min(low + self.chunk, last)
                self._expand(low, high, found)
                progress.states, progress.expanded = self.visited.size, high
                progress.level, progress.transitions = len(found.levels), found.transitions
                progress.seconds = time.monotonic() - begin
                if report is not None:
                    report(progress)
                if most_states is not None and self.visited.size > most_states:
                    break
            if found.findings and stop_at_first:
                found.complete = False
                break
            if most_states is not None and self.visited.size > most_states:
                found.complete = False
                break
            first, last = last, self.visited.size
            if last > first:
                found.levels.append(last - first)
        found.states = self.visited.size
        found.seconds = time.monotonic() - begin
        return found

    def successors(
        self, rows: Array, base: int, found: Found
    ) -> Iterator[tuple[int, Array, Array]]:
        """For each command that is enabled somewhere: its number, where, and the successors.

        Findings are noted on the way; `base` is the number of the first of the states.
        """
        xp = self.backend
        matrix = xp.bytes_of(rows)
        conditions = self._conditions.run(matrix)
        count = len(self.commands)
        for (invariant, _), broken in zip(self._invariants, conditions[count:], strict=True):
            where = self._first(broken)
            if where >= 0:
                found.findings.append(Finding(invariant.name, invariant.subject, base + where))
        for number, update in enumerate(self._updates):
            enabled = conditions[number]
            index = xp.arange(0, len(rows)) if enabled is True else xp.flatnonzero(enabled)
            if not len(index):
                continue
            packed = xp.take(rows, index)
            part = xp.bytes_of(packed)
            results = update.kernel.run(part)
            for (name, subject), broken in zip(update.faults, results, strict=False):
                where = self._first(broken)
                if where >= 0:
                    state = base + int(index[where])
                    found.findings.append(Finding(name, subject, state, number))
            for byte, column in zip(update.bytes, results[len(update.faults) :], strict=True):
                part[:, byte] = column
            yield number, index, packed

    def _first(self, condition: Any) -> int:
        """The first place where a condition holds, -1 for none."""
        if isinstance(condition, bool):
            return 0 if condition else -1
        if not self.backend.any(condition):
            return -1
        return int(self.backend.flatnonzero(condition)[0])

    def _expand(self, low: int, high: int, found: Found) -> None:
        xp = self.backend
        batches: list[tuple[int, Array, Array]] = []
        for number, index, packed in self.successors(self.visited.rows[low:high], low, found):
            found.transitions += len(index)
            found.fired[number] = found.fired.get(number, 0) + len(index)
            if self._updates[number].bytes:  # else it leads to where it came from
                batches.append((number, index, packed))
        if not batches:
            return
        before = self.visited.size
        candidates = xp.concatenate([packed for _, _, packed in batches])
        if self.canonical is not None:
            candidates = self.canonical.apply(candidates)
        new = self.visited.add(candidates)
        if not len(new):
            return
        after = self.visited.size
        if after > len(self.parents):
            self.parents = self._grown(self.parents, 2 * after)
            self.through = self._grown(self.through, 2 * after)
        sources = xp.concatenate([index for _, index, _ in batches])
        numbers = xp.repeated(
            [number for number, _, _ in batches], [len(index) for _, index, _ in batches]
        )
        self.parents[before:after] = xp.int32(xp.take(sources, new) + low)
        self.through[before:after] = xp.take(numbers, new)

    def _grown(self, array: Array, capacity: int) -> Array:
        larger = self.backend.full(capacity, -1)
        larger[: len(array)] = array
        return larger

    def path_to(self, state: int) -> list[tuple[int, int]]:
        """The way to a state: (number of the command, number of the state after it)."""
        way: list[tuple[int, int]] = []
        while self.parents[state] >= 0:
            way.append((int(self.through[state]), state))
            state = int(self.parents[state])
        return way[::-1]

    def values(self, state: int) -> tuple[int, ...]:
        """The slots of a state, by its number."""
        return self.layout.unpack([int(word) for word in self.visited.rows[state]])
