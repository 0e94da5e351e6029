"""A plain search over the real functions: compiled cells and block functions on slot records.

No expression, no array, no packing: what the array search is held against, state by state. It
knows of the declaration what Python does when it calls it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from .action import helps
from .compiled import System
from .deadlock import never_stuck, work_left
from .invariants import invariants_of
from .world import Disabled, RealWorld, initial_state

#: The values of the slots, in their order.
Values = tuple[int, ...]


@dataclass
class PlainResult:
    """What a plain search found. `findings` are (name, state, action's label or "")."""

    states: int
    transitions: int
    levels: list[int]
    seconds: float
    complete: bool
    findings: list[tuple[str, Values, str]] = field(default_factory=list)


class Stepper:
    """Carries actions out on real records, from states given as values."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.world: RealWorld = system.real()
        initial_state(self.world.state, system.instance)
        self._invariants = invariants_of(system.instance)
        named = self.world.state.named
        self._fields = [(named[slot.record], slot.field) for slot in system.slots]

    def load(self, values: Values) -> None:
        """Put a state into the records."""
        for (record, name), value in zip(self._fields, values, strict=True):
            setattr(record, name, value)
        self.world.state.derive(self.system.instance)
        self.world.dirty = False
        self.world.failed.clear()

    def values(self) -> Values:
        """The state that is in the records."""
        return tuple(int(value) for value in self.world.state.values(self.system.slots))

    def successors(self, values: Values) -> Iterator[tuple[int, Values, list[str]]]:
        """Each enabled action: its number, the state after it, and the checks that it failed."""
        self.load(values)
        for number, action in enumerate(self.system.actions):
            try:
                action.carry_out(self.world)
            except Disabled:
                if self.world.dirty:
                    self.load(values)
                continue
            yield number, self.values(), list(self.world.failed)
            self.load(values)

    def step(self, values: Values, number: int) -> tuple[Values, list[str]]:
        """One action. Raises Disabled where it is not enabled."""
        self.load(values)
        self.system.actions[number].carry_out(self.world)
        return self.values(), list(self.world.failed)

    def broken(self, values: Values) -> list[str]:
        """The invariants that do not hold, each as "name: subject"."""
        self.load(values)
        return [
            f"{invariant.name}: {invariant.subject}"
            for invariant in self._invariants
            if not invariant.holds(self.world)
        ]

    def stuck(self, values: Values) -> bool:
        """Whether work is left and nobody but clients can act."""
        self.load(values)
        if not never_stuck(self.system.instance) or not work_left(self.world):
            return False
        return not any(helps(self.system.actions[n]) for n, _, _ in self.successors(values))

    def out_of_range(self, values: Values) -> list[str]:
        """The facts that have left their range."""
        return [
            f"a fact leaves its range: {slot.name}"
            for slot, value in zip(self.system.slots, values, strict=True)
            if not slot.low <= value <= slot.high
        ]


def plain_search(
    system: System,
    *,
    most_levels: int | None = None,
    most_states: int | None = None,
    check: bool = False,
    report: Callable[[int, int], None] | None = None,
) -> PlainResult:
    """Breadth-first search with a Python set. `check`: evaluate the invariants of each state."""
    begin = time.monotonic()
    stepper = Stepper(system)
    seen = {system.initial}
    level = [system.initial]
    result = PlainResult(1, 0, [1], 0.0, True)
    while level:
        if most_levels is not None and len(result.levels) > most_levels:
            result.complete = False
            break
        following: list[Values] = []
        for values in level:
            if check:
                result.findings += [(name, values, "") for name in stepper.broken(values)]
            for number, after, failed in stepper.successors(values):
                result.transitions += 1
                if failed:
                    label = system.actions[number].label
                    result.findings += [(name, values, label) for name in failed]
                if after not in seen:
                    seen.add(after)
                    following.append(after)
        if report is not None:
            report(len(result.levels), len(seen))
        if most_states is not None and len(seen) > most_states:
            result.complete = False
            break
        level = following
        if level:
            result.levels.append(len(level))
    result.states = len(seen)
    result.seconds = time.monotonic() - begin
    return result
