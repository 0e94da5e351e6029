"""Each kind of scenario, small: for either side, so nothing here needs vLLM or our engine."""

from __future__ import annotations

from kvproof.specs.bench.scenarios import Scenario

SMALL = (
    Scenario("decode", 3, samples=4),
    Scenario("decode", 3, depth=2, samples=4),
    Scenario("decode", 3, tier=True, samples=20),
    Scenario("decode", 1, samples=4, per_request=False),
    Scenario("admit", 3, prompt=40, hit=True, samples=2),
    Scenario("admit", 3, prompt=40, samples=2),
    Scenario("admit", 3, prompt=40, hit=True, hash_algorithm="xxh3_128", samples=2),
    Scenario("blocked", 0, samples=4, per_request=False),
    Scenario("blocked", 5, samples=4, per_request=False),
    Scenario("reset", 3, prompt=40, samples=2),
)
