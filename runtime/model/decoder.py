"""The forward pass of a Llama-family decoder over paged keys and values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn.functional import rms_norm

from .attention import Attention
from .config import ModelConfig
from .kv import TorchKV
from .linear import GatedLinear, Linear
from .memory import trim_heap
from .operations import Operations
from .step import StepLayout
from .weights import LayerWeights, Weights

# From here on a step's layers have memory in common; below, small tensors are cheap.
_MANY_TOKENS = 512


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


@dataclass(frozen=True, slots=True)
class _Room:
    """Memory for what the layers of one step make, one after the other: [t, columns] each.

    The results of a long prompt are megabytes each, which the C library maps anew for every
    tensor; a tenth of the prompt's time went into new pages.
    """

    qkv: torch.Tensor | None = None
    attended: torch.Tensor | None = None
    change: torch.Tensor | None = None
    gate_up: torch.Tensor | None = None
    active: torch.Tensor | None = None


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
        small = self._operations
        plan = self._attention.plan(layout)
        angles = layout.positions[:, None].float() * self._frequencies
        rotation = torch.polar(self._one.expand_as(angles), angles)
        heads, head_dim = self.config.num_heads, self.config.head_dim
        stream = self._weights.embedding[tokens]
        room = self._room(stream)
        normed = small.rms_norm(stream, self._layers[0].weights.input_norm)
        following = [layer.weights.input_norm for layer in self._layers[1:]]
        following.append(self._weights.final_norm)
        for layer, slots, next_norm in zip(self._layers, kv.slots_of_layer, following, strict=True):
            qkv = layer.qkv(normed, room.qkv).view(len(tokens), -1, head_dim)
            if self.config.qk_norm:
                self._normalise_heads(layer.weights, qkv)
            small.rotate_and_store(qkv, rotation, slots, layout.slots)
            attended = self._attention.attend(plan, qkv[:, :heads], slots, room.attended)
            change = layer.output(attended, room.change)
            normed = small.add_rms_norm(stream, change, layer.weights.post_norm)
            active = layer.gate_up(normed, room.gate_up, room.active)
            change = layer.down(active, room.change)
            normed = small.add_rms_norm(stream, change, next_norm)
        return normed

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [m, vocab] of hidden states [m, hidden]."""
        return self._lm_head(hidden).float()

    def _room(self, stream: torch.Tensor) -> _Room:
        if len(stream) < _MANY_TOKENS or stream.device.type != "cpu":
            return _Room()
        layer = self._layers[0].weights
        widths = (
            len(layer.qkv), layer.output.shape[1], len(layer.output), len(layer.gate_up),
            layer.down.shape[1],
        )  # fmt: skip
        return _Room(*[stream.new_empty(len(stream), width) for width in widths])

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
