"""Asks both sides in alternating rounds, each in a process of its own, and puts ratios together.

The machine is noisy: only what was measured seconds apart is compared, and the sides take turns in
going first. The figure is the median of the rounds' medians; the ratio is the median of the
rounds' ratios; the lowest and the highest stand beside both.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .scenarios import ANSWER, Scenario, as_line


class SideError(Exception):
    """A side that did not answer; the message has the end of what it printed."""


class Side:
    """One engine's measurements, in a process that waits while the other runs."""

    def __init__(self, name: str, python: str, module: str) -> None:
        self.name = name
        code = (
            f"from kvproof.specs.bench import {module}, scenarios\n"
            f"scenarios.serve({module}.measure)"
        )
        # A file, because a pipe that nobody reads fills and stops the process.
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the side
        self._process = subprocess.Popen(
            [python, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
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
            if line.startswith(ANSWER):
                found: list[float] = json.loads(line[len(ANSWER) :])
                return found
        process.wait()
        self._said.seek(0)
        said = "".join(self._said.readlines()[-15:])
        raise SideError(f"{self.name} ended:\n{said}")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._said.close()


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

    def spread(self, side: str) -> tuple[float, float, float]:
        """Median, lowest and highest of a side's rounds, in microseconds."""
        return _spread(self.rounds[side])

    def ratio(self) -> tuple[float, float, float] | None:
        """Median, lowest and highest of the ratios; None when there is no other side."""
        ratios = self.ratios()
        return _spread(ratios) if ratios else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON. Microseconds."""
        found: dict[str, Any] = {
            "scenario": self.scenario.title,
            "unit": self.scenario.unit,
            "rounds": {name: [round(v, 3) for v in each] for name, each in self.rounds.items()},
        }
        if ratio := self.ratio():
            found["ratio"], *found["ratio_spread"] = (round(value, 4) for value in ratio)
        return found


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)


def compare(
    scenarios: Sequence[Scenario], rounds: int, vllm: Path | None = None
) -> Iterator[Figure]:
    """Each scenario in turn, both sides round by round. vllm: the Python that has it.

    Raises SideError.
    """
    wanted = [("kvproof", sys.executable, "ours")]
    if vllm is not None:
        wanted.append(("vllm", str(vllm), "theirs"))
    sides: list[Side] = []
    try:
        sides.extend(Side(*each) for each in wanted)
        for scenario in scenarios:
            figure = Figure(scenario, {side.name: [] for side in sides})
            for number in range(rounds):
                # The other side first: if it cannot be had, that is said at once.
                for side in sides[::-1] if number % 2 == 0 else sides:
                    median = statistics.median(side.samples(scenario))
                    figure.rounds[side.name].append(median)
            yield figure
    finally:
        for side in sides:
            side.close()
