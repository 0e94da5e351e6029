"""The small operations of a layer, behind one protocol: torch's own, or the C kernels."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn.functional import rms_norm, silu

from .config import ModelConfig
from .native import Native, native


class Operations(Protocol):
    """What a layer does besides products and attention."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x / rms(x) * weight; x is [t, hidden]."""

    def add_rms_norm(
        self, stream: torch.Tensor, change: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        """Add `change` to `stream` in place; returns rms_norm(stream)."""

    def silu_mul(self, gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """silu(gate) * up of [t, 2 * intermediate]; may use the memory of out."""

    def rotate_and_store(
        self, qkv: torch.Tensor, rotation: torch.Tensor, slots: torch.Tensor, where: torch.Tensor
    ) -> None:
        """Rotate q and k of qkv [t, heads + 2 * kv_heads, head_dim] in place; store k and v.

        rotation: complex64 [t, head_dim / 2]; slots: [2, num_slots, kv_heads, head_dim];
        where: int64 [t], the slot of each token.
        """


class TorchOperations:
    """Any device, any type."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """See Operations."""
        return rms_norm(x, x.shape[-1:], weight, self._config.rms_norm_eps)

    def add_rms_norm(
        self, stream: torch.Tensor, change: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        """See Operations."""
        return self.rms_norm(stream.add_(change), weight)

    def silu_mul(self, gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """See Operations."""
        gate, up = gate_up.chunk(2, dim=-1)
        return silu(gate).mul_(up)

    def rotate_and_store(
        self, qkv: torch.Tensor, rotation: torch.Tensor, slots: torch.Tensor, where: torch.Tensor
    ) -> None:
        """See Operations."""
        tokens, _, head_dim = qkv.shape
        heads, kv_heads = self._config.num_heads, self._config.num_kv_heads
        rotated = qkv[:, : heads + kv_heads].view(tokens, -1, head_dim // 2, 2)
        if rotated.dtype == torch.float32:
            torch.view_as_complex(rotated).mul_(rotation[:, None])
        else:
            exact = torch.view_as_complex(rotated.float()) * rotation[:, None]
            rotated.copy_(torch.view_as_real(exact))
        stored = qkv[:, heads:].view(tokens, 2, kv_heads, head_dim)
        slots.index_copy_(1, where, stored.transpose(0, 1))


class NativeOperations:
    """The C kernels. Tensors are contiguous, on the CPU, of the kernels' type."""

    def __init__(self, config: ModelConfig, kernels: Native) -> None:
        self._config = config
        self._kernels = kernels

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """See Operations."""
        out = torch.empty_like(x)
        rows, width = x.shape
        self._kernels.rms_norm(
            x.data_ptr(), weight.data_ptr(), out.data_ptr(),
            rows, width, self._config.rms_norm_eps, torch.get_num_threads(),
        )  # fmt: skip
        return out

    def add_rms_norm(
        self, stream: torch.Tensor, change: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        """See Operations."""
        out = torch.empty_like(stream)
        rows, width = stream.shape
        self._kernels.add_rms_norm(
            stream.data_ptr(), change.data_ptr(), weight.data_ptr(), out.data_ptr(),
            rows, width, self._config.rms_norm_eps, torch.get_num_threads(),
        )  # fmt: skip
        return out

    def silu_mul(self, gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """See Operations."""
        rows, width = gate_up.shape
        if out is None:
            out = gate_up.new_empty(rows, width // 2)
        self._kernels.silu_mul(
            gate_up.data_ptr(), out.data_ptr(), rows, width // 2, torch.get_num_threads()
        )
        return out

    def rotate_and_store(
        self, qkv: torch.Tensor, rotation: torch.Tensor, slots: torch.Tensor, where: torch.Tensor
    ) -> None:
        """See Operations."""
        keys, values = slots.unbind(0)
        self._kernels.rotate_and_store(
            qkv.data_ptr(), rotation.data_ptr(), keys.data_ptr(), values.data_ptr(),
            where.data_ptr(), len(qkv), self._config.num_heads, self._config.num_kv_heads,
            self._config.head_dim, torch.get_num_threads(),
        )  # fmt: skip


def operations_for(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Operations:
    """The C kernels where they can be had, else torch's."""
    kernels = native(dtype) if device.type == "cpu" else None
    return TorchOperations(config) if kernels is None else NativeOperations(config, kernels)
