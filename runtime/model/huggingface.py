"""A Hugging Face directory: config.json, safetensors (one file or shards), checked as a whole."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from .checkpoint import expected_shapes
from .config import ModelConfig, from_huggingface
from .errors import ModelFileError
from .json_file import read_json

_FLOATS = {"F32", "BF16", "F16"}


def read_config(directory: Path) -> ModelConfig:
    """The model's config. Raises ModelFileError or UnsupportedModelError."""
    values = read_json(directory / "config.json")
    generation = read_json(directory / "generation_config.json", required=False)
    return from_huggingface(directory / "config.json", values, generation)


class HuggingFaceCheckpoint:
    """The safetensors of a directory. Opening it checks names, shapes and types of all tensors.

    Raises ModelFileError or UnsupportedModelError.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory
        self.config = read_config(directory)
        self._stack = ExitStack()
        self._files: dict[Path, Any] = {}
        try:
            self._where = self._locate()
            for name, shape in expected_shapes(self.config).items():
                self._check(name, shape)
        except BaseException:
            self.close()
            raise

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, in the file's own type."""
        path = self._where[name]
        try:
            tensor: torch.Tensor = self._files[path].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelFileError(path, f"{name}: {error}") from error
        return tensor

    def close(self) -> None:
        """Close the files."""
        self._files.clear()
        self._stack.close()

    def _locate(self) -> dict[str, Path]:
        index = self.path / "model.safetensors.index.json"
        if index.is_file():
            weight_map = read_json(index).get("weight_map")
            if not isinstance(weight_map, dict):
                raise ModelFileError(index, "weight_map is not an object")
            for file in weight_map.values():
                if not isinstance(file, str) or Path(file).name != file:
                    raise ModelFileError(index, f"{file!r} is not the name of a file beside it")
            where = {name: self.path / file for name, file in weight_map.items()}
            for path in sorted(set(where.values())):
                self._open(path)
            return where
        single = self.path / "model.safetensors"
        return dict.fromkeys(self._open(single), single)

    def _open(self, path: Path) -> list[str]:
        if not path.is_file():
            raise ModelFileError(path, "no such file")
        try:
            file = self._stack.enter_context(safe_open(path, framework="pt"))
            names: list[str] = list(file.keys())
        except (SafetensorError, OSError) as error:
            raise ModelFileError(path, f"not a complete safetensors file: {error}") from error
        self._files[path] = file
        return names

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        path = self._where.get(name)
        if path is None:
            raise ModelFileError(self.path, f"no tensor {name}")
        try:
            header = self._files[path].get_slice(name)
        except SafetensorError as error:
            raise ModelFileError(path, f"no tensor {name}") from error
        if tuple(header.get_shape()) != shape:
            raise ModelFileError(
                path, f"{name} has shape {tuple(header.get_shape())}; config.json says {shape}"
            )
        if header.get_dtype() not in _FLOATS:
            raise ModelFileError(path, f"{name} has type {header.get_dtype()}, not a float")
