"""Engines of a tiny random model, and the real model, loaded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from kvproof.runtime.engine import Engine
from kvproof.runtime.llm import LLM
from kvproof.runtime.model import zoo
from kvproof.runtime.model.load import LoadedModel, load_model

from ..model import tiny

MakeEngine = Callable[..., LLM]
#: Small blocks, so that short prompts fill some; every count is recomputed after each step.
TINY = {"block_size": 4, "device_blocks": 64, "max_model_len": 128, "max_num_seqs": 8}


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tiny.make_model("llama"), tmp_path_factory.mktemp("llm") / "tiny")


@pytest.fixture(scope="session")
def tiny_model(tiny_directory: Path) -> LoadedModel:
    return load_model(tiny_directory)


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    """SmolLM2-135M in float32. A runner leaves it as it was, so all tests share it."""
    return load_model(zoo.fetch("smollm2-135m"), dtype="float32")


@pytest.fixture
def make_engine(tiny_directory: Path) -> Iterator[MakeEngine]:
    """`make_engine(**options)`: an engine of the tiny model; it is shut down after the test."""
    torch.set_num_threads(1)
    made: list[LLM] = []

    def make(**options: object) -> LLM:
        engine = Engine.from_pretrained(tiny_directory, **(TINY | {"check": True} | options))
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.shutdown(drain=False)


@pytest.fixture
def engine(make_engine: MakeEngine) -> LLM:
    return make_engine()
