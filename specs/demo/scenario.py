"""The reset scenario (`docs/demo.md`), from the first undisturbed run to the last trial."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .client import Api
from .prompts import prompt
from .rows import Row
from .sibling import sibling
from .trials import Bench, Prompt, Trial, control, flagged, waiting

DEVICE_BLOCKS = 320
BLOCK_SIZE = 16
HOST_TIER_GB = 4
#: Prompts enough that their blocks do not all fit on the device: the first ones are evicted.
PROMPTS = 12
PROMPT_TOKENS = 448


@dataclass(frozen=True, slots=True)
class Part:
    """A group of trials, as the table shows it."""

    title: str
    trials: tuple[tuple[str, Trial], ...]


def _both(count: int, first: int) -> tuple[tuple[str, Trial], ...]:
    numbers = range(first, first + count)
    return (
        *((f"flagged {number}", flagged) for number in numbers),
        *((f"control {number}", control) for number in numbers),
    )


PARTS = (
    Part("reset while prompts are loaded back from the host tier", _both(3, 1)),
    Part("five more of each, on the same server", _both(5, 4)),
    Part(
        "a parked session and a forced reset; a reset that waits for a load",
        (("session", sibling), ("wait=10", waiting)),
    ),
)


def server_options(load_delay: float) -> list[str]:
    """How the scenario's server is started."""
    return [
        "--dev",
        *("--device-blocks", str(DEVICE_BLOCKS)),
        *("--block-size", str(BLOCK_SIZE)),
        *("--host-tier-gb", str(HOST_TIER_GB)),
        *("--dtype", "float32"),
        *("--test-connector-delay", str(load_delay)),
    ]


def prepare(api: Api) -> Bench:
    """The bench, with its prompts as the served model's tokenizer makes them."""
    prompts = [
        Prompt(number, prompt(api, number, PROMPT_TOKENS)) for number in range(1, PROMPTS + 1)
    ]
    return Bench(api, prompts)


def warm_up(bench: Bench) -> Iterator[int]:
    """The undisturbed runs, two at a time as the trials run them; yields how many are done.

    This fills the host tier, and evicts from the device the prompts that were run first.
    """
    for at in range(0, len(bench.prompts), 2):
        bench.undisturbed(bench.prompts[at : at + 2])
        yield at + 2


def run(bench: Bench) -> Iterator[tuple[Part, Row]]:
    """Every trial, one after the other."""
    for part in PARTS:
        for name, trial in part.trials:
            yield part, trial(bench, name)
