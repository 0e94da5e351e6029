"""An engine for a server: model, runner, tier and engine put together from options."""

from __future__ import annotations

from dataclasses import dataclass

from ..api import EngineConfig
from ..engine import Engine
from ..model.load import load_model
from ..model.runner import TorchRunner
from ..model.text import TextStream
from ..model.tokenizer import Tokenizer
from ..protocols import Connector
from ..transfers import Fault, FaultyConnector, HostTier


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What `kvproof serve` is asked for. Sizes are bytes, times seconds."""

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
    session_deadline: float = 300.0
    test_load_delay: float = 0.0  # FOR TESTS: how much later every load from the tier begins
    check: bool = False


def assemble(model: str, options: EngineOptions) -> tuple[Engine, Tokenizer]:
    """Load the model and start its engine. Raises ModelError, MemoryError, ValueError."""
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
        session_deadline=options.session_deadline,
        check=options.check,
        host_tier_bytes=options.host_tier_bytes,
        model_digest=str(loaded.path.resolve()),
        dtype=str(loaded.weights.dtype),
    )
    runner = TorchRunner(loaded, config.num_blocks, config.block_size)
    tokenizer = loaded.tokenizer
    engine = Engine(
        config,
        runner,
        _tier(runner, options),
        eos_token_ids=loaded.config.eos_token_ids,
        text=lambda params: TextStream(tokenizer, params.stop, params.min_tokens),
        vocabulary=tokenizer.vocab_size,
    )
    return engine, tokenizer


def _tier(runner: TorchRunner, options: EngineOptions) -> Connector | None:
    if not options.host_tier_bytes:
        return None
    tier = HostTier(runner.kv, options.host_tier_bytes)
    delay = options.test_load_delay
    if not delay:
        return tier
    late, none = Fault(delay=delay), Fault()
    return FaultyConnector(tier, lambda transfer, is_load, blocks: late if is_load else none)
