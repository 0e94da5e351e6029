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

import numpy as np
from numpy.typing import NDArray

from . import expressions as ex
from .compiled import Command, System
from .expressions import Value
from .kernels import Kernel
from .layout import Layout, Place
from .visited import Visited, Words

CHUNK = 1 << 16


class NumpyArrays:
    """The array operations of numpy."""

    _TYPES: Any = {8: np.int8, 16: np.int16, 32: np.int32}

    @staticmethod
    def where(condition: Any, then: Any, otherwise: Any) -> Any:
        return np.where(condition, then, otherwise)

    def constant(self, value: int, bits: int) -> Any:
        return self._TYPES[bits](value)

    def one(self, condition: Any, bits: int) -> Any:
        return condition.view(np.int8) if bits == 8 else condition.astype(self._TYPES[bits])

    def widen(self, column: Any, bits: int) -> Any:
        return column.astype(self._TYPES[bits], copy=False)


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
    """How one command packs its successors."""

    def __init__(self, command: Command, layout: Layout, arrays: NumpyArrays) -> None:
        self.command = command
        places = {name: layout.by_name[name] for name in command.updates if name in layout.by_name}
        self.ranges: list[tuple[str, int]] = []
        wanted: list[Value] = []
        self.fields: list[tuple[Place, int]] = []
        self.clear = [0] * layout.words
        self.set = [0] * layout.words
        for name, place in places.items():
            value = command.updates[name]
            slot = place.slot
            self.clear[place.word] |= place.mask << place.shift
            number = ex.number(value)
            if isinstance(number, ex.Expr):
                if number.low < slot.low or number.high > slot.high:
                    outside = ex.either(
                        ex.no(ex.at_most(slot.low, number)), ex.no(ex.at_most(number, slot.high))
                    )
                    self.ranges.append((name, len(wanted)))
                    wanted.append(outside)
                self.fields.append((place, len(wanted)))
                # Truth values stay bools: they are widened while packing.
                wanted.append(value if slot.boolean else number - slot.low)
            elif slot.low <= number <= slot.high:
                self.set[place.word] |= (number - slot.low) << place.shift
            else:
                self.ranges.append((name, len(wanted)))
                wanted.append(True)
        self.checks: list[tuple[str, int]] = []
        for check in command.checks:
            self.checks.append((check.name, len(wanted)))
            wanted.append(ex.no(check.holds))
        self.kernel = Kernel(wanted, arrays)
        self.touched = [word for word in range(layout.words) if self.clear[word]]


