"""`/v1/sessions`: a session over a WebSocket, one JSON object a message.

The first message is `open` or `resume`; then `chunk`, `close` or `abort`. A message that is wrong
is answered with an `error` event and changes nothing. The socket stays open, unless it was the
first: without a session there is nothing to talk about.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, TypeVar

from fastapi import APIRouter, WebSocket
from pydantic import ValidationError
from starlette.websockets import WebSocketDisconnect, WebSocketState

from .answers import check_model, front_of
from .errors import ApiError, answered, from_validation
from .fields import Body, ChunkMessage, EndMessage, OpenMessage, ResumeMessage
from .security import tenant_of
from .sessions import Session, Sessions

router = APIRouter()
M = TypeVar("M", bound=Body)

# Close codes. Those from 4000 on are an application's own.
_ENDED, _POLICY, _TRY_LATER, _TAKEN_OVER = 1000, 1008, 1013, 4001


@router.websocket("/v1/sessions")
async def sessions(socket: WebSocket) -> None:
    """Open or resume a session, and follow it until it ends or the socket does."""
    await socket.accept()
    line = _Line(socket, front_of(socket).config.write_timeout)
    try:
        await _serve(line, socket.app.state.sessions)
    except (WebSocketDisconnect, OSError, TimeoutError):
        return  # the session parks by itself when its turn is over


async def _serve(line: _Line, known: Sessions) -> None:
    socket = line.socket
    front = front_of(socket)
    tenant = tenant_of(socket.state)
    cursor = 0
    try:
        async with asyncio.timeout(front.config.header_timeout):
            first = await line.receive()
        match first.get("type"):
            case "resume":
                resume = _parsed(ResumeMessage, first)
                session = known.find(tenant, resume.session)
                cursor = resume.after + 1
                if cursor > len(session.events):
                    last = len(session.events) - 1
                    raise ApiError(400, f"after: the last event is number {last}", param="after")
            case "open":
                message = _parsed(OpenMessage, first)
                check_model(front, message.model)
                session = await known.open(tenant, message)
            case _:
                raise ApiError(400, "type: the first message is open or resume", param="type")
    except Exception as error:
        if isinstance(error, (WebSocketDisconnect, OSError, TimeoutError)):
            raise
        answer = answered(error, "a session's message")
        await line.send(answer.as_dict() | {"type": "error"})
        await line.close(_TRY_LATER if answer.status in (429, 503) else _POLICY)
        return
    session.attachment = line
    session.wake()
    telling = asyncio.ensure_future(_tell(line, session, cursor))
    hearing = asyncio.ensure_future(_hear(line, session))
    try:
        await asyncio.wait({telling, hearing}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (telling, hearing):
            task.cancel()
        await asyncio.wait({telling, hearing})
        if session.attachment is line:
            session.attachment = None
    for task in (telling, hearing):
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise failure


async def _tell(line: _Line, session: Session, cursor: int) -> None:
    """Send the session's events from `cursor` on, until it ends or another socket follows it."""
    while session.attachment is line:
        while cursor < len(session.events):
            await line.send(session.events[cursor])
            cursor += 1
        if session.ended:
            await line.close(_ENDED)
            return
        await session.after(cursor)
    await line.close(_TAKEN_OVER)


async def _hear(line: _Line, session: Session) -> None:
    """Carry out what the client sends."""
    while True:
        try:
            message = await line.receive()
            match message.get("type"):
                case "chunk":
                    await session.chunk(_parsed(ChunkMessage, message))
                case "close":
                    _parsed(EndMessage, message)
                    await session.close_input()
                case "abort":
                    _parsed(EndMessage, message)
                    await session.abort()
                case _:
                    raise ApiError(400, "type: it is chunk, close or abort", param="type")
        except (WebSocketDisconnect, OSError, TimeoutError):
            raise
        except Exception as error:
            await line.send(answered(error, "a session's message").as_dict() | {"type": "error"})


class _Line:
    """A WebSocket that speaks JSON objects, with a limit on how long a send may take."""

    def __init__(self, socket: WebSocket, write_timeout: float) -> None:
        self.socket = socket
        self._timeout = write_timeout
        self._turn = asyncio.Lock()

    async def receive(self) -> dict[str, Any]:
        """The next message. Raises ApiError if it is no JSON object, WebSocketDisconnect."""
        message = await self.socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1006))
        text = message.get("text")
        try:
            value = json.loads(text if text is not None else message["bytes"])
        except (ValueError, RecursionError):
            raise ApiError(400, "the message is not valid JSON") from None
        if not isinstance(value, dict):
            raise ApiError(400, "the message is not a JSON object")
        return value

    async def send(self, event: dict[str, Any]) -> None:
        """Send one event. Raises TimeoutError when the client does not read."""
        async with self._turn, asyncio.timeout(self._timeout):
            await self.socket.send_text(json.dumps(event, ensure_ascii=False))

    async def close(self, code: int) -> None:
        """End the socket from this side."""
        async with self._turn:
            if self.socket.application_state is WebSocketState.CONNECTED:
                await self.socket.close(code)


def _parsed(kind: type[M], message: dict[str, Any]) -> M:
    try:
        return kind.model_validate(message)
    except ValidationError as error:
        raise from_validation(error.errors()) from None
