"""Connections that no client can hold open for ever: it must send, and read, within a time.

uvicorn limits idle connections only: a client that sends half a header, or never reads, would keep
its connection. Such a one is aborted, not closed: closing waits until the client has read.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class _Timer:
    """One abort that may become due."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None

    def start(self, transport: asyncio.Transport, seconds: float) -> None:
        """Abort after that time, unless it runs already or is stopped."""
        if self._handle is None:
            loop = asyncio.get_running_loop()
            self._handle = loop.call_later(seconds, transport.abort)

    def stop(self) -> None:
        """It came in time."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


def http_protocol(header_timeout: float, write_timeout: float) -> type[H11Protocol]:
    """HTTP/1.1 with a time for headers and a time for a client that does not read, in seconds."""

    class Protocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self._headers, self._reading = _Timer(), _Timer()
            super().connection_made(transport)
            self._headers.start(transport, header_timeout)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
                self._headers.start(self.transport, header_timeout)
            else:
                self._headers.stop()

        def connection_lost(self, exc: Exception | None) -> None:
            self._headers.stop()
            self._reading.stop()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._reading.start(self.transport, write_timeout)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._reading.stop()

    return Protocol


def websocket_protocol(write_timeout: float) -> type[WebSocketsSansIOProtocol]:
    """A WebSocket with a time for a client that does not read, in seconds."""

    class Protocol(WebSocketsSansIOProtocol):
        _reading: _Timer | None = None

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._reading = self._reading or _Timer()
            self._reading.start(self.transport, write_timeout)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stop()

        def _stop(self) -> None:
            if self._reading is not None:
                self._reading.stop()

    return Protocol
