"""Answers that notice when their client leaves: event streams, and work that is waited for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .errors import ClientGoneError, answered

T = TypeVar("T")


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves. Raises ClientGoneError."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        await _cancelled(working, leaving)


class EventStream(Response):
    """Server-sent events. `leave` is called once, however the stream ends.

    `write_timeout` seconds without the client taking anything end it: a reader that is only slow
    costs no memory (what it has not taken is merged), one that has stopped costs a request.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[Any, None], leave: Callable[[], None], write_timeout: float
    ) -> None:
        super().__init__(
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        del self.headers["content-length"]
        self._events = events
        self._leave = leave
        self._write_timeout = write_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the events end or the client leaves."""
        writing = asyncio.ensure_future(self._write(send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancelled(writing, leaving)
            self._leave()
        failure = None if writing.cancelled() else writing.exception()
        if failure is not None and not isinstance(failure, (OSError, TimeoutError)):
            raise failure

    async def _write(self, send: Send) -> None:
        async def out(body: bytes, more: bool) -> None:
            message = {"type": "http.response.body", "body": body, "more_body": more}
            # Not wait_for: before Python 3.12 it may swallow the cancellation of its caller.
            async with asyncio.timeout(self._write_timeout):
                await send(message)

        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        try:
            # Closed at once when the client leaves, not when the collector comes by.
            async with aclosing(self._events) as events:
                async for event in events:
                    await out(sse(event), True)
        except Exception as error:
            if isinstance(error, (OSError, TimeoutError)):
                raise
            await out(sse(answered(error, "a stream").as_dict()), True)
        await out(b"data: [DONE]\n\n", False)


def sse(event: Any) -> bytes:
    """One event's bytes."""
    return b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
