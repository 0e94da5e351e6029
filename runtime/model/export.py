"""Write a model as a Hugging Face directory, as `transformers` and other engines want it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from .checkpoint import expected_shapes
from .config import Architecture, Llama3Rope, ModelConfig
from .decoder import inverse_frequencies
from .errors import ModelFileError, UnsupportedModelError
from .load import load_tokenizer, open_checkpoint
from .tokenizer import Tokenizer
from .weights import dtype_named

_FAMILY = {Architecture.LLAMA: "Llama", Architecture.QWEN2: "Qwen2", Architecture.QWEN3: "Qwen3"}
# What Llama 3.1 and later were released with; a GGUF file keeps only the resulting factors.
_KNOWN_SCALINGS = [Llama3Rope(factor, 1.0, 4.0, 8192) for factor in (8.0, 32.0)]


def export(
    model: Path,
    directory: Path,
    dtype: str = "float32",
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write config, weights, tokenizer and chat template of the model at `model`.

    The directory appears complete or not at all. Raises ModelError, and FileExistsError if it is
    there and not empty.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise FileExistsError(f"{directory} exists and is not an empty directory")
    kind = dtype_named(dtype)
    text = load_tokenizer(model)
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".export-", dir=directory.parent))
    try:
        with closing(open_checkpoint(model)) as checkpoint:
            config = checkpoint.config
            names = list(expected_shapes(config))
            tensors = {}
            for done, name in enumerate(names, 1):
                tensors[name] = checkpoint.tensor(name).to(kind).contiguous()
                if progress is not None:
                    progress(done, len(names))
        save_file(tensors, scratch / "model.safetensors", metadata={"format": "pt"})
        _write_json(scratch / "config.json", config_json(model, config, dtype))
        _write_json(scratch / "generation_config.json", _generation(config))
        text.backend.save(str(scratch / "tokenizer.json"))
        _write_json(scratch / "tokenizer_config.json", _tokenizer_config(text, config))
        scratch.chmod(0o755)
        os.replace(scratch, directory)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def config_json(path: Path, config: ModelConfig, dtype: str) -> dict[str, Any]:
    """config.json of a model. Raises UnsupportedModelError where it cannot be said in one."""
    family = _FAMILY[config.architecture]
    scaling = config.rope_scaling or _scaling_of(path, config)
    values: dict[str, Any] = {
        "architectures": [f"{family}ForCausalLM"],
        "model_type": config.architecture.value,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "tie_word_embeddings": config.tie_word_embeddings,
        "torch_dtype": dtype,
        **_generation(config),
    }
    if config.architecture is not Architecture.QWEN2:
        if config.qkv_bias != config.output_bias:
            raise UnsupportedModelError(
                path, "attention_bias", "biases on a part of the attention cannot be exported"
            )
        values["attention_bias"] = config.qkv_bias
    if scaling is not None:
        values["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position,
        }
    return values


def _scaling_of(path: Path, config: ModelConfig) -> Llama3Rope | None:
    """The scaling that gives a GGUF file's rope factors."""
    if not config.rope_factors:
        return None
    wanted = inverse_frequencies(config)
    plain = replace(config, rope_factors=())
    for scaling in _KNOWN_SCALINGS:
        if torch.allclose(
            inverse_frequencies(replace(plain, rope_scaling=scaling)), wanted, rtol=1e-4
        ):
            return scaling
    raise UnsupportedModelError(path, "rope_freqs.weight", "no known rope scaling gives them")


def _generation(config: ModelConfig) -> dict[str, Any]:
    ends = list(config.eos_token_ids)
    return {
        "bos_token_id": config.bos_token_id,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
    }


def _tokenizer_config(text: Tokenizer, config: ModelConfig) -> dict[str, Any]:
    template = text.chat_template
    values: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_position,
        "clean_up_tokenization_spaces": False,
        **text.special_tokens,
    }
    if template is not None:
        values["chat_template"] = template.source
    return values


def _write_json(path: Path, values: dict[str, Any]) -> None:
    if path.exists():
        raise ModelFileError(path, "would be overwritten")
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
