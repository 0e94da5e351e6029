"""JSON files of a model. Apart from the checkpoints, so that a tokenizer loads without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import ModelFileError


def read_json(path: Path, required: bool = True) -> dict[str, Any]:
    """A JSON object; {} if the file is absent and not required. Raises ModelFileError."""
    if not path.is_file():
        if required:
            raise ModelFileError(path, "no such file")
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFileError(path, f"not readable as JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelFileError(path, "not a JSON object")
    return values
