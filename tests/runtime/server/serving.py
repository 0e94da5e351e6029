"""Servers in this process, over real sockets, around an engine that the test brings."""

import asyncio
import socket
import ssl
import threading
from dataclasses import dataclass
from typing import Any

import httpx
from kvproof.runtime.server.app import create_app
from kvproof.runtime.server.run import ReadyServer, listen, uvicorn_config
from kvproof.runtime.server.settings import ServerConfig

from .stub import StubEngine
from .texts import byte_tokenizer

#: One for all clients: each would read the system's certificates, and none is needed.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass
class Served:
    """A server in a thread, its engine, and where it listens."""

    url: str
    engine: Any
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
        return httpx.Client(
            base_url=self.url, headers=headers, timeout=30, verify=_NO_TLS, **options
        )


class Servers:
    """Starts servers and ends them."""

    def __init__(self, send_buffer: int | None = None) -> None:
        self.send_buffer = send_buffer  # bytes that the kernel takes for a client
        self._running: list[Any] = []

    def start(self, tick: float = 0.0, **options: Any) -> Served:
        """A stub behind a server with these options of ServerConfig; `tick` seconds a token."""
        tokenizer = byte_tokenizer()
        return self.around(StubEngine(tokenizer, tick), tokenizer, **options)

    def around(self, engine: Any, tokenizer: Any, **options: Any) -> Served:
        """A server around this engine, which ends with it."""
        config = ServerConfig(**{"model_name": "stub", "max_model_len": 512, "port": 0} | options)
        listening = listen("127.0.0.1", 0)
        if self.send_buffer is not None:  # accepted sockets inherit it
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.send_buffer)
        app = create_app(engine, tokenizer, config)
        ready = threading.Event()
        server = ReadyServer(uvicorn_config(app, config), ready.set)
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
