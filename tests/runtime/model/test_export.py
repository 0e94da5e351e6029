"""An exported directory is a model that `transformers` reads as we read the original."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from kvproof.runtime.model.errors import ModelFileError, UnsupportedModelError
from kvproof.runtime.model.export import export
from kvproof.runtime.model.load import load_model, load_tokenizer
from kvproof.specs import cli
from kvproof.specs.cli import exits

from . import gguf_maker, tiny

Models = dict[str, transformers.PreTrainedModel]


@pytest.mark.parametrize("case", ["llama", "llama-untied", "llama-biases", "qwen2", "qwen3"])
def test_transformers_computes_the_same_from_the_export_of_a_gguf_file(
    references: Models, tmp_path: Path, case: str
) -> None:
    path = gguf_maker.write(references[case], tmp_path / "model.gguf")
    export(path, tmp_path / "out")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    prompt = torch.from_numpy(tiny.tokens(20)).long()[None]
    with torch.inference_mode():
        ours, theirs = again(prompt).logits, references[case](prompt).logits
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_an_export_is_the_same_model_and_tokenizer(references: Models, tmp_path: Path) -> None:
    path = gguf_maker.write(references["llama"], tmp_path / "model.gguf")
    export(path, tmp_path / "out")
    ours, theirs = load_model(tmp_path / "out"), load_model(path)
    assert ours.config == theirs.config
    assert ours.weights.digest == theirs.weights.digest
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    messages = [{"role": "user", "content": "hello"}]
    for text in ("hello world", "é 🎉", "<s>he</s>"):
        expected = theirs.tokenizer.encode(text).tolist()
        assert ours.tokenizer.encode(text).tolist() == expected
        assert reference.encode(text) == expected
    rendered = reference.apply_chat_template(messages, tokenize=False)
    assert rendered == theirs.tokenizer.render_chat(messages)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_command_exports_a_directory(
    directories: dict[str, Path],
    tmp_path: Path,
    dtype: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    arguments = ["model", "export", str(out), "--model", str(directories["llama3-rope"])]
    assert cli.main([*arguments, "--dtype", dtype, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(out)}
    model = load_model(out)
    assert model.config.dtype == dtype
    assert model.config.rope_scaling is not None
    assert cli.main([*arguments, "--json"]) == exits.USAGE
    assert "not an empty directory" in capsys.readouterr().err


def test_an_export_that_fails_leaves_nothing(
    directories: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("kvproof.runtime.model.export.save_file", full)
    with pytest.raises(OSError, match="no space"):
        export(directories["llama"], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_rope_factors_that_no_config_can_say_are_refused(
    references: Models, tmp_path: Path
) -> None:
    factors = torch.tensor([1.0, 1.5, 2.5, 3.0]).numpy()
    path = gguf_maker.write(references["llama"], tmp_path / "model.gguf", rope_factors=factors)
    with pytest.raises(UnsupportedModelError, match="rope_freqs"):
        export(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_tokenizer_of_a_gguf_file_is_that_of_the_directory(
    references: Models, directories: dict[str, Path], tmp_path: Path
) -> None:
    path = gguf_maker.write(references["llama"], tmp_path / "model.gguf")
    ours, theirs = load_tokenizer(path), load_tokenizer(directories["llama"])
    for text in ("hello world", "  é🎉\n\nwell", "<s>he</s> hell"):
        assert ours.encode(text).tolist() == theirs.encode(text).tolist()
    assert ours.special_ids == theirs.special_ids


def test_a_gguf_file_without_a_vocabulary_is_refused(references: Models, tmp_path: Path) -> None:
    path = gguf_maker.write(references["llama"], tmp_path / "model.gguf")
    raw = path.read_bytes().replace(b"tokenizer.ggml.tokens", b"tokenizer.ggml.tokenz")
    path.write_bytes(raw)
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.tokens"):
        load_tokenizer(path)
