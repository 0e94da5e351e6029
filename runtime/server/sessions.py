"""Streaming-input sessions: they outlive the socket that opened them.

A session's events are numbered and kept, so that a client that lost its socket can take the
session up where it was. What is kept is bounded by the model's length: an event carries a token
or ends a turn, and a turn has a token.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from ...statemachine.errors import RefusedError
from ..api import FinishReason, RequestOutput, SessionError
from .errors import ApiError, unavailable
from .fields import ChunkMessage, OpenMessage
from .front import Front
from .security import Tenant
from .stream import OutputStream


class Session:
    """One session as its client sees it: numbered events, and the settings of its turns."""

    def __init__(self, front: Front, tenant: Tenant, opened: OpenMessage) -> None:
        self.name = secrets.token_urlsafe(16)
        self.request_id = f"session-{secrets.token_hex(16)}"
        self.tenant = tenant
        self.events: list[dict[str, Any]] = []
        self.ended = False
        self.attachment: object | None = None  # the socket that follows it now
        self.stream = OutputStream()
        self._front = front
        self._opened = opened
        self._changed = asyncio.Event()
        self._limits: dict[int, int | None] = {0: opened.max_tokens}  # max_tokens by turn
        self._turns_asked = 1
        self._chunks = asyncio.Lock()
        self._turn_tokens = 0
        self.add(
            {"type": "opened", "session": self.name, "deadline": front.config.session_deadline}
        )

    def add(self, event: dict[str, Any]) -> None:
        """Number an event and wake whoever follows."""
        self.events.append(event | {"seq": len(self.events)})
        self.wake()

    def wake(self) -> None:
        """Make followers look again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def after(self, number: int) -> None:
        """Return once there may be an event numbered `number`, or something else to see."""
        changed = self._changed
        if number >= len(self.events):
            await changed.wait()

    async def chunk(self, message: ChunkMessage) -> None:
        """Queue more input. Raises ApiError and the engine's errors; then nothing has changed.

        A socket that drops meanwhile does not stop this half-way: the event `taken` tells the
        next socket that the chunk was queued.
        """
        await asyncio.shield(asyncio.ensure_future(self._chunk(message)))

    async def _chunk(self, message: ChunkMessage) -> None:
        if self.ended:
            raise ApiError(409, "the session has ended")
        settings = message.over(self._opened)
        tokens = await prompt_tokens(self._front, settings.prompt, message.add_special_tokens)
        params = settings.sampling(settings.max_tokens, None)
        async with self._chunks:
            turn = self._turns_asked
            self._limits[turn] = settings.max_tokens  # the turn may be over before the call is
            try:
                await self._front.call(
                    self._front.engine.add_chunk, self.request_id, tokens, params
                )
            except BaseException as error:
                del self._limits[turn]
                if isinstance(error, SessionError) and isinstance(error.__cause__, RefusedError):
                    # A client knows its session's name, not the engine's id of it.
                    why = f"the chunk was refused: {error.__cause__.why}"
                    raise ApiError(409, why, param="prompt") from error
                raise
            self._turns_asked += 1
        self.add({"type": "taken", "turn": turn})

    async def close_input(self) -> None:
        """No more chunks; the session ends when what it has is answered."""
        await self._front.call(self._front.engine.close_input, self.request_id)

    async def abort(self) -> None:
        """End it at once."""
        await self._front.call(self._front.engine.abort, self.request_id)

    async def follow_engine(self) -> None:
        """Turn the engine's outputs into events until the session ends."""
        while not self.ended:
            self._take(await self.stream.get())

    def _take(self, output: RequestOutput) -> None:
        reason = output.finish_reason
        self._turn_tokens += len(output.tokens)
        if output.tokens or output.text:
            event: dict[str, Any] = {"type": "output", "turn": output.turn, "text": output.text}
            if self._opened.return_token_ids:
                event["token_ids"] = list(output.tokens)
            self.add(event)
        if reason is None:
            return
        self.ended = output.finished
        event = {
            "type": "ended" if self.ended else "turn",
            "turn": output.turn,
            "finish_reason": self._reason(output),
            "stop_reason": output.stop_reason,
            "usage": {
                "prompt_tokens": output.prompt_tokens,
                "completion_tokens": output.output_tokens,
                "total_tokens": output.prompt_tokens + output.output_tokens,
                "prompt_tokens_details": {"cached_tokens": output.cached_tokens},
            },
        }
        if output.error is not None:
            event["error"] = output.error
        self._limits.pop(output.turn, None)
        self._turn_tokens = 0
        self.add(event)

    def _reason(self, output: RequestOutput) -> str:
        assert output.finish_reason is not None
        if output.finish_reason is not FinishReason.TURN:
            return str(output.finish_reason.value)
        limit = self._limits.get(output.turn)
        return "length" if limit is not None and self._turn_tokens >= limit else "stop"


class Sessions:
    """The sessions of one server. Ended ones stay for a while, so that their end can be read."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._known: dict[str, Session] = {}
        self._following: set[asyncio.Task[None]] = set()

    @property
    def live(self) -> list[Session]:
        """Those that have not ended."""
        return [session for session in self._known.values() if not session.ended]

    async def open(self, tenant: Tenant, message: OpenMessage) -> Session:
        """Start a session. Raises ApiError and the engine's errors."""
        front = self._front
        if front.closing:
            raise unavailable("the server is shutting down", 10)
        tokens = await prompt_tokens(front, message.prompt, message.add_special_tokens)
        params = message.sampling(message.max_tokens, None)
        front.check_prompt(tokens, params)
        front.limits.open_session(tenant)
        session = Session(front, tenant, message)
        try:
            await front.add(
                session.request_id,
                tokens,
                params,
                priority=message.priority or 0,
                resumable=True,
                salt=tenant.salt(message.cache_salt),
                on_output=session.stream.put,
            )
        except BaseException:
            front.limits.close_session(tenant)
            raise
        self._known[session.name] = session
        task = asyncio.create_task(self._follow(session))
        self._following.add(task)
        task.add_done_callback(self._following.discard)
        return session

    def find(self, tenant: Tenant, name: str) -> Session:
        """The tenant's session of that name. Raises ApiError 404."""
        session = self._known.get(name)
        if session is None or session.tenant != tenant:
            raise ApiError(404, "no session of this name is known", code="unknown_session")
        return session

    async def close(self) -> None:
        """Abort what is left; no task stays."""
        for session in self.live:
            self._front.abort_soon(session.request_id)
        for task in self._following:
            task.cancel()
        if self._following:
            await asyncio.wait(self._following)

    async def _follow(self, session: Session) -> None:
        try:
            await session.follow_engine()
        finally:
            session.ended = True
            self._front.limits.close_session(session.tenant)
            session.wake()
        asyncio.get_running_loop().call_later(
            self._front.config.session_deadline, self._known.pop, session.name, None
        )


async def prompt_tokens(front: Front, prompt: str | list[int], special: bool) -> list[int]:
    """A session's input as tokens. Raises ApiError."""
    tokens = await front.encode(prompt, special) if isinstance(prompt, str) else prompt
    if not tokens:
        raise ApiError(400, "prompt: it has no token", param="prompt")
    front.check_tokens(tokens)
    return tokens
