"""Tiny random models of each architecture, made here with fixed seeds, and their references."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers

VOCABULARY = 320
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama-untied": ("Llama", {"tie_word_embeddings": False, "num_key_value_heads": 6}),
    "llama-biases": ("Llama", {"attention_bias": True, "num_key_value_heads": 1}),
    "llama3-rope": ("Llama", {"rope_parameters": _LLAMA3}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
}


def make_wide_model() -> transformers.PreTrainedModel:
    """Rows that are multiples of 32, as quantised types want them."""
    return make_model("llama", hidden_size=96, intermediate_size=96, head_dim=16)


def make_model(case: str, **more: Any) -> transformers.PreTrainedModel:
    """The reference model of a case, float32, with weights large enough to tell errors."""
    family, changes = CASES[case]
    config = getattr(transformers, f"{family}Config")(**_SIZES | changes | more)
    torch.manual_seed(hash_of(case))
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.3 if "norm" in name else 0.15
            offset = 1.0 if "norm" in name else 0.0
            parameter.copy_(torch.randn_like(parameter) * scale + offset)
    return model


def hash_of(text: str) -> int:
    """A seed that is the same in every process."""
    return sum(index * ord(letter) for index, letter in enumerate(text, 1))


def make_tokenizer() -> tokenizers.Tokenizer:
    """A byte-level BPE tokenizer: three special tokens, 256 bytes, a few merges."""
    special = ["<unk>", "<s>", "</s>"]
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("Ġ", "w"), ("he", "ll"), ("Ã", "©")]
    words = [*special, *alphabet, *("".join(pair) for pair in merges)]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={word: n for n, word in enumerate(words)}, merges=merges)
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in special])
    return backend


TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


def save(model: transformers.PreTrainedModel, directory: Path, **options: Any) -> Path:
    """A Hugging Face directory with a tokenizer."""
    model.save_pretrained(directory, **options)
    make_tokenizer().save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def tokens(count: int, seed: int = 0) -> np.ndarray:
    """Random token ids, int32."""
    return np.random.default_rng(seed).integers(3, VOCABULARY, count, dtype=np.int32)
