"""Runs Spin on an exported model and reads what it counted."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .compiled import System
from .promela import promela


class SpinError(RuntimeError):
    """Spin or a C compiler is missing, or did not do what was asked."""


@dataclass(frozen=True)
class SpinResult:
    """What Spin counted: states, transitions, errors; seconds of the search itself."""

    states: int
    transitions: int
    errors: int
    seconds: float
    compile_seconds: float


def spin_available() -> bool:
    """Whether `spin` and `gcc` are installed."""
    return shutil.which("spin") is not None and shutil.which("gcc") is not None


class Verifier:
    """Spin's verifier for one model, compiled."""

    def __init__(self, folder: Path, most_states: int, compile_seconds: float) -> None:
        self.compile_seconds = compile_seconds
        self._folder = folder
        self._most_states = most_states

    def run(self) -> SpinResult:
        """Search exhaustively. Raises SpinError."""
        table = max(20, self._most_states.bit_length())
        begin = time.monotonic()
        text = _run(["./pan", f"-m{self._most_states}", f"-w{table}", "-E"], self._folder)
        return SpinResult(
            _counted(text, r"(\d+) states, stored"),
            # The step into the initial state is counted as a transition.
            _counted(text, r"(\d+) transitions \(= stored\+matched\)") - 1,
            _counted(text, r"errors: (\d+)"),
            time.monotonic() - begin,
            self.compile_seconds,
        )


@contextmanager
def build_spin(
    system: System,
    *,
    invariants: bool = False,
    most_states: int = 1 << 22,
    optimise: str = "-O1",
) -> Iterator[Verifier]:
    """Write the model and make Spin's verifier of it, in a folder of its own. Raises SpinError."""
    if not spin_available():
        raise SpinError("spin or gcc is not installed: apt-get install spin gcc")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.pml").write_text(promela(system, invariants=invariants))
        begin = time.monotonic()
        _run(["spin", "-a", "model.pml"], folder)
        # One process: there is no order to reduce. Safety only: no acceptance cycles.
        options = ["-DSAFETY", "-DNOREDUCE", "-DMEMLIM=16000"]
        _run(["gcc", optimise, "-w", *options, "-o", "pan", "pan.c"], folder)
        yield Verifier(folder, most_states, time.monotonic() - begin)


def run_spin(
    system: System,
    *,
    invariants: bool = False,
    most_states: int = 1 << 22,
    optimise: str = "-O1",
) -> SpinResult:
    """Let Spin search the model of an instance, exhaustively. Raises SpinError."""
    with build_spin(
        system, invariants=invariants, most_states=most_states, optimise=optimise
    ) as verifier:
        return verifier.run()


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SpinError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    if "max search depth too small" in done.stdout:
        raise SpinError("the search was deeper than was reserved for it: raise most_states")
    return done.stdout


def _counted(text: str, pattern: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise SpinError(f"Spin's report does not have what was looked for ({pattern}):\n{text}")
    return int(found.group(1))
