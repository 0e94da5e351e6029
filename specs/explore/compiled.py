"""The guarded commands of an instance: for each action its guard, new values and checks.

Each action is carried out once on expressions (`TermWorld`), which calls the summaries of the
declaration's compiled cells and block functions. What the guard says is then put into the new
values, so that most of the branches of a function fold away.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..check.declaration import Declaration
from . import expressions as ex
from . import walking
from .action import Action
from .actions import actions_of
from .expressions import Value
from .instance import Instance
from .invariants import Invariant, invariants_of
from .structure import Slot, State, slots_of
from .summaries import Summaries
from .world import RealWorld, TermWorld, initial_state


@dataclass(frozen=True)
class Check:
    """What must hold of a transition; `holds` is over the state before, where the guard holds."""

    name: str
    holds: Value


@dataclass(frozen=True)
class Command:
    """One action as a guarded command.

    `updates` has the new value of each slot that changes, all over the state before.
    """

    action: Action
    guard: Value
    updates: dict[str, Value]
    checks: tuple[Check, ...]


class System:
    """One declaration in one instance: slots, actions, guarded commands, invariants."""

    def __init__(self, instance: Instance, declaration: Declaration) -> None:
        self.instance = instance
        self.declaration = declaration
        self.slots: list[Slot] = slots_of(instance)
        self.actions: list[Action] = actions_of(instance)
        self.summaries = Summaries(declaration, instance)

    @cached_property
    def initial(self) -> tuple[int, ...]:
        """The values of the slots at the start."""
        state = State(self.instance, self.declaration)
        initial_state(state, self.instance)
        return tuple(int(value) for value in state.values(self.slots))

    @cached_property
    def commands(self) -> list[Command]:
        """The guarded commands of the actions that can be enabled at all, in their order."""
        found = (self._command(action) for action in self.actions)
        return [command for command in found if command is not None]

    @cached_property
    def invariants(self) -> list[tuple[Invariant, Value]]:
        """Each invariant as an expression over the slots; those that fold to true are left out."""
        world = self.terms()
        found = [(each, ex.truth(each.holds(world))) for each in invariants_of(self.instance)]
        return [(each, holds) for each, holds in found if holds is not True]

    def real(self) -> RealWorld:
        """A world of real records."""
        return RealWorld(self.instance, self.declaration)

    def terms(self) -> TermWorld:
        """A world of expressions, in an arbitrary state."""
        return TermWorld(self.summaries, self.slots, self.instance)

    def _command(self, action: Action) -> Command | None:
        world = self.terms()
        before = world.state.values(self.slots)
        action.carry_out(world)
        guard = ex.both(*world.guard)
        if guard is False:
            return None
        known = walking.learned(guard)
        memo: dict[int, Value] = {}
        updates: dict[str, Value] = {}
        for slot, old, new in zip(self.slots, before, world.state.values(self.slots), strict=True):
            value = ex.truth(new) if slot.boolean else ex.number(new)
            value = walking.replace(value, known, memo)
            if value is not old:
                updates[slot.name] = value
        checks = tuple(
            Check(name, holds)
            for name, condition in world.checks
            if (holds := ex.truth(walking.replace(condition, known, memo))) is not True
        )
        return Command(action, guard, updates, checks)
