"""A model by name or path, ready to run: its weights on a device and its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from . import gguf_tokenizer, tokenizer
from .checkpoint import Checkpoint
from .config import ModelConfig
from .errors import ModelError
from .gguf_file import GGUFCheckpoint
from .huggingface import HuggingFaceCheckpoint
from .tokenizer import Tokenizer
from .weights import Weights, dtype_named
from .zoo import resolve


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model whose files have been checked and whose weights are resident."""

    name: str
    path: Path
    weights: Weights
    tokenizer: Tokenizer

    @property
    def config(self) -> ModelConfig:
        """What the decoder is made of."""
        return self.weights.config


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at a path: a directory is Hugging Face's, a file is GGUF.

    Raises ModelFileError or UnsupportedModelError.
    """
    return HuggingFaceCheckpoint(path) if path.is_dir() else GGUFCheckpoint(path)


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of the model at a path. Raises ModelError."""
    if path.is_dir():
        return tokenizer.from_directory(path)
    checkpoint = GGUFCheckpoint(path)
    try:
        return gguf_tokenizer.from_metadata(path, checkpoint.metadata)
    finally:
        checkpoint.close()


def load_model(model: str | Path, dtype: str = "auto", device: str = "auto") -> LoadedModel:
    """Load a model by a known name, a directory or a GGUF file.

    dtype: "auto" is the checkpoint's own (float32 for a quantised GGUF). device: "auto" is CUDA
    where there is one. Everything is checked before it returns. Raises ModelError, MemoryError.
    """
    path = resolve(model)
    where = device_named(device)
    text = load_tokenizer(path)
    own = dtype
    if dtype == "auto":
        checkpoint = open_checkpoint(path)
        own = checkpoint.config.dtype
        checkpoint.close()
    weights = Weights(lambda: open_checkpoint(path), dtype_named(own), where)
    if text.vocab_size > weights.config.vocab_size:
        raise ModelError(
            f"{path}: the tokenizer has {text.vocab_size} tokens, "
            f"the model only {weights.config.vocab_size}"
        )
    return LoadedModel(str(model), path, weights, text)


def device_named(name: str) -> torch.device:
    """The torch device of that name. Raises ModelError if it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"device {name!r}: {error}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {name!r}: torch sees no CUDA device")
    if device.type not in ("cpu", "cuda"):
        raise ModelError(f"device {name!r}; implemented: cpu, cuda")
    return device
