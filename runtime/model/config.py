"""What a decoder is made of, in one typed record, however its file says it.

Every field that changes the computation is either understood here or refused by name: a model
that loads and answers nonsense is worse than one that does not load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from .errors import ModelFileError, UnsupportedModelError


class Architecture(Enum):
    """The families that the decoder implements."""

    LLAMA = "llama"  # SmolLM2 too
    QWEN2 = "qwen2"  # biases on q, k, v
    QWEN3 = "qwen3"  # norms on the heads of q and k


@dataclass(frozen=True, slots=True)
class Llama3Rope:
    """The frequency scaling of Llama 3.1 and later."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only transformer of the Llama family. Sizes are counts of elements."""

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Llama3Rope | None
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool
    dtype: str  # of the checkpoint: "float32", "bfloat16" or "float16"
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    #: Per-frequency divisors that a GGUF file carries in place of `rope_scaling`.
    rope_factors: tuple[float, ...] = field(default=(), repr=False)

    @property
    def heads_per_kv_head(self) -> int:
        """How many query heads share one key/value head."""
        return self.num_heads // self.num_kv_heads


_HF_ARCHITECTURES = {
    "LlamaForCausalLM": Architecture.LLAMA,
    "Qwen2ForCausalLM": Architecture.QWEN2,
    "Qwen3ForCausalLM": Architecture.QWEN3,
}
DTYPES = ("float32", "bfloat16", "float16")


