"""Matrix products with weights, packed where that is faster.

On a CPU a decode step is as fast as it reads the weights. Where the C kernels are, they have a
layout of their own (kernels/products.c), which was the fastest of all up to some hundred rows; more
are better in the libraries, which know more about caches. Without the kernels the CPU's
libraries pack, and what was measured on AVX-512 and AMX says for which counts that pays: for 4 to
200 rows a packed float32 weight saves a third of the time, a packed bfloat16 one a quarter at any
small count. A packed copy costs the weight's size again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear

from .native import PANEL, Native, native
from .operations import Operations

# Most rows for the C kernels.
_KERNEL_ROWS = 512
# Rows for which the libraries' packed copy is used, by type: (fewest, most).
_PACKED_ROWS = {torch.float32: (4, 200), torch.bfloat16: (1, 128)}
# What their packing is laid out for; it is used for other counts too.
_TYPICAL_ROWS = 32
# A tile of bfloat16 takes so many elements of a row at once.
_STRIDE = {torch.float32: 1, torch.bfloat16: 32}


def kernels_for(weight: torch.Tensor) -> Native | None:
    """The C kernels, if they can multiply with this weight."""
    if weight.device.type != "cpu":
        return None
    kernels = native(weight.dtype)
    if kernels is None or not kernels.can_multiply:
        return None
    columns, width = weight.shape
    return None if columns % PANEL or width % _STRIDE[weight.dtype] else kernels


def _panels(weight: torch.Tensor) -> torch.Tensor:
    """The layout of kernels/products.c, of a weight [out, in]."""
    columns, width = weight.shape
    together = 1 if weight.dtype == torch.float32 else 2
    split = weight.reshape(columns // PANEL, PANEL, width // together, together)
    return split.transpose(1, 2).contiguous()


class _Panels:
    """A weight packed for the C kernels, and the product with it."""

    def __init__(
        self, kernels: Native, weight: torch.Tensor, bias: torch.Tensor | None, gated: bool
    ) -> None:
        self._kernels = kernels
        self._columns, self._width = weight.shape
        self._gated = gated
        self._bias = bias
        if gated:  # 16 columns of the gate, then the same of up
            halves = weight.view(2, -1, PANEL // 2, self._width)
            weight = halves.transpose(0, 1).reshape(weight.shape)
        self._packed = _panels(weight)
        self.most = _KERNEL_ROWS

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        rows = len(x)
        if out is None:
            out = x.new_empty(rows, self._columns // 2 if self._gated else self._columns)
        self._kernels.product(
            x.data_ptr(), self._packed.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(), out.data_ptr(),
            rows, self._width, self._columns, self._gated, torch.get_num_threads(),
        )  # fmt: skip
        return out


class Linear:
    """x @ weight.T + bias. weight: [out, in]; a view of the weights' arena."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self._panels: _Panels | None = None
        self._packed: torch.Tensor | None = None
        self._fewest, self._most = 1, 0

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """x: [t, in], contiguous; returns [t, out], which is in `out` if that could be used."""
        rows = len(x)
        if self._panels is not None and rows <= self._panels.most:
            return self._panels(x, out)
        if self._packed is None or not self._fewest <= rows <= self._most:
            if out is None:
                return linear(x, self.weight, self.bias)
            if self.bias is None:
                return torch.mm(x, self.weight.T, out=out)
            return torch.addmm(self.bias, x, self.weight.T, out=out)
        packed: torch.Tensor
        if x.dtype == torch.float32:
            # Its last argument must be the rows, or it quietly takes the slow way.
            packed = torch.ops.mkl._mkl_linear(x, self._packed, self.weight, self.bias, rows)
        else:
            product = torch.ops.mkldnn._linear_pointwise
            packed = product(x, self._packed, self.bias, "none", [], "")
        return packed

    def pack(self) -> None:
        """Make the packed copy, if this type on this device has one."""
        kernels = kernels_for(self.weight)
        if kernels is not None:
            self._panels = _Panels(kernels, self.weight, self.bias, gated=False)
            return
        rows = _PACKED_ROWS.get(self.weight.dtype)
        if rows is None or self.weight.device.type != "cpu":
            return
        library: Any
        if self.weight.dtype == torch.float32:
            library, pack = torch.backends.mkl, torch.ops.mkl._mkl_reorder_linear_weight
        else:
            library, pack = torch.backends.mkldnn, torch.ops.mkldnn._reorder_linear_weight
        if not library.is_available():
            return
        self._packed = pack(self.weight, _TYPICAL_ROWS)
        self._fewest, self._most = rows

    def unpack(self) -> None:
        """Drop the packed copy."""
        self._panels = self._packed = None


class GatedLinear:
    """silu(gate) * up, both products of x in one. weight: [2 * intermediate, in], gate first."""

    def __init__(self, weight: torch.Tensor, operations: Operations) -> None:
        self._plain = Linear(weight)
        self._operations = operations
        self._panels: _Panels | None = None

    def __call__(
        self,
        x: torch.Tensor,
        both: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x: [t, in], contiguous; returns [t, intermediate], in `out` if that could be used.

        both: [t, 2 * intermediate], memory that may be used on the way.
        """
        if self._panels is not None and len(x) <= self._panels.most:
            return self._panels(x, out)
        return self._operations.silu_mul(self._plain(x, both), out)

    def pack(self) -> None:
        """Make the packed copy, if this type on this device has one."""
        weight = self._plain.weight
        kernels = kernels_for(weight)
        if kernels is None:
            self._plain.pack()
        else:
            self._panels = _Panels(kernels, weight, None, gated=True)

    def unpack(self) -> None:
        """Drop the packed copy."""
        self._panels = None
        self._plain.unpack()
