"""What is explored is what the engine does: random runs of instances are runs of its lifecycle."""

import random

import pytest
from kvproof.specs.check.declaration import standard
from kvproof.specs.explore import Instance
from kvproof.specs.explore.plain import Stepper

from .on_engine import replay_on_engine
from .systems import F, core, system_of

INSTANCES = {
    "two requests and a transfer that may go wrong": Instance(
        features=core(F.STORES, F.LEASES, F.QUARANTINE, F.DEADLINES)
    ),
    "sessions, two steps ahead": Instance(
        requests=1, transfers=0, block_size=2, prompt=1, model_length=4, steps_ahead=2,
        features=core(F.SESSIONS, F.STOPS),
    ),
    "pauses, sleep, changed weights, grammar": Instance(
        requests=1, transfers=0, features=core(F.PAUSE, F.SLEEP, F.WEIGHTS, F.GRAMMAR)
    ),
    "by the policy, with a session": Instance(
        transfers=0, block_size=2, prompt=1, model_length=4,
        features=core(F.POLICY, F.SESSIONS, F.STOPS),
    ),
    "a reset that waits": Instance(features=core(F.WAITING_RESETS)),
}  # fmt: skip
STEPS = 25


def a_run(stepper: Stepper, chooser: random.Random) -> list[str]:
    """Labels of random actions from the start; the last step is settled whole, or not begun.

    `launch_with` comes only right after a launch: the engine launches a step for all its requests
    at once.
    """
    state, labels = stepper.system.initial, []
    while len(labels) < STEPS:
        launches = bool(labels) and labels[-1].startswith("launch")
        following = [
            each
            for each in stepper.successors(state)
            if launches or stepper.system.actions[each[0]].name != "launch_with"
        ]
        if not following:
            break
        number, state, failed = chooser.choice(following)
        assert failed == []
        labels.append(stepper.system.actions[number].label)
    while labels and labels[-1].startswith(("process", "settle")):
        labels.pop()
    return labels


@pytest.mark.parametrize("runs", [5, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", INSTANCES)
def test_the_engine_does_each_action_of_a_run_and_nothing_is_wrong(name: str, runs: int) -> None:
    stepper = Stepper(system_of(INSTANCES[name]))
    for seed in range(runs):
        labels = a_run(stepper, random.Random(seed))
        replayed = replay_on_engine(INSTANCES[name], labels, standard())
        assert replayed.complaints == (), labels[: replayed.done + 1]
        assert replayed.done == len(labels), labels[: replayed.done + 1]
