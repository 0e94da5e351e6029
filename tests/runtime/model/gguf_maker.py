"""GGUF files of the tiny models, written as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

from . import tiny

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """A Hugging Face tensor's name in a GGUF file."""
    module, _, kind = name.rpartition(".")
    if not module.startswith("model.layers."):
        return f"{_NAMES[module]}.{kind}"
    _, _, layer, *inner = module.split(".")
    return f"blk.{layer}.{_NAMES['.'.join(inner)]}.{kind}"


def permuted(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of q or k as llama.cpp stores them: a head's halves become neighbours."""
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def write(
    model: transformers.PreTrainedModel,
    path: Path,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    rope_factors: np.ndarray | None = None,
) -> Path:
    """Write a model; matrices are quantised to `kind`."""
    config = model.config
    name = config.model_type
    writer = gguf.GGUFWriter(path, name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer)
    for key, tensor in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor
        if name == "llama" and ".q_proj." in key:
            values = permuted(values, config.num_attention_heads)
        if name == "llama" and ".k_proj." in key:
            values = permuted(values, config.num_key_value_heads)
        array = values.contiguous().numpy()
        if array.ndim == 2:
            writer.add_tensor(gguf_name(key), gguf.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(key), array)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    backend = tiny.make_tokenizer()
    words = [backend.id_to_token(token) for token in range(backend.get_vocab_size())]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([3 if token < 3 else 1 for token in range(len(words))])
    writer.add_token_merges(["h e", "l l", "Ġ w", "he ll", "Ã ©"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(tiny.TEMPLATE)
