"""The real engine on a fake device: every block remembers what was written to it."""

import time
from typing import Any

from kvproof.runtime.api import EngineConfig
from kvproof.runtime.engine import Engine
from kvproof.runtime.fake import FakeRunner, expected_tokens, sampled_token
from kvproof.runtime.model.text import TextStream
from kvproof.runtime.transfers import Fault, FaultyConnector, HostTier

VOCABULARY = 256  # the bytes of `texts.byte_tokenizer`, without its special token


def fake_engine(
    tokenizer: Any,
    token_seconds: float = 0.0,
    load_delay: float = 0.0,
    tier_bytes: int = 0,
    **options: Any,
) -> Engine:
    """An engine whose device takes `token_seconds` for a token; the tier's loads may be late."""

    def sample(prefix: int, length: int) -> int:
        time.sleep(token_seconds)  # the device computes
        return sampled_token(prefix, VOCABULARY)

    config = EngineConfig(
        **{"num_blocks": 320, "block_size": 16, "max_model_len": 2048, "check": False} | options
    )
    runner = FakeRunner(
        config.num_blocks,
        config.block_size,
        vocabulary=VOCABULARY,
        sample=sample if token_seconds else None,
    )
    connector = None
    if tier_bytes:
        late, good = Fault(delay=load_delay), Fault()
        connector = FaultyConnector(
            HostTier(runner.kv, tier_bytes), lambda _, is_load, blocks: late if is_load else good
        )
    return Engine(
        config,
        runner,
        connector,
        text=lambda params: TextStream(tokenizer, params.stop, params.min_tokens),
        vocabulary=tokenizer.vocab_size,
    )


def expected(prompt: list[int], count: int) -> list[int]:
    """What an undisturbed request gets."""
    return expected_tokens(prompt, count, VOCABULARY)


def corruptions(engine: Engine) -> list[Any]:
    """What the device has read that was not the reader's own."""
    return list(engine.core.runner.corruptions)
