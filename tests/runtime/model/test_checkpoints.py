"""Models on disk: every format gives the same weights, and what is damaged is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from kvproof.runtime.model.checkpoint import expected_shapes
from kvproof.runtime.model.errors import ModelError, ModelFileError, UnsupportedModelError
from kvproof.runtime.model.gguf_file import GGUFCheckpoint
from kvproof.runtime.model.gguf_reader import GGUFFile
from kvproof.runtime.model.huggingface import HuggingFaceCheckpoint
from kvproof.runtime.model.load import load_model, open_checkpoint
from safetensors.torch import load_file, save_file

from . import gguf_maker, tiny
from .paged import Paged

Models = dict[str, transformers.PreTrainedModel]
Directories = dict[str, Path]


@pytest.mark.parametrize("case", ["llama", "llama-untied", "llama-biases", "qwen2", "qwen3"])
def test_a_gguf_file_holds_the_tensors_of_the_directory(
    references: Models, directories: Directories, tmp_path: Path, case: str
) -> None:
    path = gguf_maker.write(references[case], tmp_path / "model.gguf")
    ours, theirs = GGUFCheckpoint(path), HuggingFaceCheckpoint(directories[case])
    for name in expected_shapes(theirs.config):
        assert torch.equal(ours.tensor(name), theirs.tensor(name)), name


def test_rows_that_stay_permuted_are_noticed(
    references: Models,
    directories: Directories,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = gguf_maker.write(references["llama"], tmp_path / "model.gguf")
    monkeypatch.setattr("kvproof.runtime.model.gguf_file.unpermuted", lambda rows, heads: rows)
    name = "model.layers.0.self_attn.q_proj.weight"
    right = HuggingFaceCheckpoint(directories["llama"]).tensor(name)
    assert not torch.equal(GGUFCheckpoint(path).tensor(name), right)


@pytest.mark.parametrize("kind", ["Q8_0", "F16", "BF16"])
def test_a_quantised_gguf_file_is_near_its_original(
    references: Models, directories: Directories, tmp_path: Path, kind: str
) -> None:
    case = "llama" if kind != "Q8_0" else "wide"
    model = tiny.make_wide_model() if case == "wide" else references[case]
    path = gguf_maker.write(model, tmp_path / "model.gguf", gguf.GGMLQuantizationType[kind])
    prompt = tiny.tokens(20)
    paged = Paged(path)
    paged.tables["a"] = list(range(5))
    (ours,) = paged.step(("a", prompt))
    with torch.inference_mode():
        theirs = model(torch.from_numpy(prompt).long()[None]).logits[0]
    assert torch.nn.functional.cosine_similarity(ours, theirs).min() > 0.99


def can_be_dequantised(kind: gguf.GGMLQuantizationType) -> bool:
    """Whether the `gguf` package dequantises the type."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    try:
        return gguf.dequantize(np.zeros((1, size), np.uint8), kind).shape == (1, block)
    except NotImplementedError:
        return False


