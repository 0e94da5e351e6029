"""Nothing is vacuous: some instance takes every row of every table that lets something go."""

from typing import Any

import pytest
from kvproof.specs.explore import Instance
from kvproof.specs.explore.plain import Stepper
from kvproof.statemachine import ENGINE, REQUEST, TRANSFER, Machine
from kvproof.statemachine.answers import GO, answer_of, row_of

from .systems import F, core, system_of

INSTANCES = (
    Instance(
        requests=1,
        features=core(F.GRAMMAR, F.DEADLINES, F.TRIM, F.CHUNKED, F.LEASES, F.QUARANTINE),
    ),
    Instance(requests=1, blocks=3, transfers=0, model_length=4, features=core(F.TRIM)),
    Instance(
        requests=1, transfers=0, block_size=2, prompt=1, model_length=5, chunk=2,
        features=core(F.SESSIONS, F.STOPS, F.DEADLINES, without=[F.RESETS]),
    ),
    Instance(
        requests=1, transfers=0, features=core(F.PAUSE, F.SLEEP, F.WEIGHTS, F.SHUTDOWN)
    ),
    Instance(requests=1, features=core(F.WAITING_RESETS, F.STORES, F.RECORDS, F.LEASES)),
    Instance(requests=1, features=core(F.FATAL)),
    Instance(
        requests=1, model_length=4, features=core(F.QUARANTINE, F.LEASES, F.DEADLINES)
    ),
)  # fmt: skip
MOST_STATES = 4000
#: A stop by repetition is the same as one by a token, but for the name of where it ends.
NOT_EXPLORED = {"it repeats itself"}


class Recording:
    """A machine that remembers which of its rows let something go."""

    def __init__(self, name: str, machine: Machine, rows: set[tuple[str, int]]) -> None:
        self._name, self._machine, self._rows = name, machine, rows

    def fire(self, event: int, *records: Any) -> int:
        code = self._machine.fire(event, *records)
        if answer_of(code) == GO:
            self._rows.add((self._name, row_of(code)))
        return code


@pytest.mark.long
def test_every_row_that_lets_something_go_is_taken_in_some_instance() -> None:
    taken: set[tuple[str, int]] = set()
    for instance in INSTANCES:
        stepper = Stepper(system_of(instance))
        machines = stepper.world._machines
        for name, machine in list(machines.items()):
            machines[name] = Recording(name, machine, taken)  # type: ignore[assignment]
        seen = {stepper.system.initial}
        level = list(seen)
        while level and len(seen) < MOST_STATES:
            following = {after for state in level for _, after, _ in stepper.successors(state)}
            level = list(following - seen)
            seen |= following
    never = {
        f"{name}: {row.trigger.name} ({row.why})"
        for name, machine in (("request", REQUEST), ("transfer", TRANSFER), ("engine", ENGINE))
        for number, row in machine.table.go_rows()
        if (name, number) not in taken and row.why not in NOT_EXPLORED
    }
    assert never == set()
