"""KV blocks of a model's shape, without the model; and waiting for a tier without sleeping."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from kvproof.runtime.model.config import Architecture, ModelConfig
from kvproof.runtime.model.kv import TorchKV
from kvproof.runtime.protocols import KVStorage, TransferSignal
from kvproof.runtime.transfers import HostTier


def shape(layers: int, kv_heads: int, head_dim: int) -> ModelConfig:
    """A configuration of which only the KV's shape matters."""
    return ModelConfig(
        architecture=Architecture.LLAMA,
        vocab_size=320,
        hidden_size=kv_heads * head_dim,
        intermediate_size=64,
        num_layers=layers,
        num_heads=kv_heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position=512,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        rope_scaling=None,
        tie_word_embeddings=True,
        qkv_bias=False,
        output_bias=False,
        qk_norm=False,
        dtype="float32",
        bos_token_id=None,
        eos_token_ids=(),
    )


def random_blocks(
    count: int,
    device: torch.device,
    config: ModelConfig,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
) -> TorchKV:
    """Blocks that hold random numbers."""
    kv = TorchKV(config, count, block_size, dtype, device)
    kv.blocks.normal_()
    return kv


class AwaitedTier:
    """A host tier whose signals can be waited for."""

    def __init__(self, kv: KVStorage, blocks: int, **options: int) -> None:
        self._ended = threading.Semaphore(0)
        size = kv.bytes_per_block
        self.tier = HostTier(kv, blocks * size, **options)
        self.tier.on_signal(self._ended.release)

    def signals(self, jobs: int = 1) -> Sequence[TransferSignal]:
        """What was signalled once that many jobs have ended."""
        for _ in range(jobs):
            assert self._ended.acquire(timeout=60), "no signal came"
        return self.tier.poll()
