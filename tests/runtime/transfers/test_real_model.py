"""A real decoder and a real cache: what was evicted and loaded back gives the same tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from kvproof.runtime.api import EngineConfig, RequestOutput
from kvproof.runtime.engine import Engine
from kvproof.runtime.model.load import LoadedModel, load_model
from kvproof.runtime.model.runner import TorchRunner
from kvproof.runtime.protocols import Connector, KVStorage
from kvproof.runtime.sampling_params import SamplingParams
from kvproof.runtime.transfers import FaultyConnector, HostTier, delayed_loads

from ..model import tiny

SIZE = 4
COUNT = 12
Tier = Callable[[KVStorage], Connector]


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    directory: Path = tiny.save(tiny.make_model("llama"), tmp_path_factory.mktemp("tiny"))
    return load_model(directory, device=request.param)


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(5)
    heads = [rng.integers(3, tiny.VOCABULARY, 24).tolist() for _ in range(4)]
    return [[*heads[number % 4], 10 + number] for number in range(12)]


@pytest.fixture
def engines(model: LoadedModel) -> Iterator[Callable[[int, Tier | None], Engine]]:
    made: list[Engine] = []

    def make(blocks: int, tier: Tier | None) -> Engine:
        runner = TorchRunner(model, blocks, SIZE)
        config = EngineConfig(
            num_blocks=blocks, block_size=SIZE, max_model_len=128, max_num_seqs=2, check=True
        )
        made.append(Engine(config, runner, tier(runner.kv) if tier else None))
        return made[-1]

    yield make
    for engine in made:
        engine.shutdown(drain=False)


def generate(engine: Engine, number: int, prompt: list[int]) -> list[int]:
    tokens: list[int] = []
    done = threading.Event()

    def hear(output: RequestOutput) -> None:
        tokens.extend(output.tokens)
        if output.finished:
            done.set()

    params = SamplingParams(max_tokens=COUNT, temperature=0.0, ignore_eos=True)
    engine.add_request(f"r{number}", prompt, params, on_output=hear)
    assert done.wait(60)
    return tokens


@pytest.mark.parametrize("delay", [0.0, 0.01])
def test_loaded_blocks_give_the_tokens_of_an_undisturbed_run(
    engines: Callable[[int, Tier | None], Engine], delay: float
) -> None:
    def tier(kv: KVStorage) -> Connector:
        host = HostTier(kv, 200 * kv.bytes_per_block)
        return FaultyConnector(host, delayed_loads(delay), kv=kv)

    undisturbed = engines(64, None)
    right = [
        generate(undisturbed, number, prompt) if undisturbed.reset_prefix_cache(True) else []
        for number, prompt in enumerate(prompts())
    ]
    small = engines(12, tier)  # one request at a time: everything else is evicted
    told = [generate(small, number, prompt) for number, prompt in enumerate(prompts())]
    assert told == right
    stats = small.stats()
    size = stats.tier_loaded_bytes // small.core.runner.kv.bytes_per_block
    assert size >= 6 * 4, f"only {size} blocks were loaded"
