"""The decoder computes what `transformers` computes, however the work is cut into steps."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from kvproof.runtime.model import decoder as decoder_module
from kvproof.runtime.model.attention import (
    BatchedAttention,
    NativeAttention,
    PerRequestAttention,
    _sequence,
)
from kvproof.runtime.model.native import native
from kvproof.runtime.model.step import layout

from . import tiny
from .paged import Backend, Paged

Models = dict[str, transformers.PreTrainedModel]
Directories = dict[str, Path]
TOLERANCE = 1e-4

needs_compiler = pytest.mark.skipif(
    native(torch.float32) is None, reason="no C compiler, so no C kernels"
)
backends = pytest.mark.parametrize(
    "backend",
    [
        PerRequestAttention,
        BatchedAttention,
        pytest.param(NativeAttention, marks=needs_compiler),
    ],
)
cases = pytest.mark.parametrize("case", list(tiny.CASES))


def reference(model: transformers.PreTrainedModel, tokens: np.ndarray) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0]


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0)


@cases
@backends
def test_a_whole_prompt_has_the_reference_logits(
    references: Models,
    directories: Directories,
    case: str,
    backend: Backend,
) -> None:
    paged = Paged(directories[case], backend)
    prompt = tiny.tokens(37)
    paged.tables["a"] = list(range(10, 20))  # one run
    (ours,) = paged.step(("a", prompt))
    theirs = reference(references[case], prompt)
    assert theirs.std() > 0.5  # else the tolerance would say nothing
    assert_close(ours, theirs)


@cases
@backends
def test_layers_with_memory_in_common_have_the_reference_logits(
    references: Models,
    directories: Directories,
    case: str,
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoder_module, "_MANY_TOKENS", 1)
    paged = Paged(directories[case], backend)
    prompt = tiny.tokens(37)
    paged.tables["a"] = list(range(10, 20))
    ours = [*paged.step(("a", prompt[:30])), *paged.step(("a", prompt[30:]))]
    assert_close(torch.cat(ours), reference(references[case], prompt))


@cases
@backends
def test_chunks_and_single_tokens_have_the_reference_logits(
    references: Models,
    directories: Directories,
    case: str,
    backend: Backend,
) -> None:
    paged = Paged(directories[case], backend)
    prompt = tiny.tokens(40)
    paged.tables["a"] = [7, 30, 8, 9, 2, 55, 41, 40, 1, 60]  # no run
    cuts = [0, 7, 8, 9, 20, 33, 36, 37, 38, 39, 40]
    pieces = [paged.step(("a", prompt[a:b]))[0] for a, b in itertools.pairwise(cuts)]
    assert_close(torch.cat(pieces), reference(references[case], prompt))


@pytest.mark.gpu
@cases
def test_prefill_chunks_and_decoding_on_a_gpu_have_the_reference_logits(
    references: Models, directories: Directories, case: str
) -> None:
    # BatchedAttention is what `attention_for` returns for a GPU.
    paged = Paged(directories[case], BatchedAttention, device=torch.device("cuda"))
    prompt = tiny.tokens(40)
    paged.tables["a"] = [7, 30, 8, 9, 2, 55, 41, 40, 1, 60]
    cuts = [0, 20, 33, 38, 39, 40]
    pieces = [paged.step(("a", prompt[a:b]))[0] for a, b in itertools.pairwise(cuts)]
    assert_close(torch.cat(pieces), reference(references[case], prompt))


@backends
def test_requests_of_one_batch_do_not_see_each_other(
    references: Models,
    directories: Directories,
    backend: Backend,
) -> None:
    paged = Paged(directories["llama"], backend)
    texts = {name: tiny.tokens(30, seed) for seed, name in enumerate("abcd")}
    paged.tables = {
        "a": list(range(8)),
        "b": list(range(20, 12, -1)),
        "c": [8, 9, 10, 11, 40, 41, 42, 43],
        "d": list(range(50, 58)),
    }
    got: dict[str, list[torch.Tensor]] = {name: [] for name in texts}
    at = dict.fromkeys(texts, 0)
    for sizes in (
        {"a": 5, "b": 12},
        {"a": 1, "b": 1, "c": 9},
        {"d": 1, "a": 1, "c": 4, "b": 1},
        {"d": 1, "a": 1, "c": 1, "b": 1},
        {"a": 6, "d": 2},
    ):
        work = [(name, texts[name][at[name] : at[name] + size]) for name, size in sizes.items()]
        for (name, piece), logits in zip(work, paged.step(*work), strict=True):
            got[name].append(logits)
            at[name] += len(piece)
    for name, pieces in got.items():
        expected = reference(references["llama"], texts[name][: at[name]])
        assert_close(torch.cat(pieces), expected)


def test_a_table_that_is_one_run_of_blocks_is_read_in_place_and_any_other_gathered() -> None:
    tables = np.array([[3, 4, 5, -1], [3, 5, 4, -1]], np.int32)
    starts, counts = np.array([8, 8], np.int32), np.array([1, 1], np.int32)
    where = layout(starts, counts, tables, 4, torch.device("cpu"))
    slots = torch.randn(2, 40, 2, 8)
    run, other = (_sequence(where, index, 4)(slots) for index in (0, 1))
    assert run.untyped_storage().data_ptr() == slots.untyped_storage().data_ptr()
    assert torch.equal(run, slots[:, 12:21].transpose(1, 2))
    assert other.untyped_storage().data_ptr() != slots.untyped_storage().data_ptr()
    assert torch.equal(other, slots[:, [*range(12, 16), *range(20, 24), 16]].transpose(1, 2))


def test_a_wrong_rotation_is_noticed(references: Models, directories: Directories) -> None:
    paged = Paged(directories["llama"])
    paged.decoder._frequencies *= 1.001  # seeded fault
    paged.tables["a"] = list(range(10))
    prompt = tiny.tokens(37)
    (ours,) = paged.step(("a", prompt))
    error = (ours - reference(references["llama"], prompt)).abs().max()
    assert error > TOLERANCE


@pytest.mark.parametrize(
    ("dtype", "backend"),
    [
        (torch.bfloat16, PerRequestAttention),
        (torch.float16, PerRequestAttention),
        pytest.param(torch.bfloat16, NativeAttention, marks=needs_compiler),
    ],
)
def test_half_precision_is_near_the_reference(
    references: Models, directories: Directories, dtype: torch.dtype, backend: Backend
) -> None:
    for case in ("llama", "qwen3"):
        paged = Paged(directories[case], backend, dtype=dtype)
        paged.tables["a"] = list(range(10))
        prompt = tiny.tokens(33)
        (first,) = paged.step(("a", prompt[:32]))
        (last,) = paged.step(("a", prompt[32:]))
        ours = torch.cat([first, last])
        theirs = reference(references[case], prompt)
        assert torch.isfinite(ours).all()
        assert torch.nn.functional.cosine_similarity(ours, theirs).min() > 0.99
