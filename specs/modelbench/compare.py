"""Runs the engines in turns and keeps what can be trusted on a noisy machine: ratios of neighbours.

A round is one run of each engine on the same load. The ratio of a round compares two runs that
were seconds apart; the median over the rounds is the figure, and its spread stands beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .contestants import Contestant
from .workload import Load


@dataclass
class Figure:
    """One case: the runs of each engine, tokens a second with prefill included."""

    dtype: str
    streams: int
    #: Tokens a second by engine, round after round; and tokens a second of the processor.
    rates: dict[str, list[float]] = field(default_factory=dict)
    processor_rates: dict[str, list[float]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found: dict[str, Any] = {
            "dtype": self.dtype,
            "streams": self.streams,
            "tokens_per_second": {
                engine: [round(rate, 1) for rate in rates] for engine, rates in self.rates.items()
            },
        }
        for other in self.rates:
            if other != "kvproof":
                found[f"ratio_to_{other}"] = _ratio(self.rates, other)
                found[f"processor_ratio_to_{other}"] = _ratio(self.processor_rates, other)
        return found


def compare(
    engines: list[Contestant],
    dtype: str,
    streams: list[int],
    sizes: tuple[int, int],
    rounds: int,
) -> Iterator[Figure]:
    """Each number of streams in turn. sizes: prompt and output tokens of a stream.

    Each engine runs every load once before it counts.
    """
    prompt, output = sizes
    for count in streams:
        figure = Figure(dtype, count)
        for number in range(rounds + 1):
            load = Load(count, prompt, output, seed=1000 * count + number)
            # Whoever is first changes from round to round, so that neither always follows rest.
            for engine in engines if number % 2 else engines[::-1]:
                seconds, processor = engine.seconds(load)
                if number:
                    tokens = count * output
                    figure.rates.setdefault(engine.name, []).append(tokens / seconds)
                    figure.processor_rates.setdefault(engine.name, []).append(tokens / processor)
        yield figure


def _ratio(rates: dict[str, list[float]], other: str) -> dict[str, float]:
    """Ours to the other's, round by round: the lowest, the median, the highest."""
    ratios = [a / b for a, b in zip(rates["kvproof"], rates[other], strict=True)]
    middle = statistics.median(ratios)
    return {"low": round(min(ratios), 3), "median": round(middle, 3), "high": round(max(ratios), 3)}