@pytest.mark.parametrize("kind", gguf.GGMLQuantizationType, ids=lambda kind: kind.name)
def test_a_tensor_of_each_type_that_gguf_dequantises_is_read_and_any_other_refused_by_name(
    tmp_path: Path, kind: gguf.GGMLQuantizationType
) -> None:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    # Small bytes, so that no scale is infinite or NaN, whatever the type.
    raw = np.random.default_rng(1).integers(0, 60, (6, 3 * size), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_tensor("before", np.ones(5, np.float32))
    writer.add_tensor("one", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile(tmp_path / "one.gguf")
    if can_be_dequantised(kind):
        values = file.values("one")
        assert values.shape == (6, 3 * block)
        assert values.any()
        np.testing.assert_array_equal(values, gguf.dequantize(raw, kind))
    else:
        with pytest.raises(ModelFileError, match=f"one has type {kind.name}"):
            file.values("one")
    file.close()


def test_the_common_gguf_types_are_among_those_that_gguf_dequantises() -> None:
    common = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
    assert all(can_be_dequantised(gguf.GGMLQuantizationType[name]) for name in common)


def test_rope_factors_of_a_gguf_file_scale_like_the_config(
    references: Models, directories: Directories, tmp_path: Path
) -> None:
    model = references["llama3-rope"]
    plain = 1.0 / (10000.0 ** (torch.arange(0, 8, 2) / 8))
    factors = (plain / model.model.rotary_emb.inv_freq).numpy()
    path = gguf_maker.write(model, tmp_path / "model.gguf", rope_factors=factors)
    prompt = tiny.tokens(40)
    logits = []
    for source in (path, directories["llama3-rope"]):
        paged = Paged(source)
        paged.tables["a"] = list(range(10))
        logits += paged.step(("a", prompt))
    torch.testing.assert_close(logits[0], logits[1], atol=1e-5, rtol=0)


def test_shards_are_one_model(references: Models, tmp_path: Path) -> None:
    sharded = tiny.save(references["llama"], tmp_path / "model", max_shard_size="40KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    whole = HuggingFaceCheckpoint(sharded)
    state = references["llama"].state_dict()
    for name in expected_shapes(whole.config):
        assert torch.equal(whole.tensor(name), state[name])


def test_a_missing_shard_is_named(references: Models, tmp_path: Path) -> None:
    sharded = tiny.save(references["llama"], tmp_path / "model", max_shard_size="40KB")
    victim = sorted(sharded.glob("*.safetensors"))[1]
    victim.unlink()
    with pytest.raises(ModelFileError, match=victim.name):
        HuggingFaceCheckpoint(sharded)


def test_an_index_may_not_point_outside_its_directory(references: Models, tmp_path: Path) -> None:
    sharded = tiny.save(references["llama"], tmp_path / "model", max_shard_size="40KB")
    index = sharded / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    values["weight_map"] = dict.fromkeys(values["weight_map"], "../elsewhere.safetensors")
    index.write_text(json.dumps(values))
    with pytest.raises(ModelFileError, match="elsewhere"):
        HuggingFaceCheckpoint(sharded)


@pytest.fixture
def directory(directories: Directories, tmp_path: Path) -> Path:
    return Path(shutil.copytree(directories["llama"], tmp_path / "model"))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(directory: Path, name: str) -> None:
    (directory / name).unlink()
    with pytest.raises(ModelFileError, match=name):
        load_model(directory)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_truncated_file_is_named(directory: Path, name: str) -> None:
    path = directory / name
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ModelFileError, match=name):
        load_model(directory)


def test_a_tensor_of_the_wrong_shape_is_named(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name] = tensors[name][:-1].clone()
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(ModelFileError, match=name):
        load_model(directory)


def test_a_missing_tensor_is_named(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.layers.2.input_layernorm.weight"]
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"model\.layers\.2\.input_layernorm\.weight"):
        load_model(directory)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("architectures", ["MistralForCausalLM"]),
        ("hidden_act", "gelu"),
        ("mlp_bias", True),
        ("sliding_window", 4096),
        ("quantization_config", {"bits": 4}),
        ("partial_rotary_factor", 0.5),
        ("layer_types", ["sliding_attention"]),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1.0}),
        ("dtype", "float8_e4m3fn"),
    ],
)
def test_what_is_not_implemented_is_refused_by_its_field(
    directory: Path, field: str, value: Any
) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(UnsupportedModelError, match=field) as caught:
        load_model(directory)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", "48"),
        ("num_hidden_layers", 0),
        ("num_key_value_heads", 5),
        ("rms_norm_eps", -1.0),
        ("eos_token_id", 5000),
        ("vocab_size", True),
        ("head_dim", 7),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(directory: Path, field: str, value: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(ModelFileError, match=r"config\.json"):
        load_model(directory)


def test_a_gguf_file_cut_anywhere_is_refused(references: Models, tmp_path: Path) -> None:
    whole = gguf_maker.write(references["llama"], tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for size in [0, 3, 4, 8, 20, 100, *range(200, len(whole) - 40, len(whole) // 60)]:
        path.write_bytes(whole[:size])
        with pytest.raises(ModelFileError, match=r"cut\.gguf"):
            open_checkpoint(path)


def test_scribbles_in_a_gguf_header_never_raise_anything_untyped(
    references: Models, tmp_path: Path
) -> None:
    whole = gguf_maker.write(references["llama"], tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "scribbled.gguf"
    refused = 0
    for at in range(0, 1200, 7):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        path.write_bytes(damaged)
        try:
            open_checkpoint(path).close()
        except ModelError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize(
    ("key", "value"),
    [("general.architecture", "gemma"), ("tokenizer.ggml.pre", "tekken")],
)
def test_an_unknown_gguf_model_is_refused_by_its_key(
    references: Models,
    tmp_path: Path,
    key: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = gguf_maker.write(references["llama"], tmp_path / "model.gguf")
    whole = GGUFCheckpoint.__init__

    def changed(self: GGUFCheckpoint, where: Path) -> None:
        whole(self, where)
        self.metadata[key] = value

    if key == "general.architecture":
        raw = path.read_bytes().replace(b"llama", b"gemma", 1)
        path.write_bytes(raw)
    else:
        monkeypatch.setattr(GGUFCheckpoint, "__init__", changed)
    with pytest.raises(UnsupportedModelError, match=key):
        load_model(path)


def test_a_tokenizer_larger_than_the_model_is_refused(directory: Path) -> None:
    path = directory / "tokenizer.json"
    values = json.loads(path.read_text())
    last = max(values["model"]["vocab"].values())
    values["model"]["vocab"] |= {f"word{n}": last + n for n in range(1, 100)}
    path.write_text(json.dumps(values))
    with pytest.raises(ModelError, match="tokenizer"):
        load_model(directory)


def test_an_unknown_dtype_or_device_is_refused(directory: Path) -> None:
    bad: list[Callable[[], object]] = [
        lambda: load_model(directory, dtype="int4"),
        lambda: load_model(directory, device="tpu"),
    ]
    for load in bad:
        with pytest.raises(ModelError, match=r"int4|tpu"):
            load()