class Search:
    """One search of a system. Raises InstanceError if its states cannot be packed."""

    def __init__(self, system: System, *, chunk: int = CHUNK) -> None:
        self.system = system
        self.layout = Layout(system.slots)
        self.commands = system.commands
        self.chunk = chunk
        arrays = NumpyArrays()
        self._updates = [_Update(command, self.layout, arrays) for command in self.commands]
        self._invariants = system.invariants
        self._conditions = Kernel(
            [command.guard for command in self.commands]
            + [ex.no(holds) for _, holds in self._invariants],
            arrays,
        )
        used = set(self._conditions.inputs).union(*(each.kernel.inputs for each in self._updates))
        self._columns = [place for place in self.layout.places if place.slot.name in used]
        self.visited = Visited(self.layout.words)
        self.parents: NDArray[np.int32] = np.full(1 << 16, -1, np.int32)
        self.through: NDArray[np.int16] = np.full(1 << 16, -1, np.int16)

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
        start = [np.array([word], np.int64) for word in self.layout.pack(self.system.initial)]
        self.visited.add(start)
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

    def columns(self, words: Words) -> dict[str, Any]:
        """Unpack packed words to columns by slot name."""
        result: dict[str, Any] = {}
        for place in self._columns:
            word = words[place.word]
            bits = (word >> place.shift) & place.mask if place.shift else word & place.mask
            if place.slot.boolean:
                result[place.slot.name] = bits.astype(np.int8).view(bool)
            else:
                small = bits.astype(np.int8 if place.slot.high < 128 else np.int16)
                if place.slot.low:
                    small += small.dtype.type(place.slot.low)
                result[place.slot.name] = small
        return result

    def successors(self, words: Words, base: int, found: Found) -> Iterator[tuple[int, Any, Words]]:
        """For each command that is enabled somewhere: its number, where, and the new words.

        Findings are noted on the way; `base` is the number of the first of the states.
        """
        columns = self.columns(words)
        conditions = self._conditions.run(columns)
        count = len(self.commands)
        for (invariant, _), broken in zip(self._invariants, conditions[count:], strict=True):
            if broken is not False and np.any(broken):
                where = 0 if broken is True else int(np.argmax(broken))
                found.findings.append(Finding(invariant.name, invariant.subject, base + where))
        for number, update in enumerate(self._updates):
            enabled = conditions[number]
            if enabled is True:
                index = np.arange(len(words[0]))
            else:
                index = np.flatnonzero(enabled)
                if not len(index):
                    continue
            part = {name: columns[name][index] for name in update.kernel.inputs}
            values = update.kernel.run(part)
            self._note(update, number, values, index, base, found)
            yield number, index, self._packed(update, words, index, values)

    def _note(
        self, update: _Update, number: int, values: Any, index: Any, base: int, found: Found
    ) -> None:
        for name, position in update.ranges:
            outside = values[position]
            if np.any(outside):
                at = 0 if outside is True else int(np.argmax(outside))
                found.findings.append(
                    Finding("a fact leaves its range", name, base + int(index[at]), number)
                )
        for name, position in update.checks:
            broken = values[position]
            if np.any(broken):
                at = 0 if broken is True else int(np.argmax(broken))
                subject = update.command.action.label
                found.findings.append(Finding(name, subject, base + int(index[at]), number))

    def _packed(self, update: _Update, words: Words, index: Any, values: Any) -> Words:
        packed = [word[index] for word in words]
        for word in update.touched:
            packed[word] &= ~update.clear[word]
            if update.set[word]:
                packed[word] |= update.set[word]
        for place, position in update.fields:
            bits = values[position].astype(np.int64)
            if place.shift:
                bits <<= place.shift
            packed[place.word] |= bits
        return packed

    def _expand(self, low: int, high: int, found: Found) -> None:
        words = [word[low:high] for word in self.visited.words]
        batches: list[tuple[int, Any, Words]] = []
        for number, index, packed in self.successors(words, low, found):
            found.transitions += len(index)
            found.fired[number] = found.fired.get(number, 0) + len(index)
            batches.append((number, index, packed))
        if not batches:
            return
        candidates = [
            np.concatenate([packed[word] for _, _, packed in batches])
            for word in range(self.layout.words)
        ]
        before = self.visited.size
        new = self.visited.add(candidates)
        if not len(new):
            return
        sources = np.concatenate([index for _, index, _ in batches])
        numbers = np.repeat(
            np.array([number for number, _, _ in batches], np.int16),
            [len(index) for _, index, _ in batches],
        )
        after = self.visited.size
        if after > len(self.parents):
            self.parents = _grown(self.parents, max(after, 2 * len(self.parents)))
            self.through = _grown(self.through, len(self.parents))
        self.parents[before:after] = sources[new] + low
        self.through[before:after] = numbers[new]

    def path_to(self, state: int) -> list[tuple[int, int]]:
        """The way to a state: (number of the command, number of the state after it)."""
        way: list[tuple[int, int]] = []
        while self.parents[state] >= 0:
            way.append((int(self.through[state]), state))
            state = int(self.parents[state])
        return way[::-1]

    def values(self, state: int) -> tuple[int, ...]:
        """The slots of a state, by its number."""
        return self.layout.unpack([int(word[state]) for word in self.visited.words])


def _grown(array: Any, capacity: int) -> Any:
    larger = np.full(capacity, -1, array.dtype)
    larger[: len(array)] = array
    return larger
