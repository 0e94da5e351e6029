"""What a trial found: one line of the table, true only if each of its checks is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Row:
    """One trial. The columns are what was seen; the checks are what had to be."""

    name: str
    refused: str = ""  # by which kinds, in which order, and how often
    true_when: str = ""
    same: str = ""  # outputs whose token ids are those of an undisturbed run
    loaded_bytes: int = 0
    after: str = ""
    seconds: float = 0.0
    failed: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    missed: bool = False  # the load had ended before the reset came: the trial shows nothing

    def check(self, what: str, holds: bool, seen: object = "") -> None:
        """Note whether something holds. What was seen is kept where it does not."""
        if holds:
            self.passed.append(what)
        else:
            self.failed.append(f"{what} (seen: {seen})" if seen != "" else what)

    @property
    def holds(self) -> bool:
        """Whether every check of the trial holds; a trial without one does not."""
        return bool(self.passed) and not self.failed

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "trial": self.name,
            "holds": self.holds,
            "refused": self.refused,
            "true_when": self.true_when,
            "same": self.same,
            "loaded_bytes": self.loaded_bytes,
            "after": self.after,
            "seconds": round(self.seconds, 2),
            "failed": self.failed,
            "passed": self.passed,
        }
