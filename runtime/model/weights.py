"""The weights as the decoder multiplies them: fused, in one arena, released and brought back.

Fused: q, k and v are one matrix, gate and up another, so that a layer is four products. The rows
of q and k are interleaved within each head (neighbours instead of halves), because then the
rotary embedding is one complex product; scores do not change, both sides being permuted alike.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO

import torch
import xxhash

from .checkpoint import EMBEDDING, FINAL_NORM, LM_HEAD, Checkpoint
from .config import ModelConfig
from .errors import ModelError, ModelFileError
from .memory import aligned, new_arena

OpenCheckpoint = Callable[[], Checkpoint]
_CHUNK = 16 << 20


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Matrices are [out, in]; absent parts of an architecture are None."""

    input_norm: torch.Tensor  # [hidden]
    qkv: torch.Tensor  # [(heads + 2 * kv_heads) * head_dim, hidden]
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None  # [head_dim], interleaved like the rows
    k_norm: torch.Tensor | None
    output: torch.Tensor  # [hidden, heads * head_dim]
    output_bias: torch.Tensor | None  # [hidden]
    post_norm: torch.Tensor  # [hidden]
    gate_up: torch.Tensor  # [2 * intermediate, hidden]
    down: torch.Tensor  # [hidden, intermediate]


def interleaved(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of q or k ([heads * d, ...]) with the two halves of each head interleaved."""
    half = rows.shape[0] // heads // 2
    return rows.view(heads, 2, half, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


class Weights:
    """All weights of one model on one device, in one arena.

    `open_checkpoint` is called to fill them, and again after a level-2 release. The digest is of
    the content as held, so a file that changed meanwhile is noticed.
    Raises ModelFileError, UnsupportedModelError, MemoryError.
    """

    def __init__(
        self, open_checkpoint: OpenCheckpoint, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._open_checkpoint = open_checkpoint
        self.dtype = dtype
        self.device = device
        with closing(open_checkpoint()) as checkpoint:
            self.config = checkpoint.config
            self._plan = _plan(self.config)
            size = sum(aligned(prod(shape) * dtype.itemsize) for shape in self._plan.values())
            self._arena = new_arena(size, device)
            self._views = self._make_views()
            self._fill(checkpoint)
        self.digest = self._compute_digest()
        self._spill: IO[bytes] | torch.Tensor | None = None
        self.embedding = self._views[EMBEDDING]
        self.final_norm = self._views[FINAL_NORM]
        self.lm_head = self._views.get(LM_HEAD, self.embedding)
        self.layers = [self._layer(index) for index in range(self.config.num_layers)]

    @property
    def nbytes(self) -> int:
        """Bytes of the arena."""
        return self._arena.bytes.nbytes

    @property
    def resident(self) -> bool:
        """Whether a step may read them."""
        return self._arena.resident

    def release(self, level: int) -> None:
        """Give the memory back; level 1 keeps a copy at hand, level 2 only the model's file.

        The copy is in host memory where the weights were on an accelerator, else in an unnamed
        temporary file. Raises OSError or MemoryError if it cannot be made; then nothing changes.
        """
        if level not in (1, 2):
            raise ValueError(f"level {level}; 1 keeps a copy, 2 does not")
        if not self.resident:
            return
        self._spill = self._copy_out() if level == 1 else None
        self._arena.release()

    def restore(self) -> None:
        """Bring released weights back. On an error they stay released and it can be tried again.

        Raises ModelFileError (also when the file is not the one that was loaded), OSError,
        MemoryError.
        """
        if self.resident:
            return
        self._arena.restore()
        try:
            if self._spill is not None:
                self._copy_in(self._spill)
            else:
                with closing(self._open_checkpoint()) as checkpoint:
                    if checkpoint.config != self.config:
                        raise ModelFileError(checkpoint.path, "its config changed since the start")
                    self._fill(checkpoint)
                    if self._compute_digest() != self.digest:
                        raise ModelFileError(checkpoint.path, "its weights changed since the start")
        except BaseException:
            self._arena.release()
            raise
        self.forget_copy()

    def forget_copy(self) -> None:
        """Drop the copy of a level-1 release, if there is one."""
        if self._spill is not None and not isinstance(self._spill, torch.Tensor):
            self._spill.close()
        self._spill = None

    def _copy_out(self) -> IO[bytes] | torch.Tensor:
        if self.device.type != "cpu":
            copy = torch.empty(
                self.nbytes, dtype=torch.uint8, pin_memory=self.device.type == "cuda"
            )
            return copy.copy_(self._arena.bytes)
        # Not /tmp, which may itself be memory. It stays open: that is what keeps the copy.
        directory = "/var/tmp" if Path("/var/tmp").is_dir() else None
        file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115
        try:
            for chunk in self._chunks():
                file.write(_buffer(chunk))
            file.flush()
        except BaseException:
            file.close()
            raise
        return file

    def _copy_in(self, spill: IO[bytes] | torch.Tensor) -> None:
        if isinstance(spill, torch.Tensor):
            self._arena.bytes.copy_(spill)
            return
        spill.seek(0)
        for chunk in self._chunks():
            if spill.readinto(_buffer(chunk)) != chunk.nbytes:  # type: ignore[attr-defined]
                raise OSError("the spilled weights are shorter than the weights")

    def _chunks(self) -> Iterator[torch.Tensor]:
        yield from torch.split(self._arena.bytes, _CHUNK)

    def _compute_digest(self) -> bytes:
        digest = xxhash.xxh3_128(repr((self.config, self.dtype)).encode())
        for chunk in self._chunks():
            digest.update(_buffer(chunk.cpu()))
        return digest.digest()

    def _make_views(self) -> dict[str, torch.Tensor]:
        views, at = {}, 0
        for name, shape in self._plan.items():
            size = prod(shape) * self.dtype.itemsize
            views[name] = self._arena.bytes[at : at + size].view(self.dtype).view(shape)
            at += aligned(size)
        return views

    def _fill(self, checkpoint: Checkpoint) -> None:
        for name, view in self._views.items():
            if not name.startswith("layer."):
                view.copy_(checkpoint.tensor(name))
                continue
            _, index, part = name.split(".")
            rows = torch.split(view, _ROWS[part](self.config))
            for source, target in zip(_SOURCES[part], rows, strict=True):
                values = checkpoint.tensor(f"model.layers.{index}.{source}")
                target.copy_(_as_held(source, values, self.config))

    def _layer(self, index: int) -> LayerWeights:
        prefix = f"layer.{index}."
        return LayerWeights(**{part: self._views.get(prefix + part) for part in _SOURCES})  # type: ignore[arg-type]


# For each part of a layer: the checkpoint's tensors it is made of, and how many rows each has.
_SOURCES: dict[str, tuple[str, ...]] = {
    "input_norm": ("input_layernorm.weight",),
    "qkv": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "qkv_bias": ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
    "q_norm": ("self_attn.q_norm.weight",),
    "k_norm": ("self_attn.k_norm.weight",),
    "output": ("self_attn.o_proj.weight",),
    "output_bias": ("self_attn.o_proj.bias",),
    "post_norm": ("post_attention_layernorm.weight",),
    "gate_up": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "down": ("mlp.down_proj.weight",),
}


def _qkv_rows(config: ModelConfig) -> list[int]:
    kv = config.num_kv_heads * config.head_dim
    return [config.num_heads * config.head_dim, kv, kv]


_ROWS: dict[str, Callable[[ModelConfig], list[int]]] = {
    "input_norm": lambda c: [c.hidden_size],
    "qkv": _qkv_rows,
    "qkv_bias": _qkv_rows,
    "q_norm": lambda c: [c.head_dim],
    "k_norm": lambda c: [c.head_dim],
    "output": lambda c: [c.hidden_size],
    "output_bias": lambda c: [c.hidden_size],
    "post_norm": lambda c: [c.hidden_size],
    "gate_up": lambda c: [c.intermediate_size, c.intermediate_size],
    "down": lambda c: [c.hidden_size],
}
_INPUTS: dict[str, Callable[[ModelConfig], tuple[int, ...]]] = {
    "qkv": lambda c: (c.hidden_size,),
    "output": lambda c: (c.num_heads * c.head_dim,),
    "gate_up": lambda c: (c.hidden_size,),
    "down": lambda c: (c.intermediate_size,),
}


def _plan(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The views of the arena in the order in which a step reads them."""
    absent = set()
    if not config.qkv_bias:
        absent.add("qkv_bias")
    if not config.output_bias:
        absent.add("output_bias")
    if not config.qk_norm:
        absent |= {"q_norm", "k_norm"}
    plan: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    for index in range(config.num_layers):
        for part in _SOURCES:
            if part not in absent:
                inputs = _INPUTS[part](config) if part in _INPUTS else ()
                plan[f"layer.{index}.{part}"] = (sum(_ROWS[part](config)), *inputs)
    plan[FINAL_NORM] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        plan[LM_HEAD] = (config.vocab_size, config.hidden_size)
    return plan


def _as_held(source: str, values: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    if ".q_proj." in source:
        return interleaved(values, config.num_heads)
    if ".k_proj." in source:
        return interleaved(values, config.num_kv_heads)
    if source in ("self_attn.q_norm.weight", "self_attn.k_norm.weight"):
        return interleaved(values, 1)
    return values


def _buffer(chunk: torch.Tensor) -> memoryview:
    """The bytes of a host tensor, without a copy."""
    return memoryview(chunk.numpy())  # type: ignore[arg-type]


def dtype_named(name: str) -> torch.dtype:
    """The torch type of that name. Raises ModelError, which lists what can be asked for."""
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in known:
        raise ModelError(f"dtype {name!r}; implemented: {', '.join(known)}")
    return known[name]