class _Fields:
    """Typed look-ups in a file's mapping; each error names the file and the field."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        self.values = values

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelFileError(self.path, f"{name} is {value!r}, not a positive integer")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise ModelFileError(self.path, f"{name} is {value!r}, not a positive number")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelFileError(self.path, f"{name} is {value!r}, not true or false")
        return value

    def refuse(self, name: str, problem: str) -> UnsupportedModelError:
        return UnsupportedModelError(self.path, name, problem)


def from_huggingface(
    path: Path, values: Mapping[str, Any], generation: Mapping[str, Any]
) -> ModelConfig:
    """Read config.json (and generation_config.json, which may name more end tokens).

    Raises ModelFileError or UnsupportedModelError, with the file and the field.
    """
    names = values.get("architectures") or []
    known = [name for name in names if name in _HF_ARCHITECTURES]
    if not known:
        raise UnsupportedModelError(
            path, "architectures", f"{names!r}; implemented: {', '.join(_HF_ARCHITECTURES)}"
        )
    architecture = _HF_ARCHITECTURES[known[0]]
    fields = _Fields(path, values)
    _refuse_huggingface_features(fields, architecture)
    rope_theta, scaling = _rope(fields)
    heads = fields.integer("num_attention_heads")
    hidden = fields.integer("hidden_size")
    attention_bias = fields.boolean("attention_bias", False)
    dtype = values.get("dtype") or values.get("torch_dtype") or "float32"
    end = _token_ids(path, values.get("eos_token_id"))
    end += _token_ids(path, generation.get("eos_token_id"))
    begin = _token_ids(path, values.get("bos_token_id"))
    config = ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=fields.integer("head_dim", hidden // heads),
        max_position=fields.integer("max_position_embeddings"),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=rope_theta,
        rope_scaling=scaling,
        tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
        qkv_bias=architecture is Architecture.QWEN2 or attention_bias,
        output_bias=architecture is not Architecture.QWEN2 and attention_bias,
        qk_norm=architecture is Architecture.QWEN3,
        dtype=str(dtype).removeprefix("torch."),
        bos_token_id=begin[0] if begin else None,
        eos_token_ids=tuple(dict.fromkeys(end)),
    )
    return checked(path, config)


def _refuse_huggingface_features(fields: _Fields, architecture: Architecture) -> None:
    values = fields.values
    activation = values.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise fields.refuse("hidden_act", f"{activation!r}; implemented: silu")
    if fields.boolean("mlp_bias", False):
        raise fields.refuse("mlp_bias", "biases in the feed-forward layers")
    if values.get("quantization_config") is not None:
        raise fields.refuse("quantization_config", "quantised checkpoints; use a GGUF file")
    if fields.boolean("use_sliding_window", False):
        raise fields.refuse("use_sliding_window", "sliding-window attention")
    if any(kind != "full_attention" for kind in values.get("layer_types") or ()):
        raise fields.refuse("layer_types", "attention other than full_attention")
    if architecture is Architecture.LLAMA and values.get("sliding_window") is not None:
        raise fields.refuse("sliding_window", "sliding-window attention")
    if values.get("partial_rotary_factor", 1.0) != 1.0:
        raise fields.refuse("partial_rotary_factor", "rotation of a part of each head")


def _rope(fields: _Fields) -> tuple[float, Llama3Rope | None]:
    """Theta and scaling, from `rope_parameters` (newer files) or `rope_scaling` (older ones)."""
    name = "rope_parameters" if fields.values.get("rope_parameters") else "rope_scaling"
    values = fields.values.get(name) or {}
    if not isinstance(values, Mapping):
        raise ModelFileError(fields.path, f"{name} is {values!r}, not an object")
    rope = _Fields(fields.path, values)
    theta = rope.number("rope_theta", fields.number("rope_theta", 10000.0))
    kind = values.get("rope_type", values.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise fields.refuse(f"{name}.rope_type", f"{kind!r}; implemented: default, llama3")
    return theta, Llama3Rope(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_position=rope.integer("original_max_position_embeddings"),
    )


def _token_ids(path: Path, value: Any) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int):
            raise ModelFileError(path, f"{value!r} is not a token id or a list of them")
    return tuple(ids)


_GGUF_DTYPES = {0: "float32", 1: "float16", 32: "bfloat16"}


def from_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]
) -> ModelConfig:
    """Read a GGUF file's metadata; tensor shapes (row-major) tell what it leaves out.

    Raises ModelFileError or UnsupportedModelError, with the file and the key.
    """
    name = metadata.get("general.architecture")
    if name not in {architecture.value for architecture in Architecture}:
        known = ", ".join(architecture.value for architecture in Architecture)
        raise UnsupportedModelError(path, "general.architecture", f"{name!r}; implemented: {known}")
    architecture = Architecture(name)
    prefix = f"{name}."
    fields = _Fields(
        path, {k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}
    )
    scaling = fields.values.get("rope.scaling.type", "none")
    if scaling != "none":
        raise fields.refuse(f"{prefix}rope.scaling.type", f"{scaling!r}; implemented: none")
    if fields.values.get("expert_count"):
        raise fields.refuse(f"{prefix}expert_count", "mixtures of experts")
    heads = fields.integer("attention.head_count")
    hidden = fields.integer("embedding_length")
    head_dim = fields.integer("attention.key_length", hidden // heads)
    if fields.integer("rope.dimension_count", head_dim) != head_dim:
        raise fields.refuse(f"{prefix}rope.dimension_count", "rotation of a part of each head")
    embedding = tensors.get("token_embd.weight", (0,))
    end = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    config = ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size", embedding[0] or None),
        hidden_size=hidden,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=fields.integer("block_count"),
        num_heads=heads,
        num_kv_heads=fields.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        max_position=fields.integer("context_length"),
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon", 1e-6),
        rope_theta=fields.number("rope.freq_base", 10000.0),
        rope_scaling=None,
        tie_word_embeddings="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        dtype=_GGUF_DTYPES.get(metadata.get("general.file_type", 0), "float32"),
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=tuple(dict.fromkeys(int(token) for token in end if token is not None)),
    )
    return checked(path, config)


def checked(path: Path, config: ModelConfig) -> ModelConfig:
    """The same config, if its parts fit. Raises ModelFileError or UnsupportedModelError."""
    if config.num_heads % config.num_kv_heads:
        raise ModelFileError(
            path, f"{config.num_heads} heads are no multiple of {config.num_kv_heads} kv heads"
        )
    if config.head_dim % 2:
        raise ModelFileError(path, f"head_dim {config.head_dim} is odd and cannot be rotated")
    if config.dtype not in DTYPES:
        raise UnsupportedModelError(
            path, "dtype", f"{config.dtype}; implemented: {', '.join(DTYPES)}"
        )
    for token in (*config.eos_token_ids, config.bos_token_id or 0):
        if not 0 <= token < config.vocab_size:
            raise ModelFileError(path, f"token id {token} is outside the vocabulary")
    return config
