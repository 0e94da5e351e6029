"""Counterexamples for people: what happened, step by step, as text, as a picture and as a test.

A script is read off a search's parents. Under symmetry these name states of other numbering, so
the way is gone again on real records, from the initial state, taking at each step an action that
leads into the orbit that the search went through.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from ...statemachine.states import EngineMode, RequestState, TransferState
from .action import Action, Party
from .compiled import System
from .deadlock import NOT_STUCK
from .instance import Instance
from .plain import Stepper, Values
from .search import Finding, Search


@dataclass(frozen=True)
class Step:
    """One action, and what it changed: (slot, before, after)."""

    action: Action
    changes: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Script:
    """A run from the initial state. From step `again` on it is repeated for ever, if given.

    `name` is what it breaks, `subject` who is concerned. `repeats` and nothing to repeat: the run
    stays in its last state for ever.
    """

    instance: Instance
    name: str
    subject: str
    steps: tuple[Step, ...]
    again: int | None = None

    @property
    def labels(self) -> list[str]:
        """The actions, as `replay` takes them."""
        return [step.action.label for step in self.steps]


class CannotReplayError(ValueError):
    """A script has an action that is not enabled where it comes."""


def script_of(search: Search, finding: Finding) -> Script:
    """The shortest way to a finding; the last step is the one at fault, if one is."""
    if search.canonical is None:
        numbers = _numbers(search, finding.state)
        if finding.action >= 0:
            numbers.append(_number(search, search.commands[finding.action].action))
    else:
        numbers = _gone_again(search, finding)
    steps = steps_of(search.system, numbers)
    return Script(search.system.instance, finding.name, finding.subject, steps)


def steps_of(system: System, numbers: Sequence[int]) -> tuple[Step, ...]:
    """Carry actions out, by their numbers, on real records from the initial state."""
    stepper = Stepper(system)
    values, steps = system.initial, []
    for number in numbers:
        after, _ = stepper.step(values, number)
        changes = tuple(
            (slot.name, old, new)
            for slot, old, new in zip(system.slots, values, after, strict=True)
            if old != new
        )
        steps.append(Step(system.actions[number], changes))
        values = after
    return tuple(steps)


def _numbers(search: Search, state: int) -> list[int]:
    way = search.path_to(state)
    return [_number(search, search.commands[command].action) for command, _ in way]


def _number(search: Search, action: Action) -> int:
    """An action's number among all actions of the system."""
    return next(n for n, each in enumerate(search.system.actions) if each is action)


def _gone_again(search: Search, finding: Finding) -> list[int]:
    """The way to a state's orbit on real records, and the step at fault, by the same name."""
    stepper = Stepper(search.system)
    values, numbers = search.system.initial, []
    for _, state in search.path_to(finding.state):
        goal = search.values(state)
        number, values = next(
            (number, after)
            for number, after, _ in stepper.successors(values)
            if not stepper.out_of_range(after) and _canonical(search, after) == goal
        )
        numbers.append(number)
    if finding.action >= 0:
        name = search.commands[finding.action].action.name
        for number, after, failed in stepper.successors(values):
            broken = failed + stepper.out_of_range(after)
            wanted = any(each.startswith(finding.name) for each in broken)
            if search.system.actions[number].name == name and wanted:
                return [*numbers, number]
        raise AssertionError("no action of that name is at fault in this state")
    return numbers


def _canonical(search: Search, values: Values) -> Values:
    assert search.canonical is not None
    rows = search.backend.from_rows([search.layout.pack(values)])
    least = search.canonical.apply(rows)
    return search.layout.unpack([int(word) for word in least[0]])


# --- running a script ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Replayed:
    """What came of a script on real records: what does not hold on the way or at its end."""

    values: Values
    broken: tuple[str, ...]


