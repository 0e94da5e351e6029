"""The C kernels compute what torch computes, and their absence costs speed only."""

from __future__ import annotations

import logging
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from kvproof.runtime.model import native as native_module
from kvproof.runtime.model.attention import NativeAttention, PerRequestAttention, attention_for
from kvproof.runtime.model.config import ModelConfig
from kvproof.runtime.model.linear import GatedLinear, Linear, kernels_for
from kvproof.runtime.model.load import open_checkpoint
from kvproof.runtime.model.native import native
from kvproof.runtime.model.operations import NativeOperations, TorchOperations, operations_for
from kvproof.runtime.model.step import layout

from . import tiny
from .paged import CPU

needs_compiler = pytest.mark.skipif(
    native(torch.float32) is None, reason="no C compiler, so no C kernels"
)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.fixture(params=["llama", "qwen3"])
def config(directories: dict[str, Path], request: pytest.FixtureRequest) -> ModelConfig:
    return open_checkpoint(directories[request.param]).config


def assert_near(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    limit = TOLERANCE[ours.dtype]
    torch.testing.assert_close(ours, theirs, atol=limit, rtol=limit)


def both(config: ModelConfig, dtype: torch.dtype) -> tuple[NativeOperations, TorchOperations]:
    ours = operations_for(config, dtype, CPU)
    assert isinstance(ours, NativeOperations)
    return ours, TorchOperations(config)


@needs_compiler
@dtypes
@pytest.mark.parametrize("rows", [1, 5, 700])
def test_the_small_operations_are_torchs(
    config: ModelConfig, dtype: torch.dtype, rows: int
) -> None:
    torch.manual_seed(rows)
    ours, theirs = both(config, dtype)
    hidden = torch.randn(rows, config.hidden_size).to(dtype)
    change = torch.randn(rows, config.hidden_size).to(dtype)
    weight = torch.randn(config.hidden_size).to(dtype)
    gate_up = (torch.randn(rows, 2 * config.intermediate_size) * 6).to(dtype)
    assert_near(ours.rms_norm(hidden, weight), theirs.rms_norm(hidden, weight))
    assert_near(ours.silu_mul(gate_up), theirs.silu_mul(gate_up))
    streams = hidden.clone(), hidden.clone()
    assert_near(
        ours.add_rms_norm(streams[0], change, weight),
        theirs.add_rms_norm(streams[1], change, weight),
    )
    assert torch.equal(*streams)


@needs_compiler
@dtypes
def test_rotation_and_storing_are_torchs(config: ModelConfig, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    heads = config.num_heads + 2 * config.num_kv_heads
    qkv = torch.randn(9, heads, config.head_dim).to(dtype)
    angles = torch.randn(9, config.head_dim // 2) * 100
    rotation = torch.polar(torch.ones_like(angles), angles)
    slots = torch.zeros(2, 40, config.num_kv_heads, config.head_dim, dtype=dtype)
    where = torch.tensor([3, 39, 0, 7, 8, 9, 20, 21, 5])
    results = []
    for operations in both(config, dtype):
        mine, kept = qkv.clone(), slots.clone()
        operations.rotate_and_store(mine, rotation, kept, where)
        results.append((mine, kept))
    for ours, theirs in zip(*results, strict=True):
        assert_near(ours, theirs)
    assert results[0][1].count_nonzero() == 9 * 2 * config.num_kv_heads * config.head_dim


@needs_compiler
@dtypes
@pytest.mark.parametrize("requests", [1, 2, 7, 33])
@pytest.mark.parametrize("head_dim", [8, 64, 128])
def test_attention_is_torchs(
    config: ModelConfig, dtype: torch.dtype, requests: int, head_dim: int
) -> None:
    rng = np.random.default_rng(requests)
    torch.manual_seed(requests)
    blocks, block_size = 200, 4
    lengths = rng.integers(1, 24, requests)
    tables = rng.integers(0, blocks, (requests, 6)).astype(np.int32)
    where = layout(
        (lengths - 1).astype(np.int32), np.ones(requests, np.int32), tables, block_size, CPU
    )
    slots = torch.randn(2, blocks * block_size, config.num_kv_heads, head_dim).to(dtype)
    wide = torch.randn(requests, config.num_heads + 2, head_dim).to(dtype) * 4
    queries = wide[:, : config.num_heads]  # as in a step: a part of a wider row
    results = []
    for kind in (NativeAttention, PerRequestAttention):
        backend = kind(config, block_size, dtype)
        results.append(backend.attend(backend.plan(where), queries, slots))
    assert_near(*results)


@needs_compiler
def test_a_number_that_is_none_stays_none(directories: dict[str, Path]) -> None:
    config = open_checkpoint(directories["llama"]).config
    ours, _ = both(config, torch.float32)
    hidden = torch.randn(2, config.hidden_size)
    hidden[0, 3] = float("nan")
    normed = ours.rms_norm(hidden, torch.ones(config.hidden_size))
    assert normed[0].isnan().all()
    assert normed[1].isfinite().all()


@pytest.fixture
def uncompiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("KVPROOF_CACHE", str(tmp_path))
    native_module._library.cache_clear()
    yield tmp_path
    native_module._library.cache_clear()


@needs_compiler
def test_the_library_is_compiled_once(uncompiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Optimising takes most of the time, and this test does not need it.
    monkeypatch.setattr(native_module, "_FLAGS", ("-O0", *native_module._FLAGS[1:]))
    assert native(torch.float32) is not None
    (library,) = (uncompiled / "native").iterdir()
    native_module._library.cache_clear()

    def again(*_: object) -> None:
        raise AssertionError("compiled twice")

    monkeypatch.setattr(native_module, "_compile", again)
    assert native(torch.bfloat16) is not None
    assert [library] == list((uncompiled / "native").iterdir())


@pytest.mark.long
@needs_compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86-64 processors")
@dtypes
def test_a_processor_with_narrower_vectors_computes_the_same(
    uncompiled: Path,
    directories: dict[str, Path],
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags = [f for f in native_module._FLAGS if not f.startswith(("-march", "-mprefer"))]
    monkeypatch.setattr(native_module, "_FLAGS", (*flags, "-march=x86-64-v3"))
    config = open_checkpoint(directories["qwen3"]).config
    test_the_small_operations_are_torchs(config, dtype, 5)
    test_rotation_and_storing_are_torchs(config, dtype)
    test_attention_is_torchs(config, dtype, 7, 64)
    test_attention_is_torchs(config, dtype, 7, 8)
    test_a_packed_gated_product_is_the_plain_one(directories, dtype, 33)
    assert len(list((uncompiled / "native").iterdir())) == 1


def test_a_compiler_that_fails_is_told_and_torch_does_the_work(
    uncompiled: Path,
    directories: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = uncompiled / "cc"
    broken.write_text('#!/bin/sh\ntest "$1" = --version && exit 0\necho no such flag >&2; exit 1\n')
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    config = open_checkpoint(directories["llama"]).config
    with caplog.at_level(logging.WARNING, "kvproof.model"):
        assert isinstance(operations_for(config, torch.float32, CPU), TorchOperations)
    assert "no such flag" in caplog.text
    assert isinstance(attention_for(config, 4, torch.float32, CPU), PerRequestAttention)
    assert list((uncompiled / "native").iterdir()) == []


def test_a_compiler_that_hangs_is_given_up(
    uncompiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(native_module.subprocess, "run", hangs)
    assert native(torch.float32) is None


def test_the_kernels_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPROOF_NATIVE", "0")
    assert native(torch.float32) is None


@dtypes
@pytest.mark.parametrize("rows", [1, 3, 4, 9, 32, 128, 200, 300])
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_product_is_the_plain_one(dtype: torch.dtype, rows: int, bias: bool) -> None:
    torch.manual_seed(rows)
    weight = torch.randn(96, 64).to(dtype)
    product = Linear(weight, torch.randn(96).to(dtype) if bias else None)
    x = torch.randn(rows, 64).to(dtype)
    plain = product(x)
    product.pack()
    limit = 1e-4 if dtype == torch.float32 else 0.3
    torch.testing.assert_close(product(x), plain, atol=limit, rtol=0)
    product.unpack()
    assert torch.equal(product(x), plain)


def products_in_c(dtype: torch.dtype) -> bool:
    return kernels_for(torch.zeros(96, 64, dtype=dtype)) is not None


@pytest.mark.skipif(not products_in_c(torch.float32), reason="no C kernels")
def test_a_row_of_a_packed_product_does_not_depend_on_its_batch() -> None:
    torch.manual_seed(0)
    product = Linear(torch.randn(160, 96))
    product.pack()
    x = torch.randn(61, 96)
    together = product(x)
    for count in (1, 2, 12, 13, 40):
        assert torch.equal(product(x[:count].clone()), together[:count])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 16, 17, 33, 64, 65, 300])
def test_a_packed_gated_product_is_the_plain_one(
    directories: dict[str, Path], dtype: torch.dtype, rows: int
) -> None:
    torch.manual_seed(rows)
    config = open_checkpoint(directories["llama"]).config
    weight = torch.randn(2 * 80, 96).to(dtype)
    product = GatedLinear(weight, operations_for(config, dtype, CPU))
    x = torch.randn(rows, 96).to(dtype)
    gate, up = (x.float() @ weight.float().T).chunk(2, dim=-1)
    exact = torch.nn.functional.silu(gate) * up
    limit = 1e-3 if dtype == torch.float32 else 2.0  # of values up to some hundreds
    torch.testing.assert_close(product(x).float(), exact, atol=limit, rtol=2e-2)
    product.pack()
    torch.testing.assert_close(product(x).float(), exact, atol=limit, rtol=2e-2)
    product.unpack()
    torch.testing.assert_close(product(x).float(), exact, atol=limit, rtol=2e-2)


def test_a_weight_that_does_not_fit_the_panels_is_left_to_the_libraries() -> None:
    torch.manual_seed(0)
    weight = torch.randn(40, 48)
    assert kernels_for(weight) is None
    product = Linear(weight)
    product.pack()
    x = torch.randn(9, 48)
    torch.testing.assert_close(product(x), x @ weight.T, atol=1e-4, rtol=0)


def test_tiny_models_are_seeded() -> None:
    first, second = (tiny.make_model("llama").state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
