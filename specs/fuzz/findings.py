"""Findings: failures grouped by what would have to be mended.

Two failures are one finding when they have the same key: an exception of the same kind from the
same place, or the same rule broken by the same operation in the same way. What a finding needs is
remembered too, so that the search can do without it and look elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .generation import is_legal
from .rules import RULES
from .run import STANDING, Failure
from .target import NewRequest

#: Operations that every run has, so that a search cannot do without them.
EVERYWHERE = frozenset({"step", "finish_step", "add", "drain", "complete", "resume", "wake"})


@dataclass(slots=True)
class Finding:
    """A fault of the engine: its smallest failure, and how often it was met."""

    failure: Failure
    count: int
    seed: int
    operations: int  # performed until it was first met
    seconds: float

    @property
    def legal(self) -> bool:
        """A legal environment is enough: no signal was lost or repeated."""
        return is_legal(self.failure.operations)

    @property
    def title(self) -> str:
        """The finding in one sentence, ending with a full stop."""
        violation = self.failure.violation
        if violation.rule == "no-exception":
            kind = violation.detail.partition(" ")[0]
            place = self.failure.place.rpartition(" in ")[2]
            over = violation.detail.partition(" over ")[2]
            return (
                f"{self.failure.operations[-1].name} raises {kind} in {place}"
                f"{f' (over a {over})' if over else ''}."
            )
        last = self.failure.operations[-1].name
        by = "" if violation.rule in STANDING else f" by {last}"
        detail = f" ({violation.detail})" if violation.detail not in ("", last) else ""
        return f"Broken{by}{detail}: {RULES[violation.rule]}"

    @property
    def slug(self) -> str:
        """A name for the finding that can be part of an identifier."""
        violation = self.failure.violation
        last = self.failure.operations[-1].name
        words = [violation.rule, last, violation.detail]
        if violation.rule == "no-exception":
            place, _, function = self.failure.place.rpartition(" in ")
            words = [function, "line", place.rpartition(":")[2], violation.detail]
        elif violation.detail == last or (violation.detail and violation.rule in STANDING):
            words = [violation.rule, violation.detail]
        name = re.sub(r"[^a-z0-9]+", "_", " ".join(words).lower()).strip("_")
        return name[:70].rstrip("_")

    def needs(self) -> frozenset[str]:
        """What a run must be able to do to meet it again; see Plan.labels."""
        settings = self.failure.settings
        needs = {o.name for o in self.failure.operations} - EVERYWHERE
        for operation in self.failure.operations:
            for argument in operation.arguments:
                if isinstance(argument, NewRequest):
                    needs |= {"sessions"} if argument.session else set()
                    needs |= {"loads"} if argument.remote_tokens else set()
                    needs |= {"stores"} if argument.send else set()
            if operation.name == "reset":
                needs |= {"reset-running"} if operation.arguments[0] else set()
                needs |= {"reset-connector"} if operation.arguments[1] else set()
        if settings.connector != "none":
            needs.add(f"connector:{settings.connector}")
        if settings.priority:
            needs.add("priority")
        if settings.depth > 1:
            needs.add("overlap")
        if self.failure.violation.rule == "within-length":
            needs.add("stretch")
        return frozenset(needs)
