"""The scenario against the real engine on a fake device, served in this process."""

from collections.abc import Iterator
from typing import Any

import pytest
from kvproof.specs.demo import scenario
from kvproof.specs.demo.client import Api
from kvproof.specs.demo.trials import Bench

from ..runtime.server.fake_device import fake_engine
from ..runtime.server.serving import Served, Servers
from ..runtime.server.texts import byte_tokenizer


@pytest.fixture(scope="package")
def served() -> Iterator[Served]:
    """As `kvproof demo` starts its server, but for the device, which is fake and fast."""
    tokenizer = byte_tokenizer()
    engine = fake_engine(tokenizer, token_seconds=0.003, load_delay=0.15, tier_bytes=1 << 22)
    servers = Servers()
    yield servers.around(engine, tokenizer, dev=True, max_model_len=2048)
    servers.end()


@pytest.fixture(scope="package")
def bench(served: Served) -> Any:
    """Its prompts, run undisturbed."""
    made = scenario.prepare(Api(served.url))
    list(scenario.warm_up(made))
    return made


@pytest.fixture
def lying(bench: Bench, served: Served) -> Any:
    """`lying(Lies)` gives the same bench over a client that lies as its methods say."""

    def make(kind: type[Api]) -> Bench:
        honest, bench.api = bench.api, kind(served.url)
        restore.append(honest)
        return bench

    restore: list[Api] = []
    yield make
    if restore:
        bench.api = restore[0]
        bench.idle()
