"""Seeded faults: one-line changes of the declaration, each with the obligation that refutes it."""

from __future__ import annotations

from dataclasses import dataclass

from kvproof.specs.check.declaration import Change


@dataclass(frozen=True)
class Fault:
    """A change, who refutes it, and what its counterexample shows."""

    name: str
    change: Change
    refuted_by: str
    #: The broken statement begins so.
    broken: str
    #: The action of the counterexample; "" where none is needed.
    action: str = ""
    #: The longest script that may be needed; 0 where the state cannot be reached in eight events.
    script: int = 8


def _change(file: str, old: str, new: str) -> Change:
    return Change(file, old, new)


FAULTS = (
    Fault(
        "preempt forgets to let go",
        _change(
            "request.py",
            "Row(E.PREEMPT, (RUNNING,), PREEMPTED, before=(let_go,)",
            "Row(E.PREEMPT, (RUNNING,), PREEMPTED, before=()",
        ),
        "S4",
        "PREEMPTED, FINISHED_*",
        "preempt",
    ),
)
