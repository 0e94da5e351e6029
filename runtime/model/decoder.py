"""The forward pass of a Llama-family decoder over paged keys and values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import rms_norm

from .attention import Attention
from .config import ModelConfig
from .kv import TorchKV
from .linear import GatedLinear, Linear
from .memory import trim_heap
from .operations import Operations
from .step import StepLayout, tiles
from .weights import LayerWeights, Weights

# Tokens that go through a layer at once on a CPU. What an operation leaves is a new tensor, and new
# pages cost as much as filling them: with fewer tokens memory is used again, and stays bounded.
# Much fewer would read the layer's weights too often, they do not fit a cache.
_TILE_TOKENS = 1024


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


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's weights, its products made ready."""

    weights: LayerWeights
    qkv: Linear
    output: Linear
    gate_up: GatedLinear
    down: Linear


@dataclass(slots=True)
class _Tile:
    """A part of a step on its way through the layers."""

    plan: Any  # the attention's
    rotation: torch.Tensor  # complex64 [t, head_dim / 2]
    slots: torch.Tensor  # int64 [t]
    stream: torch.Tensor  # [t, hidden]
    normed: torch.Tensor  # [t, hidden], what the next layer takes


class Decoder:
    """A model on one device: token ids in, hidden states and logits out."""

    def __init__(self, weights: Weights, attention: Attention, operations: Operations) -> None:
        self.config = weights.config
        self._weights = weights
        self._attention = attention
        self._operations = operations
        self._frequencies = inverse_frequencies(self.config).to(weights.device)
        self._one = torch.ones((), device=weights.device)
        self._layers = [
            _Layer(
                weights=layer,
                qkv=Linear(layer.qkv, layer.qkv_bias),
                output=Linear(layer.output, layer.output_bias),
                gate_up=GatedLinear(layer.gate_up, operations),
                down=Linear(layer.down),
            )
            for layer in weights.layers
        ]
        self._lm_head = Linear(weights.lm_head)

    def pack(self) -> None:
        """Make packed copies of the matrices, where they help; the weights must be resident."""
        for product in self._products():
            product.pack()

    def unpack(self) -> None:
        """Drop the packed copies; their memory goes back to the system."""
        for product in self._products():
            product.unpack()
        trim_heap()

    @torch.inference_mode()
    def hidden(self, tokens: torch.Tensor, layout: StepLayout, kv: TorchKV) -> torch.Tensor:
        """Final hidden states, normalised: [t, hidden], of tokens int64 [t].

        Writes the keys and values of these tokens to their slots.
        """
        most = _TILE_TOKENS if tokens.device.type == "cpu" else len(tokens)
        parts = tiles(layout, most, kv.block_size)
        ids = torch.split(tokens, [len(part.positions) for part in parts])
        first_norm = self._layers[0].weights.input_norm
        states = [self._enter(i, part, first_norm) for i, part in zip(ids, parts, strict=True)]
        following = [layer.weights.input_norm for layer in self._layers[1:]]
        following.append(self._weights.final_norm)
        for layer, slots, next_norm in zip(self._layers, kv.slots_of_layer, following, strict=True):
            for state in states:
                self._through(layer, state, slots, next_norm)
        return states[0].normed if len(states) == 1 else torch.cat([s.normed for s in states])

    def _enter(self, tokens: torch.Tensor, layout: StepLayout, norm: torch.Tensor) -> _Tile:
        angles = layout.positions[:, None].float() * self._frequencies
        stream = self._weights.embedding[tokens]
        return _Tile(
            plan=self._attention.plan(layout),
            rotation=torch.polar(self._one.expand_as(angles), angles),
            slots=layout.slots,
            stream=stream,
            normed=self._operations.rms_norm(stream, norm),
        )

    def _through(
        self, layer: _Layer, tile: _Tile, slots: torch.Tensor, next_norm: torch.Tensor
    ) -> None:
        small = self._operations
        heads, head_dim = self.config.num_heads, self.config.head_dim
        qkv = layer.qkv(tile.normed).view(len(tile.normed), -1, head_dim)
        if self.config.qk_norm:
            self._normalise_heads(layer.weights, qkv)
        small.rotate_and_store(qkv, tile.rotation, slots, tile.slots)
        attended = self._attention.attend(tile.plan, qkv[:, :heads], slots)
        normed = small.add_rms_norm(tile.stream, layer.output(attended), layer.weights.post_norm)
        change = layer.down(layer.gate_up(normed))
        tile.normed = small.add_rms_norm(tile.stream, change, next_norm)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [m, vocab] of hidden states [m, hidden]."""
        return self._lm_head(hidden).float()

    def _normalise_heads(self, weights: LayerWeights, qkv: torch.Tensor) -> None:
        heads, kv_heads = self.config.num_heads, self.config.num_kv_heads
        shape, eps = (self.config.head_dim,), self.config.rms_norm_eps
        queries, keys = qkv[:, :heads], qkv[:, heads : heads + kv_heads]
        queries.copy_(rms_norm(queries, shape, weights.q_norm, eps))
        keys.copy_(rms_norm(keys, shape, weights.k_norm, eps))

    def _products(self) -> Iterator[Linear | GatedLinear]:
        for layer in self._layers:
            yield from (layer.qkv, layer.output, layer.gate_up, layer.down)
        yield self._lm_head
