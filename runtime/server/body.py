"""Bodies are read whole before a route runs, up to a size and within a time between two pieces."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError


class BodyLimit:
    """ASGI layer: 413 for a body that is too large, 408 for one that stops coming."""

    def __init__(self, app: ASGIApp, max_body: int, timeout: float) -> None:
        self._app = app
        self._max_body = max_body
        self._timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, then pass the call on with it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = await self._read(scope, receive)
        if body is None:
            return  # the client left while it was sending
        if isinstance(body, ApiError):
            await body.response()(scope, receive, send)
            return
        pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        await self._app(scope, replay, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | ApiError | None:
        too_large = ApiError(
            413, f"the body is larger than {self._max_body} bytes", code="body_too_large"
        )
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value) > self._max_body:
                return too_large
        pieces, size = [], 0
        while True:
            try:
                async with asyncio.timeout(self._timeout):
                    message = await receive()
            except TimeoutError:
                return ApiError(408, "the body did not arrive in time")
            if message["type"] != "http.request":
                return None
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > self._max_body:
                return too_large
            if not message.get("more_body", False):
                return b"".join(pieces)
