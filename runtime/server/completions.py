"""`POST /v1/completions`: prompts in text or tokens, answers as OpenAI and vLLM shape them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from ..api import TokenLogprobs
from ..model.tokenizer import Tokenizer
from .answers import check_model, front_of, generated, shown, usage
from .errors import ApiError
from .fields import CompletionBody
from .front import Delta, Front, Generation, now
from .http import EventStream, unless_gone
from .security import tenant_of

router = APIRouter()


@router.post("/v1/completions", responses=generated(400, 401, 404, 408, 409, 413, 429, 503))
async def completions(body: CompletionBody, request: Request) -> Response:
    """Continue one or several prompts."""
    front = front_of(request)
    check_model(front, body.model)
    params = body.sampling(body.max_tokens, body.logprobs)
    tenant = tenant_of(request.state)
    prompts = await _tokens(front, body)
    for prompt in prompts:
        front.check_prompt(prompt, params)
    name = f"cmpl-{body.request_id or uuid.uuid4().hex}"
    with ExitStack() as stack:
        stack.enter_context(front.limits.requests_of(tenant, len(prompts)))
        generations: list[Generation] = []
        for index, prompt in enumerate(prompts):
            generation = await front.start(
                f"{name}-{index}",
                prompt,
                params,
                priority=body.priority or 0,
                salt=tenant.salt(body.cache_salt),
            )
            stack.callback(generation.leave)
            generations.append(generation)
        answer = _Answer(name, front.config.model_name, front.tokenizer, body, generations)
        if body.stream:
            held = stack.pop_all()
            return EventStream(answer.events(), held.close, front.config.write_timeout)
        return JSONResponse(await unless_gone(request, answer.whole()))


async def _tokens(front: Front, body: CompletionBody) -> list[list[int]]:
    prompts = body.prompts()
    if len(prompts) > front.config.max_prompts:
        raise ApiError(400, f"prompt: at most {front.config.max_prompts} prompts", param="prompt")
    return [
        await front.encode(prompt, body.add_special_tokens) if isinstance(prompt, str) else prompt
        for prompt in prompts
    ]


class _Answer:
    """The answers to one call's prompts, as a whole or as events."""

    def __init__(
        self,
        name: str,
        model: str,
        tokenizer: Tokenizer,
        body: CompletionBody,
        generations: Sequence[Generation],
    ) -> None:
        self._head = {"id": name, "object": "text_completion", "created": now(), "model": model}
        self._tokenizer = tokenizer
        self._body = body
        self._generations = generations

    async def whole(self) -> dict[str, Any]:
        work = [
            asyncio.ensure_future(self._choice(index, one))
            for index, one in enumerate(self._generations)
        ]
        try:
            choices = await asyncio.gather(*work)
        finally:
            for one in work:
                one.cancel()
        return {**self._head, "choices": choices, "usage": usage(self._generations)}

    async def _choice(self, index: int, generation: Generation) -> dict[str, Any]:
        deltas = [delta async for delta in generation.deltas()]
        last = deltas[-1]
        together = Delta(
            "".join([delta.text for delta in deltas]),
            tuple(token for delta in deltas for token in delta.tokens),
            tuple(one for delta in deltas for one in delta.logprobs),
            last.finish,
            last.stop_reason,
        )
        return self._shaped(index, generation, together, first=True, offset=0)

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        options = self._body.stream_options
        started = [False] * len(self._generations)
        offsets = [0] * len(self._generations)
        async with aclosing(interleaved(self._generations)) as deltas:
            async for index, delta in deltas:
                if not (delta.text or delta.tokens or delta.finish):
                    continue
                choice = self._shaped(
                    index, self._generations[index], delta, not started[index], offsets[index]
                )
                started[index] = True
                offsets[index] += len(delta.text)
                event = {**self._head, "choices": [choice]}
                if options is not None and options.continuous_usage_stats:
                    event["usage"] = usage(self._generations)
                yield event
        if options is not None and options.include_usage:
            yield {**self._head, "choices": [], "usage": usage(self._generations)}

    def _shaped(
        self, index: int, generation: Generation, delta: Delta, first: bool, offset: int
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "text": delta.text,
            "logprobs": None,
            "finish_reason": delta.finish,
            "stop_reason": delta.stop_reason,
        }
        if self._body.logprobs is not None:
            choice["logprobs"] = _logprobs(
                self._tokenizer, delta.logprobs, self._body.logprobs, offset
            )
        if self._body.return_token_ids:
            choice["token_ids"] = list(delta.tokens)
            if first:
                choice["prompt_token_ids"] = generation.prompt
        return choice


async def interleaved(generations: Sequence[Generation]) -> AsyncGenerator[tuple[int, Delta], None]:
    """The deltas of several requests, as they come."""
    streams = [one.deltas().__aiter__() for one in generations]
    waiting = {asyncio.ensure_future(anext(s)): index for index, s in enumerate(streams)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=waiting.__getitem__):
                index = waiting.pop(task)
                try:
                    delta = task.result()
                except StopAsyncIteration:
                    continue
                yield index, delta
                waiting[asyncio.ensure_future(anext(streams[index]))] = index
    finally:
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting)


def _logprobs(
    tokenizer: Tokenizer, positions: Sequence[TokenLogprobs], top: int, offset: int
) -> dict[str, Any]:
    tokens, offsets = [], []
    for position in positions:
        tokens.append(shown(tokenizer, position.token))
        offsets.append(offset)
        offset += len(tokens[-1])
    return {
        "tokens": tokens,
        "token_logprobs": [position.logprob for position in positions],
        "top_logprobs": [
            {shown(tokenizer, token): value for token, value in position.top[:top]}
            for position in positions
        ],
        "text_offset": offsets,
    }
