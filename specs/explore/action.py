"""What an action is: a name, who acts, and a function that carries it out on a world."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from . import expressions as ex
from .world import World


class Party(enum.StrEnum):
    """Who acts: whom a script shows as sender, and whose fairness an assumption speaks of."""

    CLIENT = "client"
    ENGINE = "engine"
    DEVICE = "device"
    CONNECTOR = "connector"
    CLOCK = "clock"


Body: TypeAlias = Callable[[World], None]


@dataclass(frozen=True)
class Action:
    """One thing that can happen, with all its arguments fixed: a partial function of the state.

    `subject` is the record that it is about ("r0", "t1", "engine"). Actions of one `name` and
    `subject` differ in their arguments only.
    """

    name: str
    party: Party
    subject: str
    body: Body = field(compare=False, repr=False)
    arguments: tuple[tuple[str, object], ...] = ()
    settling: bool = False  # goes while the rows of a processed step are being settled

    @property
    def label(self) -> str:
        """As scripts show it: `admit(r0, hits=1, fresh=b2)`."""
        told = [f"{name}={value}" for name, value in self.arguments]
        return f"{self.name}({', '.join([self.subject, *told])})"

    def carry_out(self, w: World) -> None:
        """Carry the action out. Raises Disabled on a real world where it is not enabled."""
        settling = w.state.phase.settling
        w.require(settling if self.settling else ex.no(settling))
        self.body(w)


def helps(action: Action) -> bool:
    """Whether it gets work on: no client's call, no fault, nothing that is refused anyway."""
    wrong = action.name == "lose" or action.name.startswith("wrong_")
    return action.party is not Party.CLIENT and not wrong
