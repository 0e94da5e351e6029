"""Configurations for vLLM's real schedulers, without a model: a tiny config.json is all they read.

Nothing here imports vLLM before it is called.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

#: Set before vLLM is imported: no logs, no hub, no plug-ins.
ENVIRONMENT = {"VLLM_LOGGING_LEVEL": "CRITICAL", "HF_HUB_OFFLINE": "1", "VLLM_PLUGINS": ""}

#: KV heads and head size of the stand-in model: one block of 4 tokens is 4 * 2 * 2 * 8 * 2 bytes.
KV_HEADS, HEAD_SIZE = 2, 8

#: vLLM gives each chunk of the host tier this many bytes, or a multiple.
HOST_ALIGNMENT = 4096


@functools.cache
def model_directory() -> str:
    """A folder with the configuration of a two-layer OPT, and nothing else."""
    folder = Path(tempfile.mkdtemp(prefix="kvproof-vllm-"))
    config = {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "hidden_size": 16,
        "ffn_dim": 32,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": 1024,
        "max_position_embeddings": 2048,
        "word_embed_proj_dim": 16,
        "torch_dtype": "float16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@functools.lru_cache(maxsize=128)
def configurations(
    blocks: int,
    block_size: int,
    max_running: int,
    token_budget: int,
    max_length: int,
    priority: bool,
    asynchronous: bool,
    connector: str,
    fail_policy: str,
    tier_blocks: int,
    module: str,
) -> tuple[Any, Any]:
    """A VllmConfig and a KVCacheConfig; `blocks` are usable ones, vLLM's null block comes on top.

    `module` is where the mock connector's class is found.
    """
    os.environ.update(ENVIRONMENT)
    import torch
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        KVTransferConfig,
        ModelConfig,
        ParallelConfig,
        SchedulerConfig,
        VllmConfig,
    )
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    directory = model_directory()
    model = ModelConfig(
        model=directory,
        tokenizer=directory,
        skip_tokenizer_init=True,
        dtype="float16",
        seed=0,
        max_model_len=max_length,
    )
    scheduler = SchedulerConfig(
        max_num_seqs=max_running,
        max_num_batched_tokens=token_budget,
        max_model_len=max_length,
        enable_chunked_prefill=True,
        is_encoder_decoder=False,
        async_scheduling=asynchronous,
        policy="priority" if priority else "fcfs",
    )
    cache = CacheConfig(
        block_size=block_size,
        gpu_memory_utilization=0.9,
        cache_dtype="auto",
        enable_prefix_caching=True,
    )
    spec = FullAttentionSpec(
        block_size=block_size,
        num_kv_heads=KV_HEADS,
        head_size=HEAD_SIZE,
        dtype=torch.float16,
    )
    transfer = None
    if connector == "mock":
        if "KvproofMock" not in KVConnectorFactory._registry:
            KVConnectorFactory.register_connector("KvproofMock", module, "MockConnector")
        transfer = KVTransferConfig(
            kv_connector="KvproofMock",
            kv_role="kv_both",
            kv_load_failure_policy=fail_policy,
        )
    elif connector in ("offload", "offload-all"):
        transfer = KVTransferConfig(
            kv_connector="OffloadingConnector",
            kv_role="kv_both",
            kv_load_failure_policy=fail_policy,
            kv_connector_extra_config={
                "cpu_bytes_to_use": tier_blocks * HOST_ALIGNMENT,
                "block_size": block_size,
                "offload_prompt_only": connector == "offload",
            },
        )
    config = VllmConfig(
        model_config=model,
        scheduler_config=scheduler,
        cache_config=cache,
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig(device="cpu"),
        kv_transfer_config=transfer,
    )
    # vLLM's CPU platform turns asynchronous scheduling off; here it is as on a GPU.
    config.scheduler_config.async_scheduling = asynchronous
    cache.num_gpu_blocks = blocks + 1
    kv_cache = KVCacheConfig(
        num_blocks=blocks + 1,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["l0"], spec)],
    )
    return config, kv_cache