def replay(system: System, labels: Sequence[str]) -> Replayed:
    """Carry out actions by their labels, on the real functions, and check everything.

    Raises CannotReplayError for an action that is unknown or not enabled.
    """
    from .world import Disabled

    numbers = {action.label: number for number, action in enumerate(system.actions)}
    stepper = Stepper(system)
    values, broken = system.initial, list(stepper.broken(system.initial))
    for position, label in enumerate(labels):
        if label not in numbers:
            raise CannotReplayError(f"step {position + 1}: this instance has no action {label}")
        try:
            values, failed = stepper.step(values, numbers[label])
        except Disabled:
            raise CannotReplayError(f"step {position + 1}: {label} is not enabled here") from None
        outside = stepper.out_of_range(values)
        broken += failed + outside
        if not outside:
            broken += stepper.broken(values)
    if labels and not stepper.out_of_range(values) and stepper.stuck(values):
        broken.append(NOT_STUCK)
    return Replayed(values, tuple(dict.fromkeys(broken)))


# --- writing it down ----------------------------------------------------------------------------

_STATES: dict[str, type[IntEnum]] = {"r": RequestState, "t": TransferState}


def as_text(script: Script) -> str:
    """Numbered lines: who acts, what, and which states change."""
    lines = [f"{script.name} ({script.subject})", f"  {script.instance}", ""]
    for position, step in enumerate(script.steps):
        if script.again == position:
            lines.append("  and from here on, for ever:")
        told = "; ".join(_told(step))
        line = f"{position + 1:4}  {step.action.party:<10}{step.action.label}"
        lines.append(f"{line:<64}{told}".rstrip())
    if script.again is not None and script.again >= len(script.steps):
        lines.append("  and then, for ever, nothing that is assumed to happen")
    return "\n".join(lines) + "\n"


def _told(step: Step) -> list[str]:
    """The changes that a reader looks for: states, modes, counts."""
    found = []
    for name, before, after in step.changes:
        record, _, field = name.partition(".")
        kind = record.rstrip("0123456789_")
        if field == "state" and kind in _STATES:
            names = _STATES[kind]
            found.append(f"{record} {names(before).name} → {_name(names, after)}")
        elif name == "e.mode":
            found.append(f"{EngineMode(before).name} → {_name(EngineMode, after)}")
        elif kind == "b" and field in ("count", "cached"):
            found.append(f"{record} {field} {before} → {after}")
    return found


def _name(names: type[IntEnum], value: int) -> str:
    return names(value).name if value in set(names) else str(value)


_RECEIVERS = {Party.DEVICE: "engine", Party.CONNECTOR: "engine", Party.CLOCK: "engine"}


def as_mermaid(script: Script) -> str:
    """A Mermaid sequence diagram."""
    lines = ["sequenceDiagram"]
    subjects = dict.fromkeys(step.action.subject for step in script.steps)
    parties = dict.fromkeys(step.action.party for step in script.steps)
    lines += [f"    participant {party}" for party in parties if party is not Party.ENGINE]
    lines.append("    participant engine")
    lines += [f"    participant {subject}" for subject in subjects if subject != "engine"]
    for position, step in enumerate(script.steps):
        if script.again == position:
            lines.append("    loop for ever")
        receiver = _RECEIVERS.get(step.action.party, step.action.subject)
        lines.append(f"    {step.action.party}->>{receiver}: {step.action.label}")
        told = "<br>".join(_told(step))
        if told:
            lines.append(f"    Note over {step.action.subject}: {told}")
    if script.again is not None and script.again < len(script.steps):
        lines.append("    end")
    lines.append(f"    Note over engine: {script.name} ({script.subject})")
    return "\n".join(lines) + "\n"


def as_pytest(script: Script) -> str:
    """A stand-alone test that fails as long as the declaration has the fault."""
    words = re.sub(r"[^a-z0-9]+", "_", script.name.lower()).strip("_")
    instance = script.instance
    fields = ", ".join(
        f"{name}={getattr(instance, name)}"
        for name in type(instance).__dataclass_fields__
        if name != "features"
    )
    features = ", ".join(f"Feature.{feature.name}" for feature in sorted(instance.features))
    body = "\n".join(f'    "{label}",' for label in script.labels)
    kept = f"frozenset({{{features}}})" if features else "frozenset()"
    return f'''"""{script.name} ({script.subject}): the shortest way in which it is broken."""

from kvproof.specs.explore import Feature, Instance, replay_on_declaration

INSTANCE = Instance(
    {fields},
    features={kept},
)
SCRIPT = [
{body}
]


def test_{words}() -> None:
    assert replay_on_declaration(INSTANCE, SCRIPT).broken == ()
'''
