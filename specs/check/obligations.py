"""What `kvproof check` proves: the obligations by their ids, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .conditions import Condition
from .engine_safety import s6, s7, s8
from .fairness import need
from .progress import p1, p2, p3, p4, p6
from .proofs import Proofs
from .resources import p5
from .rows import s9
from .safety import s1, s2, s3, s4, s5, s10

INDUCTION = "induction"
DIFFERENCES = "differences"
CASES = "cases"
RANKING = "ranking"


@dataclass(frozen=True)
class Obligation:
    """One line of the design: its own statement, carried by invariants of the same id.

    `short` says it in at most 34 characters, for a line of a table in a terminal of 80 columns.
    """

    id: str
    short: str
    statement: str
    method: str
    own: Callable[[Proofs], Iterator[Condition]]

    def conditions(self, proofs: Proofs) -> Iterator[Condition]:
        """Initiation and consecution of its invariants, then the statement itself."""
        yield from proofs.initiation(self.id)
        yield from proofs.consecution(self.id)
        yield from self.own(proofs)
        yield from need(proofs, self.id)


OBLIGATIONS = (
    Obligation(
        "S1",
        "a block's count equals its holds",
        "a block's count equals the number of holds that cover it",
        DIFFERENCES,
        s1,
    ),
    Obligation(
        "S2",
        "nothing frees a block with a hold",
        "a block with a hold is never freed, re-hashed or handed out; what may still touch a "
        "block has a hold; a reset never frees a referenced block",
        INDUCTION,
        s2,
    ),
    Obligation(
        "S3",
        "no hold is lost or released twice",
        "each (hold, block) is released at most once, and exactly once when its owner ends "
        "outside quarantine; late and duplicate signals change nothing",
        DIFFERENCES,
        s3,
    ),
    Obligation("S4", "state and facts agree", "state and facts agree", INDUCTION, s4),
    Obligation(
        "S5",
        "a request is where its state says",
        "every live request is in the container that its state says; counters equal what they "
        "count",
        DIFFERENCES,
        s5,
    ),
    Obligation(
        "S6",
        "a refused reset changes nothing",
        "a refused reset changes nothing; a tier is cleared only after the device",
        CASES,
        s6,
    ),
    Obligation(
        "S7",
        "a reset leaves no older hit behind",
        "after a reset no earlier block of its tiers can be a hit; after weights_changed, of any",
        INDUCTION,
        s7,
    ),
    Obligation(
        "S8",
        "no memory is discarded while held",
        "memory is discarded only when no hold and no quarantined block is left; no step runs "
        "without it; failed calls go back",
        INDUCTION,
        s8,
    ),
    Obligation(
        "S9",
        "each row does just what it says",
        "the tables are total; each row does what it says and nothing else; what does not go "
        "changes nothing",
        CASES,
        s9,
    ),
    Obligation(
        "S10",
        "a block's hash is of its content",
        "a cached block's hashed_as is its content_of, and it is written",
        INDUCTION,
        s10,
    ),
    Obligation(
        "P1",
        "only transfers stop a forced reset",
        "when a forced reset is refused there is a transfer to name",
        CASES,
        p1,
    ),
    Obligation(
        "P2",
        "a waiting forced reset succeeds",
        "a pending forced reset succeeds if the transfers in flight all end",
        RANKING,
        p2,
    ),
    Obligation(
        "P3", "reclaiming always makes progress", "reclaiming always makes progress", RANKING, p3
    ),
    Obligation(
        "P4",
        "each outside wait has a deadline",
        "every state that waits for an outside party has a deadline, and leaves",
        CASES,
        p4,
    ),
    Obligation(
        "P5", "no deadlock, no livelock", "no deadlock and no livelock of resources", RANKING, p5
    ),
    Obligation(
        "P6",
        "parked sessions take no run slot",
        "parked sessions take no run slot, and delay others at most until they are reclaimed",
        CASES,
        p6,
    ),
)

BY_ID = {obligation.id: obligation for obligation in OBLIGATIONS}
