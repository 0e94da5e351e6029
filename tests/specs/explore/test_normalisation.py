"""Step numbers relative to the processed step are a bisimulation: held against absolute ones."""

from typing import Any

import pytest
from kvproof.specs.explore import Instance
from kvproof.specs.explore.compiled import System
from kvproof.specs.explore.joint import normalise
from kvproof.specs.explore.plain import Stepper, Values
from kvproof.specs.explore.world import Disabled

from .systems import F, core, system_of


class AbsoluteStepper(Stepper):
    """Keeps step numbers as they are: a state is the slots' values and the processed step."""

    def __init__(self, system: System) -> None:
        super().__init__(system)
        self.world.normalises = False

    def at(self, values: Values, processed: int) -> None:
        self.load(values)
        self.world.state.e.processed = processed

    def now(self) -> tuple[Values, int]:
        return self.values(), int(self.world.state.e.processed)

    def all_from(self, values: Values, processed: int) -> dict[str, tuple[Values, int]]:
        found: dict[str, Any] = {}
        for action in self.system.actions:
            self.at(values, processed)
            try:
                action.carry_out(self.world)
            except Disabled:
                continue
            found[action.label] = self.now()
        return found

    def image(self, values: Values, processed: int) -> Values:
        """The normalised state: relative to the step before the one that is being settled."""
        state = self.world.state
        self.load(values)
        state.e.processed = processed - int(state.phase.settling)
        normalise(state)
        return self.values()


@pytest.mark.parametrize(
    ("instance", "depth"),
    [
        (Instance(requests=1, transfers=0, features=core(F.CHUNKED)), 12),
        (
            Instance(
                requests=1, transfers=0, block_size=2, prompt=1, model_length=4, steps_ahead=2,
                features=core(F.SESSIONS, F.STOPS, without=[F.RESETS]),
            ),
            10,
        ),
    ],
)  # fmt: skip
def test_absolute_and_normalised_steps_allow_the_same_actions(
    instance: Instance, depth: int
) -> None:
    system = system_of(instance)
    absolute, normal = AbsoluteStepper(system), Stepper(system)
    level = {(system.initial, 0)}
    seen = set(level)
    images: dict[Values, dict[str, Values]] = {}
    newest = 0
    for _ in range(depth):
        following = set()
        for values, processed in level:
            image = absolute.image(values, processed)
            if image not in images:
                images[image] = {
                    system.actions[number].label: after
                    for number, after, _ in normal.successors(image)
                }
            successors = absolute.all_from(values, processed)
            assert {label: absolute.image(*after) for label, after in successors.items()} == images[
                image
            ]
            following |= set(successors.values())
            newest = max(newest, processed)
        level = following - seen
        seen |= level
    assert newest >= 2, "no step number was ever clamped"
    assert len(seen) > len(images), "normalising joined no states"
