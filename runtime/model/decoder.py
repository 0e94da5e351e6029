"""The forward pass of a Llama-family decoder over paged keys and values."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import linear, rms_norm, silu

from .attention import Attention
from .config import ModelConfig
from .kv import TorchKV
from .step import StepLayout
from .weights import LayerWeights, Weights


def inverse_frequencies(config: ModelConfig) -> torch.Tensor:
    """Rotary frequencies, float32 [head_dim / 2], scaled as the config says.

    llama3: wavelengths shorter than the original context over `high_freq_factor` are kept, those
    longer than it over `low_freq_factor` are stretched by `factor`, between them a blend.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    if config.rope_factors:
        return frequencies / torch.tensor(config.rope_factors)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    wavelengths = 2 * math.pi / frequencies
    context = scaling.original_max_position
    blend = (context / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blend = blend.clamp(0.0, 1.0)
    return (1.0 - blend) * frequencies / scaling.factor + blend * frequencies


class Decoder:
    """A model on one device: token ids in, hidden states and logits out."""

    def __init__(self, weights: Weights, attention: Attention) -> None:
        self.config = weights.config
        self._weights = weights
        self._attention = attention
        self._frequencies = inverse_frequencies(self.config).to(weights.device)
        # So that one constant per angle is the whole of the rotation's set-up.
        self._one = torch.ones((), device=weights.device)

    @torch.inference_mode()
    def hidden(self, tokens: torch.Tensor, layout: StepLayout, kv: TorchKV) -> torch.Tensor:
        """Final hidden states, normalised: [t, hidden], of tokens int64 [t].

        Writes the keys and values of these tokens to their slots.
        """
        plan = self._attention.plan(layout)
        angles = layout.positions[:, None].float() * self._frequencies
        rotation = torch.polar(self._one.expand_as(angles), angles)[:, None, :]
        eps = self.config.rms_norm_eps
        stream = self._weights.embedding[tokens]
        for layer, slots in zip(self._weights.layers, kv.slots_of_layer, strict=True):
            normed = rms_norm(stream, stream.shape[-1:], layer.input_norm, eps)
            qkv = linear(normed, layer.qkv, layer.qkv_bias)
            queries = self._rotate_and_store(layer, qkv, rotation, slots, layout.slots)
            attended = self._attention.attend(plan, queries, slots)
            stream = stream + linear(attended, layer.output, layer.output_bias)
            normed = rms_norm(stream, stream.shape[-1:], layer.post_norm, eps)
            gate, up = linear(normed, layer.gate_up).chunk(2, dim=-1)
            stream = stream + linear(silu(gate) * up, layer.down)
        return rms_norm(stream, stream.shape[-1:], self._weights.final_norm, eps)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [m, vocab] of hidden states [m, hidden]."""
        return linear(hidden, self._weights.lm_head).float()

    def _rotate_and_store(
        self,
        layer: LayerWeights,
        qkv: torch.Tensor,
        rotation: torch.Tensor,
        slots: torch.Tensor,
        where: torch.Tensor,
    ) -> torch.Tensor:
        """Rotate q and k in place, put k and v into their slots; returns q [t, heads, head_dim]."""
        config = self.config
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        by_head = qkv.view(qkv.shape[0], heads + 2 * kv_heads, head_dim)
        queries, keys_values = by_head[:, :heads], by_head[:, heads:]
        if layer.q_norm is not None and layer.k_norm is not None:
            keys = by_head[:, heads : heads + kv_heads]
            eps = config.rms_norm_eps
            queries.copy_(rms_norm(queries, (head_dim,), layer.q_norm, eps))
            keys.copy_(rms_norm(keys, (head_dim,), layer.k_norm, eps))
        rotated = by_head[:, : heads + kv_heads].view(len(qkv), -1, head_dim // 2, 2)
        if rotated.dtype == torch.float32:
            torch.view_as_complex(rotated).mul_(rotation)
        else:
            exact = torch.view_as_complex(rotated.float()) * rotation
            rotated.copy_(torch.view_as_real(exact))
        stored = keys_values.view(len(qkv), 2, kv_heads, head_dim).transpose(0, 1)
        slots.index_copy_(1, where, stored)
        return queries
