"""The proofs, as `kvproof check` shows them; in a process of their own, so that it shows it all."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from .server import START


@dataclass(frozen=True, slots=True)
class ProofReport:
    """How `kvproof check` ended."""

    exit_code: int

    @property
    def holds(self) -> bool:
        """Whether everything is proved; undecided is not."""
        return self.exit_code == 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"holds": self.holds, "exit_code": self.exit_code}


def prove(console: Console) -> ProofReport:
    """Run the proofs and show their table on `console`."""
    console.rule("The proofs", align="left")
    to_stderr = sys.stderr if console.stderr else None
    done = subprocess.run([sys.executable, "-c", START, "check"], stdout=to_stderr, check=False)
    return ProofReport(done.returncode)
