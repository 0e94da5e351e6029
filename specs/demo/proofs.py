"""The proofs: `kvproof check` in a process of its own, with its own output and exit code."""

from __future__ import annotations

import json
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
    report: Any = None  # of `kvproof check --json`

    @property
    def holds(self) -> bool:
        """Whether everything is proved; undecided is not."""
        return self.exit_code == 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"holds": self.holds, "exit_code": self.exit_code, "report": self.report}


def prove(console: Console, as_json: bool = False) -> ProofReport:
    """Run the proofs, and show their table on `console` or keep their report."""
    console.rule("The proofs", align="left")
    command = [sys.executable, "-c", START, "check"]
    if not as_json:
        return ProofReport(subprocess.run(command, check=False).returncode)
    done = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        report = None
    return ProofReport(done.returncode, report)
