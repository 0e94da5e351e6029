"""Builds a model's engine from options: weights, runner, host tier and engine.

The server, the command line and the Python API all begin here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .api import CHOICES, LEAST, EngineConfig, check_fields
from .llm import LLM
from .model.load import load_model
from .model.runner import TorchRunner
from .protocols import Connector
from .transfers import Fault, FaultyConnector, HostTier

#: Beside those that are the engine's own: what may be chosen, and the least that may be given.
_CHOICES = CHOICES | {"dtype": ("auto", "float32", "bfloat16", "float16")}
_LEAST = {"device_blocks": 2, "test_load_delay": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What an engine is made with. Times are seconds.

    dtype: "auto" is the checkpoint's own (float32 for a quantised GGUF). device: "auto" is CUDA
    where there is one. device_blocks: KV blocks of `block_size` tokens each. host_tier_bytes: host
    memory for KV that was evicted from the device; 0 for no tier. max_num_seqs: requests that run
    at once. max_batched_tokens: tokens per step. max_model_len: tokens of a request, output
    included; lowered to what the model and the blocks allow. steps_in_flight: steps launched before
    the first one's result is processed. load_failure_policy: what a request does whose load failed.
    hash_algorithm: of the prefix cache's keys. session_deadline: how long a session may stay
    parked. check: recompute every count after each step; slow.

    Raises ValueError, which names the option, before anything is loaded.
    """

    dtype: str = "auto"
    device: str = "auto"
    device_blocks: int = 512
    block_size: int = 16
    host_tier_bytes: int = 0
    max_num_seqs: int = 32
    max_batched_tokens: int = 2048
    max_model_len: int = 2048
    steps_in_flight: int = 1
    policy: str = "fcfs"
    load_failure_policy: str = "recompute"
    hash_algorithm: str = "xxh3_128"
    session_deadline: float = 300.0
    test_load_delay: float = 0.0  # FOR TESTS: how much later every load from the tier begins
    check: bool = False

    def __post_init__(self) -> None:
        least = _LEAST | {name: low for name, low in LEAST.items() if hasattr(self, name)}
        check_fields(self, _CHOICES, least)


def load_engine(model: str | Path, options: EngineOptions) -> LLM:
    """Load a model by name, directory or GGUF file, and start its engine.

    Raises ModelError and MemoryError; neither leaves a thread or memory behind.
    """
    loaded = load_model(model, options.dtype, options.device)
    longest = min(
        options.max_model_len,
        loaded.config.max_position,
        options.device_blocks * options.block_size,
    )
    config = EngineConfig(
        num_blocks=options.device_blocks,
        block_size=options.block_size,
        max_num_seqs=options.max_num_seqs,
        max_batched_tokens=options.max_batched_tokens,
        max_model_len=longest,
        steps_in_flight=options.steps_in_flight,
        policy=options.policy,
        load_failure_policy=options.load_failure_policy,
        hash_algorithm=options.hash_algorithm,
        session_deadline=options.session_deadline,
        check=options.check,
        host_tier_bytes=options.host_tier_bytes,
        model_digest=loaded.weights.digest.hex(),
        dtype=str(loaded.weights.dtype),
    )
    runner = TorchRunner(loaded, config.num_blocks, config.block_size)
    try:
        tier = _tier(runner, options)
        return LLM(config, runner, tier, loaded)
    except BaseException:
        runner.close()
        raise


def _tier(runner: TorchRunner, options: EngineOptions) -> Connector | None:
    if not options.host_tier_bytes:
        return None
    tier = HostTier(runner.kv, options.host_tier_bytes)
    delay = options.test_load_delay
    if not delay:
        return tier
    late, none = Fault(delay=delay), Fault()
    return FaultyConnector(tier, lambda transfer, is_load, blocks: late if is_load else none)
