"""The tokenizer that a GGUF file carries, rebuilt so that its ids are those of the original."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers import Tokenizer as Backend

from .chat import ChatTemplate
from .errors import ModelFileError, UnsupportedModelError
from .tokenizer import Tokenizer

_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type
_NAMES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}

# How each family cuts a text before merging; published with their tokenizers.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def from_metadata(path: Path, metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer and its chat template. Raises ModelFileError, UnsupportedModelError."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise UnsupportedModelError(
            path, "tokenizer.ggml.model", f"{kind!r}; implemented: 'gpt2' (byte-level BPE)"
        )
    tokens = _strings(path, metadata, "tokenizer.ggml.tokens")
    merges = []
    for merge in _strings(path, metadata, "tokenizer.ggml.merges"):
        left, separator, right = merge.partition(" ")
        if not separator or not right:
            raise ModelFileError(path, f"tokenizer.ggml.merges: {merge!r} is not a pair")
        merges.append((left, right))
    pre = metadata.get("tokenizer.ggml.pre", "default")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    try:
        backend = Backend(
            models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre == "llama-bpe")
        )
    except Exception as error:  # the library raises bare Exception
        raise ModelFileError(path, f"tokenizer.ggml.merges: {error}") from error
    _set_pipeline(path, backend, pre)
    _add_tokens(backend, tokens, metadata.get("tokenizer.ggml.token_type") or ())
    special = _special_tokens(path, metadata, tokens)
    if metadata.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe") and "bos_token" in special:
        begin = special["bos_token"]
        backend.post_processor = processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(
                    single=f"{begin} $A",
                    pair=f"{begin} $A {begin} $B",
                    special_tokens=[(begin, vocabulary[begin])],
                ),
            ]
        )
    source = metadata.get("tokenizer.chat_template")
    template = ChatTemplate(source, special) if isinstance(source, str) else None
    return Tokenizer(backend, special, template)


def _set_pipeline(path: Path, backend: Backend, pre: str) -> None:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if pre == "smollm":
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    elif pre == "gpt-2":
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    elif pre in ("llama-bpe", "qwen2"):
        pattern = Regex(_QWEN2 if pre == "qwen2" else _LLAMA3)
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(pattern, behavior="isolated"), byte_level]
        )
        if pre == "qwen2":
            backend.normalizer = normalizers.NFC()
    else:
        raise UnsupportedModelError(
            path, "tokenizer.ggml.pre", f"{pre!r}; implemented: smollm, gpt-2, llama-bpe, qwen2"
        )
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)


def _add_tokens(backend: Backend, tokens: list[str], kinds: Any) -> None:
    for token, kind in zip(tokens, kinds, strict=False):
        if kind == _CONTROL:
            backend.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _USER_DEFINED:
            backend.add_tokens([AddedToken(token, special=False, normalized=False)])


def _special_tokens(path: Path, metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, str]:
    special = {}
    for key, name in _NAMES.items():
        token = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token is None:
            continue
        if not isinstance(token, int) or not 0 <= token < len(tokens):
            raise ModelFileError(path, f"tokenizer.ggml.{key}_token_id is {token!r}")
        special[name] = tokens[token]
    return special


def _strings(path: Path, metadata: Mapping[str, Any], key: str) -> list[str]:
    values = metadata.get(key)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ModelFileError(path, f"{key} is not a list of strings")
    return values
