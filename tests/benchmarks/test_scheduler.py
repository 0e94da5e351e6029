"""What the scheduler costs: processor time of each scenario of `kvproof bench scheduler`.

`pytest -m long -s tests/benchmarks/test_scheduler.py` prints the figures. Asserted are only ratios
within one run, and loosely: that what is blocked costs nothing that grows with its number, that
a step of many requests costs each of them a small part of what a lone one costs, and that the host
tier does not make a step several times as long.
"""

from __future__ import annotations

import statistics
import sys

import pytest
from kvproof.specs.bench.compare import Side
from kvproof.specs.bench.scenarios import SCENARIOS, Scenario


def medians(scenarios: list[Scenario], rounds: int = 3) -> list[float]:
    """Microseconds for each scenario, the rounds of all of them alternating."""
    side = Side("kvproof", sys.executable, "ours")
    try:
        taken = [
            [statistics.median(side.samples(scenario)) for scenario in scenarios]
            for _ in range(rounds)
        ]
    finally:
        side.close()
    return [statistics.median(each) for each in zip(*taken, strict=True)]


@pytest.mark.long
def test_a_thousand_blocked_requests_cost_nothing_for_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scenarios = [scenario for scenario in SCENARIOS if scenario.name == "blocked"]
    without, beside = medians(scenarios)
    with capsys.disabled():
        sys.stdout.write(f"\n{without:.1f} µs a step alone, {beside:.1f} beside 1,000 blocked\n")
    assert beside < 1.5 * without


@pytest.mark.long
def test_a_request_among_many_costs_a_small_part_of_a_lone_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, many = medians([Scenario("decode", 1), Scenario("decode", 256)])
    with capsys.disabled():
        sys.stdout.write(f"\n{one:.1f} µs for a lone request, {many:.2f} for each of 256\n")
    assert many < one / 5


@pytest.mark.long
def test_the_host_tier_does_not_make_a_step_several_times_as_long(
    capsys: pytest.CaptureFixture[str],
) -> None:
    without, beside = medians([Scenario("decode", 256), Scenario("decode", 256, tier=True)])
    with capsys.disabled():
        sys.stdout.write(f"\n{without:.2f} µs for each of 256, {beside:.2f} with the host tier\n")
    assert beside < 5 * without
