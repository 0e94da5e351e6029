"""A server process: uvicorn around the app, connections that cannot be held open for ever, SIGTERM.

On SIGTERM or SIGINT new work is answered with 503 while what runs ends (or is aborted, by
option); a second signal aborts at once. Then the sockets close, and the engine is down.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Generator

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..model.tokenizer import Tokenizer
from .app import create_app
from .contract import ServedEngine
from .front import Front
from .settings import ServerConfig


def serve(
    engine: ServedEngine,
    tokenizer: Tokenizer,
    config: ServerConfig,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until a signal comes; the engine is shut down when this returns.

    `ready` is called with the server's URL once it answers. Raises OSError when the address is
    not to be had.
    """
    listening = listen(config.host, config.port)
    host, port = listening.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    app = create_app(engine, tokenizer, config)
    asyncio.run(_serve(app, engine, config, listening, lambda: ready and ready(url)))


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises OSError."""
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
        http=_protocol(config),
        ws="websockets-sansio",
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
    ready: Callable[[], object],
) -> None:
    server = _Server(uvicorn_config(app, config), ready)
    loop = asyncio.get_running_loop()
    stopping: list[asyncio.Task[None]] = []

    def stop() -> None:
        # Whoever asks twice does not want to wait.
        drain = config.drain and not stopping
        stopping.append(loop.create_task(_stop(app.state.front, engine, server, config, drain)))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await server.serve([listening])
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        if stopping:
            await asyncio.wait(stopping)
        else:
            await asyncio.to_thread(engine.shutdown, False, config.drain_timeout)


async def _stop(
    front: Front, engine: ServedEngine, server: uvicorn.Server, config: ServerConfig, drain: bool
) -> None:
    front.closing = True
    await asyncio.to_thread(engine.shutdown, drain, config.drain_timeout if drain else 0.0)
    server.should_exit = True


class _Server(uvicorn.Server):
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


def _protocol(config: ServerConfig) -> type[H11Protocol]:
    """HTTP/1.1 whose client must send its headers, and take what it is sent, within a time.

    uvicorn has a limit on idle connections only: one that sends half a header, or reads nothing
    of its answer, would be kept for ever.
    """

    class Protocol(H11Protocol):
        _headers_due: asyncio.TimerHandle | None = None
        _reading_due: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._expect_headers()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE or not self.conn.trailing_data[0]:
                self._headers_came()
            else:
                self._expect_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._headers_came()
            _stop_timer(self._reading_due)
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            # abort, not close: close would wait for what the client does not take.
            self._reading_due = self.loop.call_later(config.write_timeout, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            _stop_timer(self._reading_due)

        def _headers_came(self) -> None:
            _stop_timer(self._headers_due)
            self._headers_due = None

        def _expect_headers(self) -> None:
            if self._headers_due is None:
                self._headers_due = self.loop.call_later(
                    config.header_timeout, self.transport.abort
                )

    return Protocol


def _stop_timer(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
