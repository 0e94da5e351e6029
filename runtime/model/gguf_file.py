"""A GGUF file: metadata as a config, tensors dequantised and in Hugging Face's layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from .checkpoint import expected_shapes
from .config import Architecture, from_gguf
from .errors import ModelFileError
from .gguf_reader import GGUFFile

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"


def huggingface_name(name: str) -> str | None:
    """A GGUF tensor's name in a Hugging Face checkpoint; None if the model has no such tensor."""
    if name in _TOP:
        return _TOP[name]
    parts = name.split(".")
    if len(parts) != 4 or parts[0] != "blk" or parts[2] not in _IN_LAYER:
        return None
    return f"model.layers.{parts[1]}.{_IN_LAYER[parts[2]]}.{parts[3]}"


def unpermuted(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of q or k (weight [heads * d, n] or bias [heads * d]) as Hugging Face orders them.

    GGUF files of the llama architecture hold the two halves of each head interleaved, because
    llama.cpp rotates neighbours where Hugging Face rotates halves.
    """
    half = rows.shape[0] // heads // 2
    return rows.view(heads, half, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


class GGUFCheckpoint:
    """The tensors and the metadata of one file. Opening it checks all names and shapes.

    Raises ModelFileError or UnsupportedModelError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GGUFFile(path)
        self.metadata = self._file.metadata
        shapes = {name: entry.shape for name, entry in self._file.tensors.items()}
        self.config = from_gguf(path, self.metadata, shapes)
        self._names = {huggingface_name(name): name for name in shapes}
        for name, shape in expected_shapes(self.config).items():
            if name not in self._names:
                raise ModelFileError(path, f"no tensor for {name}")
            found = shapes[self._names[name]]
            if found != shape:
                raise ModelFileError(path, f"{name} has shape {found}; the metadata says {shape}")
        if _ROPE_FACTORS in shapes:
            factors = self._file.values(_ROPE_FACTORS).ravel()
            if factors.size != self.config.head_dim // 2:
                raise ModelFileError(path, f"{_ROPE_FACTORS} has {factors.size} entries")
            self.config = replace(self.config, rope_factors=tuple(factors.tolist()))

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, float32."""
        values = torch.from_numpy(self._file.values(self._names[name]))
        if self.config.architecture is Architecture.LLAMA:
            if ".q_proj." in name:
                return unpermuted(values, self.config.num_heads)
            if ".k_proj." in name:
                return unpermuted(values, self.config.num_kv_heads)
        return values

    def close(self) -> None:
        """Unmap the file. Safe to call twice."""
        self._file.close()
