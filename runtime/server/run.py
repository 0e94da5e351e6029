"""A server process: uvicorn around the app, from the first answer to SIGTERM.

On SIGTERM or SIGINT new work is answered with 503 while what runs ends (or is aborted, by
option); a second signal aborts at once. Then the sockets close, and the engine is down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Generator
from functools import partial

import uvicorn
from fastapi import FastAPI

from ..api import EngineFailedError
from ..model.tokenizer import Tokenizer
from .app import create_app
from .connections import http_protocol, websocket_protocol
from .contract import ServedEngine
from .front import Front
from .settings import ServerConfig

_log = logging.getLogger(__name__)


def serve(
    engine: ServedEngine,
    tokenizer: Tokenizer,
    config: ServerConfig,
    listening: socket.socket,
    tell: Callable[[str], None],
) -> None:
    """Serve on a socket of `listen` until a signal comes; then the engine is shut down.

    The socket is bound before the engine is made, so that an address in use is noticed before a
    model is loaded. `tell` is given lines for people: the URL once the server answers and, at a
    signal, what the server still waits for.
    """
    host, port = listening.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    app = create_app(engine, tokenizer, config)
    tell_ready = partial(tell, f"serving {config.model_name} on {url} ")
    asyncio.run(_serve(app, engine, config, listening, tell, tell_ready))


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to the address; port 0 takes a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except BaseException:
        listening.close()
        raise
    return listening


def uvicorn_config(app: FastAPI, config: ServerConfig) -> uvicorn.Config:
    """uvicorn's settings for this server."""
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # a query may carry what does not belong in a log
        http=http_protocol(config.header_timeout, config.write_timeout),
        ws=websocket_protocol(config.write_timeout),
        ws_max_size=config.max_body,
        ws_ping_interval=20.0,
        ws_ping_timeout=20.0,
        limit_concurrency=config.max_connections,
        timeout_graceful_shutdown=5,
        lifespan="on",
        server_header=False,
    )


async def _serve(
    app: FastAPI,
    engine: ServedEngine,
    config: ServerConfig,
    listening: socket.socket,
    tell: Callable[[str], None],
    tell_ready: Callable[[], None],
) -> None:
    server = ReadyServer(uvicorn_config(app, config), tell_ready)
    loop = asyncio.get_running_loop()
    stopping: list[asyncio.Task[None]] = []

    def stop() -> None:
        # Whoever asks twice does not want to wait.
        drain = config.drain and not stopping
        live = len(app.state.front.live)
        if drain and live:
            tell(
                f"stopping once the live requests ({live}) have ended, "
                f"after {config.drain_timeout:g} s at the latest; a second signal aborts them"
            )
        else:
            tell("stopping")
        stopping.append(loop.create_task(_stop(app.state.front, engine, server, config, drain)))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await server.serve([listening])
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        if stopping:
            await asyncio.gather(*stopping)
        else:
            await _shut_down(engine, False, config.drain_timeout)


async def _stop(
    front: Front, engine: ServedEngine, server: uvicorn.Server, config: ServerConfig, drain: bool
) -> None:
    front.closing = True
    try:
        await _shut_down(engine, drain, config.drain_timeout if drain else 0.0)
    finally:
        server.should_exit = True


async def _shut_down(engine: ServedEngine, drain: bool, timeout: float) -> None:
    """Shut the engine down. One whose device is given up must not keep the server."""
    try:
        await asyncio.to_thread(engine.shutdown, drain, timeout)
    except EngineFailedError as error:
        _log.error("the engine was given up: %s", error)


class ReadyServer(uvicorn.Server):
    """uvicorn's server without its own signal handlers; it says when it answers."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()
