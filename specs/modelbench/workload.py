"""What every engine is given: so many streams of random tokens, greedy, to a fixed length.

Standard library only: the other engine's process imports this file by its path.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """One run: `streams` requests at once, of `prompt` and `output` tokens each.

    The seed makes prompts that no earlier run had, so that no prefix is a hit.
    """

    streams: int
    prompt: int
    output: int
    seed: int

    def prompts(self, vocabulary: int) -> list[list[int]]:
        """Token ids; the first hundred, where special tokens are, are left out."""
        draw = random.Random(self.seed)
        return [
            [draw.randrange(100, vocabulary) for _ in range(self.prompt)]
            for _ in range(self.streams)
        ]


def serve(run: Callable[[Load], float], about: dict[str, object]) -> None:
    """Answer loads on stdin with seconds on stdout, one JSON object a line, until stdin ends.

    Beside the clock's seconds, the processor's: those of all threads, waiting in a loop included.
    On a busy machine they say more.
    """
    answer(about)
    for line in sys.stdin:
        load = Load(**json.loads(line))
        before = time.process_time()
        seconds = run(load)
        answer({"seconds": seconds, "processor_seconds": time.process_time() - before})


def answer(fields: dict[str, object]) -> None:
    """A line that the parent can tell from what a library prints."""
    sys.stdout.write("bench " + json.dumps(fields) + "\n")
    sys.stdout.flush()
