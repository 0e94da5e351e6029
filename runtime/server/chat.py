"""`POST /v1/chat/completions`: a conversation, rendered by the model's own template."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from ..api import TokenLogprobs
from .answers import check_model, front_of, generated, shown, usage
from .fields import ChatBody
from .front import Front, Generation, now
from .http import EventStream, unless_gone
from .security import tenant_of

router = APIRouter()


@router.post("/v1/chat/completions", responses=generated(400, 401, 404, 408, 409, 413, 429, 503))
async def chat_completions(body: ChatBody, request: Request) -> Response:
    """Answer a conversation."""
    front = front_of(request)
    check_model(front, body.model)
    most = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
    params = body.sampling(most, (body.top_logprobs or 0) if body.logprobs else None)
    tenant = tenant_of(request.state)
    text = await front.render(body.messages, body.add_generation_prompt)
    prompt = await front.encode(text, add_special_tokens=False)  # the template has written them
    front.check_prompt(prompt, params)
    name = f"chatcmpl-{body.request_id or uuid.uuid4().hex}"
    with ExitStack() as stack:
        stack.enter_context(front.limits.requests_of(tenant, 1))
        generation = await front.start(
            f"{name}-0",
            prompt,
            params,
            priority=body.priority or 0,
            salt=tenant.salt(body.cache_salt),
        )
        stack.callback(generation.leave)
        answer = _Answer(name, front, body, generation)
        if body.stream:
            held = stack.pop_all()
            return EventStream(answer.events(), held.close, front.config.write_timeout)
        return JSONResponse(await unless_gone(request, answer.whole()))


class _Answer:
    """One conversation's answer, as a whole or as events."""

    def __init__(self, name: str, front: Front, body: ChatBody, generation: Generation) -> None:
        self._head = {"id": name, "created": now(), "model": front.config.model_name}
        self._tokenizer = front.tokenizer
        self._body = body
        self._generation = generation

    async def whole(self) -> dict[str, Any]:
        text, last = "", None
        tokens: list[int] = []
        positions: list[TokenLogprobs] = []
        async for delta in self._generation.deltas():
            text += delta.text
            tokens.extend(delta.tokens)
            positions.extend(delta.logprobs)
            last = delta
        assert last is not None
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "logprobs": self._logprobs(positions),
            "finish_reason": last.finish,
            "stop_reason": last.stop_reason,
        }
        answer = {
            **self._head,
            "object": "chat.completion",
            "choices": [choice],
            "usage": usage([self._generation]),
        }
        if self._body.return_token_ids:
            choice["token_ids"] = tokens
            answer["prompt_token_ids"] = self._generation.prompt
        return answer

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        options = self._body.stream_options
        head = {**self._head, "object": "chat.completion.chunk"}
        first = {**head, "choices": [_chunk({"role": "assistant", "content": ""})]}
        if self._body.return_token_ids:
            first["prompt_token_ids"] = self._generation.prompt
        yield first
        async for delta in self._generation.deltas():
            if not (delta.text or delta.tokens or delta.finish):
                continue
            choice = _chunk({"content": delta.text})
            choice["finish_reason"] = delta.finish
            choice["stop_reason"] = delta.stop_reason
            choice["logprobs"] = self._logprobs(delta.logprobs)
            if self._body.return_token_ids:
                choice["token_ids"] = list(delta.tokens)
            event = {**head, "choices": [choice]}
            if options is not None and options.continuous_usage_stats:
                event["usage"] = usage([self._generation])
            yield event
        if options is not None and options.include_usage:
            yield {**head, "choices": [], "usage": usage([self._generation])}

    def _logprobs(self, positions: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        top = self._body.top_logprobs or 0
        return {
            "content": [
                {
                    **self._one(position.token, position.logprob),
                    "top_logprobs": [self._one(*one) for one in position.top[:top]],
                }
                for position in positions
            ]
        }

    def _one(self, token: int, logprob: float) -> dict[str, Any]:
        text = shown(self._tokenizer, token)
        raw = self._tokenizer.token_bytes(token)
        return {
            "token": text,
            "logprob": logprob,
            "bytes": list(text.encode() if raw is None else raw),
        }


def _chunk(delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
