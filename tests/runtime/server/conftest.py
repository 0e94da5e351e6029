"""A served stub engine, over real sockets, in this process."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from kvproof.runtime.server.app import create_app
from kvproof.runtime.server.run import _Server, listen, uvicorn_config
from kvproof.runtime.server.settings import ServerConfig

from .stub import StubEngine
from .texts import byte_tokenizer


@dataclass
class Served:
    """A server in a thread, its engine, and where it listens."""

    url: str
    engine: StubEngine
    app: Any
    tokenizer: Any

    @property
    def socket_url(self) -> str:
        return self.url.replace("http", "ws", 1)

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def client(self, key: str | None = None, **options: Any) -> httpx.Client:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, **options)


class Servers:
    """Starts servers and ends them."""

    def __init__(self) -> None:
        self._running: list[Any] = []

    def start(self, tick: float = 0.0, **options: Any) -> Served:
        """A server with these options of ServerConfig; `tick` seconds a token."""
        tokenizer = byte_tokenizer()
        engine = StubEngine(tokenizer, tick)
        config = ServerConfig(**{"model_name": "stub", "max_model_len": 512, "port": 0} | options)
        listening = listen("127.0.0.1", 0)
        app = create_app(engine, tokenizer, config)
        ready = threading.Event()
        server = _Server(uvicorn_config(app, config), ready.set)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
        thread.start()
        self._running.append((server, thread, engine))
        assert ready.wait(10)
        port = listening.getsockname()[1]
        return Served(f"http://127.0.0.1:{port}", engine, app, tokenizer)

    def end(self) -> None:
        """End them all; no thread stays."""
        for server, _, _ in self._running:
            server.should_exit = True
        for _, thread, engine in self._running:
            thread.join(20)
            engine.shutdown(False, 5)
            assert not thread.is_alive()


@pytest.fixture
def serve() -> Iterator[Any]:
    """`serve(**options of ServerConfig, tick=seconds a token)` gives a `Served` of its own."""
    servers = Servers()
    yield servers.start
    servers.end()


@pytest.fixture(scope="module")
def _shared() -> Iterator[Served]:
    servers = Servers()
    yield servers.start(dev=True)
    servers.end()


@pytest.fixture
def served(_shared: Served) -> Served:
    """A server for development (no keys, admin routes open) that tests of a module share."""
    _shared.engine.start_afresh()
    return _shared
