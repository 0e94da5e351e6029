"""Models that several test modules share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from . import tiny


@pytest.fixture(scope="session")
def references() -> dict[str, transformers.PreTrainedModel]:
    """The reference model of each case."""
    return {case: tiny.make_model(case) for case in tiny.CASES}


@pytest.fixture(scope="session")
def directories(
    references: dict[str, transformers.PreTrainedModel], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Each case as a Hugging Face directory."""
    root = tmp_path_factory.mktemp("models")
    return {case: tiny.save(model, root / case) for case, model in references.items()}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tiny models gain nothing from a second thread, and lose when its core is busy."""
    torch.set_num_threads(1)
