"""What was proved before, by digest, so that a second run is immediate.

Only proofs are kept: what was refuted or undecided is asked again. A digest covers the text of
the condition; the file's name covers Z3's version and the budget.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import z3


def user_cache() -> Path:
    """Where the user's caches are: KVPROOF_CACHE, XDG_CACHE_HOME or ~/.cache."""
    named = os.environ.get("KVPROOF_CACHE")
    if named:
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "kvproof"


class Cache:
    """Digests of proved conditions, and reports of whole runs that proved everything."""

    def __init__(self, folder: Path, budget: int) -> None:
        self._folder = folder / "check"
        self._file = self._folder / f"proved-z3-{z3.get_version_string()}-{budget}.txt"
        self._known: set[str] = set()
        self._new: list[str] = []
        if self._file.is_file():
            self._known.update(self._file.read_text().split())

    def __contains__(self, digest: str) -> bool:
        return digest in self._known

    def add(self, digest: str) -> None:
        """A condition was proved."""
        self._known.add(digest)
        self._new.append(digest)

    def save(self) -> None:
        """Write down what is new. A folder that cannot be written costs only time."""
        if not self._new:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as file:
                file.write("".join(f"{digest}\n" for digest in self._new))
        except OSError:
            return
        self._new.clear()

    def report(self, key: str) -> dict[str, Any] | None:
        """The report of a run over the very same sources, if it proved everything."""
        try:
            found: dict[str, Any] = json.loads(self._report_file(key).read_text())
        except (OSError, json.JSONDecodeError):
            return None
        return found

    def keep_report(self, key: str, report: dict[str, Any]) -> None:
        """Remember the report of a run that proved everything."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._report_file(key).write_text(json.dumps(report))
        except OSError:
            return

    def _report_file(self, key: str) -> Path:
        return self._folder / f"report-{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
