"""Asks both sides in alternating rounds, each in a process of its own, and puts ratios together.

The machine is noisy: only what was measured seconds apart is compared. The figure is the median of
the rounds' medians; the ratio is the median of the rounds' ratios, its spread beside it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .scenarios import Scenario, as_line


class SideError(Exception):
    """A side that did not answer; the message has the end of what it printed."""


class Side:
    """One engine's measurements, in a process that waits while the other runs."""

    def __init__(self, name: str, python: str, module: str) -> None:
        self.name = name
        code = f"from kvproof.specs.bench import {module} as side; side.serve(side.measure)"
        self._process = subprocess.Popen(
            [python, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def samples(self, scenario: Scenario) -> list[float]:
        """One round, in microseconds. Raises SideError."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(as_line(scenario))
            process.stdin.flush()
        except BrokenPipeError:
            pass  # said by what it printed
        for line in process.stdout:
            if line.startswith("["):
                found: list[float] = json.loads(line)
                return found
        assert process.stderr is not None
        said = "".join(process.stderr.readlines()[-15:])
        raise SideError(f"{self.name} ended:\n{said}")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


@dataclass
class Figure:
    """One scenario: the median of each round, by side."""

    scenario: Scenario
    rounds: dict[str, list[float]] = field(default_factory=dict)

    def ratios(self) -> list[float]:
        """Ours to theirs, round by round; empty when there is no other side."""
        if len(self.rounds) < 2:
            return []
        ours, theirs = self.rounds.values()
        return [a / b for a, b in zip(ours, theirs, strict=True)]

    def as_dict(self) -> dict[str, Any]:
        """For JSON. Microseconds."""
        found: dict[str, Any] = {
            "scenario": self.scenario.title,
            "unit": self.scenario.unit,
            "rounds": {name: [round(v, 3) for v in each] for name, each in self.rounds.items()},
        }
        if ratios := self.ratios():
            found["ratio"] = round(statistics.median(ratios), 4)
            found["ratio_spread"] = [round(min(ratios), 4), round(max(ratios), 4)]
        return found


def compare(
    scenarios: Sequence[Scenario], rounds: int, vllm: Path | None = None
) -> Iterator[Figure]:
    """Each scenario in turn, both sides round by round. vllm: the Python that has it.

    Raises SideError.
    """
    sides = [Side("kvproof", sys.executable, "ours")]
    if vllm is not None:
        sides.append(Side("vllm", str(vllm), "theirs"))
    try:
        for scenario in scenarios:
            figure = Figure(scenario, {side.name: [] for side in sides})
            for _ in range(rounds):
                for side in sides:
                    median = statistics.median(side.samples(scenario))
                    figure.rounds[side.name].append(median)
            yield figure
    finally:
        for side in sides:
            side.close()
