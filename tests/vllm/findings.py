"""The faults of vLLM 0.32.0 that docs/findings-vllm-0.32.md describes, as recorded operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvproof.specs.fuzz.operations import FAULTS, Operation
from kvproof.specs.fuzz.target import NewRequest, Settings


@dataclass(frozen=True)
class Recorded:
    """A fault: what leads to it, and what has to be seen."""

    name: str  # its heading in the document
    target: str
    settings: Settings
    operations: tuple[Operation, ...]
    rule: str
    function: str = ""  # in which vLLM raises, if it does
    says: str = ""  # part of the message

    @property
    def legal(self) -> bool:
        """A legal environment is enough."""
        return not any(operation.name in FAULTS for operation in self.operations)


def add(name: str, prompt: list[int], max_tokens: int = 4, **more: Any) -> Operation:
    return Operation("add", (NewRequest(name, tuple(prompt), max_tokens, **more),))


def session(name: str, prompt: list[int], max_tokens: int = 1, **more: Any) -> Operation:
    return add(name, prompt, max_tokens, session=True, **more)


def chunk(name: str, tokens: list[int], max_tokens: int = 1) -> Operation:
    return Operation("chunk", (name, tuple(tokens), max_tokens))


def call(name: str, *arguments: Any) -> Operation:
    return Operation(name, arguments)


STEP, FINISH, DRAIN = Operation("step"), Operation("finish_step"), Operation("drain")
ONE = (STEP, FINISH)
FORCED = call("reset", True, False)
CONNECTOR = call("reset", False, True)


def small(**more: Any) -> Settings:
    return Settings(**{"blocks": 2, "max_length": 8, **more})


RECORDED = (
    Recorded(
        "reset-during-a-transfer",
        "vllm",
        small(connector="mock"),
        (add("r1", [1], 1, remote_tokens=1), *ONE, FORCED),
        "no-exception",
        "reset_prefix_cache",
    ),
    Recorded(
        "reset-with-a-parked-session",
        "vllm",
        small(),
        (session("r1", [1]), *ONE, FORCED),
        "no-exception",
        "reset_prefix_cache",
    ),
    Recorded(
        "reset-with-a-step-in-flight",
        "vllm-async",
        small(depth=2, connector="offload"),
        (add("r1", [1], 1), STEP, FORCED),
        "no-exception",
        "reset_prefix_cache",
    ),
    Recorded(
        "reload-after-a-forced-reset",
        "vllm",
        small(connector="offload"),
        (
            add("r1", [1, 2, 3, 4], 3),
            *ONE,
            STEP,
            call("complete", "store/r1/1"),
            FINISH,
            FORCED,
            STEP,
        ),
        "no-exception",
        "build_connector_meta",
    ),
    Recorded(
        "second-connector-reset",
        "vllm",
        small(block_size=2, max_length=4, connector="offload"),
        (add("r1", [1, 2], 1), *ONE, CONNECTOR, CONNECTOR),
        "no-exception",
        "reset_cache",
    ),
    Recorded(
        "tier-stores-the-wrong-block",
        "vllm",
        small(block_size=2, max_length=4, connector="offload"),
        (session("r1", [1]), chunk("r1", [70, 71, 72]), DRAIN),
        "hash-is-content-tier",
        says="the host tier serves",
    ),
    Recorded(
        "failed-sleep-stays-paused",
        "vllm",
        small(),
        (session("r1", [1]), *ONE, call("sleep", 1)),
        "failed-call-changes-nothing",
        says="the mode went from ACTIVE to PAUSED",
    ),
    Recorded(
        "resume-during-a-pending-sleep",
        "vllm",
        small(),
        (add("r1", [1], 1), *ONE, call("sleep", 1), call("resume"), *ONE, add("r2", [1], 1), STEP),
        "asleep-means-idle",
        says="the cache's memory is given back, and r2 holds",
    ),
    Recorded(
        "session-longer-than-the-model",
        "vllm",
        small(),
        (session("r1", [1, 2, 3, 4, 5]), *ONE, chunk("r1", [60, 61, 62, 63]), STEP),
        "within-length",
        says="r1 counts 9 computed tokens, the model takes 8",
    ),
    Recorded(
        "ended-session-starts-over",
        "vllm",
        small(),
        (session("r1", [1]), call("pause", "abort"), chunk("r1", [80])),
        "own-tokens",
        says="r1 is computed from [80]",
    ),
    Recorded(
        "resumed-sessions-hold-the-pool",
        "vllm-async",
        Settings(blocks=3, block_size=2, max_length=6),
        (
            session("r1", [1], 2),
            session("r2", [1, 2]),
            chunk("r1", [60]),
            chunk("r2", [80, 81, 82]),
            DRAIN,
        ),
        "progress",
        says="nothing moves",
    ),
    Recorded(
        "failed-load-reserves-against-itself",
        "vllm",
        Settings(blocks=3, block_size=2, max_length=6, connector="mock"),
        (
            add("r1", [1, 2, 3, 4], 1, remote_tokens=4),
            STEP,
            call("fail", "load/r1/1", 0),
            FINISH,
            DRAIN,
        ),
        "progress",
        says="r1 in WAITING",
    ),
    Recorded(
        "session-in-no-queue",
        "vllm-async",
        Settings(blocks=10, block_size=2, max_running=2, max_length=20, depth=2),
        (
            session("r1", [1]),
            session("r2", [1, 2, 3, 4, 5, 6, 7, 8], 4),
            chunk("r2", [70, 71]),
            session("r3", [1, 162, 163, 164, 165, 166], 2, stop_every=3),
            DRAIN,
        ),
        "one-container",
        says="it is found in none",
    ),
    Recorded(
        "late-load-completion",
        "vllm",
        small(connector="mock"),
        (
            add("r1", [1], 1, remote_tokens=1),
            STEP,
            call("complete", "load/r1/1"),
            FINISH,
            call("duplicate", "load/r1/1"),
            *ONE,
        ),
        "no-exception",
        "_update_from_kv_xfer_finished",
    ),
    Recorded(
        "late-send-completion",
        "vllm",
        small(connector="mock"),
        (
            add("r1", [1], 1, send=True),
            *ONE,
            STEP,
            call("complete", "store/r1/1"),
            FINISH,
            call("duplicate", "store/r1/1"),
            add("r2", [1], 1),
            *ONE,
        ),
        "no-exception",
        "_update_from_kv_xfer_finished",
    ),
    Recorded(
        "late-store-completion",
        "vllm",
        small(block_size=2, max_length=4, connector="offload"),
        (
            add("r1", [1, 2], 2),
            *ONE,
            FORCED,
            *ONE,
            call("duplicate", "store/r1/1"),
            *ONE,
        ),
        "no-exception",
        "update_connector_output",
    ),
    Recorded(
        "late-completion-ends-the-next-load",
        "vllm",
        small(connector="mock"),
        (
            add("r1", [1, 2, 3, 4], 1, remote_tokens=4),
            STEP,
            call("fail", "load/r1/1", 0),
            FINISH,
            STEP,
            call("duplicate", "load/r1/1"),
            FINISH,
            call("abort", "r1"),
        ),
        "touched-is-held",
        says="may still touch block 1, which nobody holds",
    ),
)
