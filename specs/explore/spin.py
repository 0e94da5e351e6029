"""Runs Spin on an exported model and reads what it counted."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
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


def run_spin(
    system: System,
    *,
    invariants: bool = False,
    most_states: int = 1 << 22,
    optimise: str = "-O1",
) -> SpinResult:
    """Write the model, make Spin's verifier and run it, exhaustively. Raises SpinError."""
    if not spin_available():
        raise SpinError("spin or gcc is not installed: apt-get install spin gcc")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "model.pml").write_text(promela(system, invariants=invariants))
        begin = time.monotonic()
        _run(["spin", "-a", "model.pml"], path)
        # One process: there is no order to reduce. Safety only: no acceptance cycles.
        options = ["-DSAFETY", "-DNOREDUCE", "-DMEMLIM=16000"]
        _run(["gcc", optimise, "-w", *options, "-o", "pan", "pan.c"], path)
        compiled = time.monotonic() - begin
        table = max(20, most_states.bit_length())
        begin = time.monotonic()
        text = _run(["./pan", f"-m{most_states}", f"-w{table}", "-E"], path)
        seconds = time.monotonic() - begin
    return SpinResult(
        _counted(text, r"(\d+) states, stored"),
        # The step into the initial state is counted as a transition.
        _counted(text, r"(\d+) transitions \(= stored\+matched\)") - 1,
        _counted(text, r"errors: (\d+)"),
        seconds,
        compiled,
    )


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
