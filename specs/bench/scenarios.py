"""What is measured, on both sides alike, and how a side is asked for it.

A side is a process that reads one scenario as a JSON line and answers with one line: its samples
in microseconds of processor time of its one thread, which neighbours on the machine disturb less
than the clock. All that a scheduler does for a step is counted: planning, admission, growth,
appending what was sampled, every stop check, one delivered output for each request. Not counted
on either side: sampling parameters, made once; the device and its answer; detokenising; HTTP.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

BLOCK_SIZE = 16
MODEL_LENGTH = 2048
#: Every request is greedy, may sample so many tokens, and stops at a token that never comes.
MAX_TOKENS = 1500
STOP = 2
SAMPLED = 5


@dataclass(frozen=True, slots=True)
class Scenario:
    """One measurement. `requests` run or are admitted; `samples` are taken in one round."""

    name: str  # decode, admit, blocked or reset
    requests: int
    prompt: int = 64  # tokens of each
    depth: int = 1  # steps in flight
    hit: bool = False  # admit: the whole prompt is in the prefix cache
    tier: bool = False  # decode: each block that fills is copied to the host, and its end heard of
    hash_algorithm: str = "sha256"  # of block keys: sha256, vLLM's default, or xxh3_128, ours
    samples: int = 100
    per_request: bool = True  # a sample is divided by the number of requests

    @property
    def title(self) -> str:
        """In words, for the table."""
        if self.name == "decode":
            flying = f"{self.depth} step{'s' if self.depth > 1 else ''} in flight"
            tier = ", host tier on" if self.tier else ""
            return f"decode step, {self.requests} running, {flying}{tier}"
        if self.name == "admit":
            cached = "all of it cached" if self.hit else "nothing cached"
            hashed = f"hashed ({self.hash_algorithm})"
            return f"a request of {self.prompt} tokens made, {hashed} and admitted, {cached}"
        if self.name == "blocked":
            return f"decode step of 8, {self.requests} blocked on remote KV"
        return f"forced reset of {self.requests} × {self.prompt} tokens"

    @property
    def unit(self) -> str:
        """What a figure is for."""
        return "µs a request" if self.per_request else "µs a step"


SCENARIOS = (
    Scenario("decode", 256),
    Scenario("decode", 256, depth=2),
    Scenario("decode", 256, tier=True),
    Scenario("decode", 32),
    Scenario("decode", 8, per_request=False),
    Scenario("decode", 1, per_request=False),
    Scenario("admit", 32, prompt=1024, hit=True, samples=6),
    Scenario("admit", 32, prompt=1024, samples=6),
    Scenario("admit", 32, prompt=1024, hit=True, hash_algorithm="xxh3_128", samples=6),
    Scenario("admit", 32, prompt=1024, hash_algorithm="xxh3_128", samples=6),
    Scenario("blocked", 0, per_request=False),
    Scenario("blocked", 1000, per_request=False),
    Scenario("reset", 256, prompt=1024, samples=2),
)

#: What a line begins with that is an answer, and no warning of a library's.
ANSWER = "samples "

Measure = Callable[[Scenario], list[float]]


def serve(measure: Measure) -> None:
    """Be a side: answer scenarios until the input ends."""
    for line in sys.stdin:
        scenario = Scenario(**json.loads(line))
        divisor = scenario.requests if scenario.per_request else 1
        samples = [seconds / divisor * 1e6 for seconds in measure(scenario)]
        sys.stdout.write(ANSWER + json.dumps(samples) + "\n")
        sys.stdout.flush()


def as_line(scenario: Scenario) -> str:
    """The question to a side."""
    return json.dumps(asdict(scenario)) + "\n"


def prompts(scenario: Scenario, number: int) -> list[list[int]]:
    """That many prompts, lists of ints; no two begin with the same block.

    Those that decode differ in length by up to a block, so that a sixteenth of the requests fills
    a block in each step, as in a server, and not all of them in every sixteenth.
    """
    staggered = scenario.name == "decode"
    return [
        [
            (7 * row + place) % 30_000 + 10
            for place in range(scenario.prompt + (row % BLOCK_SIZE if staggered else 0))
        ]
        for row in range(number)
    ]
