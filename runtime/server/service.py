"""Routes about the server itself: models, tokens, version, health, load, metrics."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from .answers import answers, check_model, front_of
from .answers import text as text_answer
from .errors import ApiError
from .fields import DetokenizeBody, TokenizeBody
from .front import now

router = APIRouter()
_STARTED = now()


@router.get("/v1/models", responses=answers(401))
async def models(request: Request) -> dict[str, Any]:
    """The one model that is served."""
    return {"object": "list", "data": [_card(request)]}


@router.get("/v1/models/{model:path}", responses=answers(401, 404))
async def model(model: str, request: Request) -> dict[str, Any]:
    """That model by its name."""
    check_model(front_of(request), model)
    return _card(request)


def _card(request: Request) -> dict[str, Any]:
    config = front_of(request).config
    return {
        "id": config.model_name,
        "object": "model",
        "created": _STARTED,
        "owned_by": "kvproof",
        "root": config.model_name,
        "parent": None,
        "max_model_len": config.max_model_len,
    }


@router.post("/tokenize", responses=answers(400, 401, 404, 408, 413))
async def tokenize(body: TokenizeBody, request: Request) -> dict[str, Any]:
    """The tokens of a prompt or of a conversation."""
    front = front_of(request)
    check_model(front, body.model)
    if body.messages is not None:
        text = await front.render(body.messages, body.add_generation_prompt)
    else:
        text = body.prompt or ""
    special = body.messages is None if body.add_special_tokens is None else body.add_special_tokens
    tokens = await front.encode(text, special)
    strings = None
    if body.return_token_strs:
        strings = [front.tokenizer.backend.id_to_token(token) for token in tokens]
    return {
        "count": len(tokens),
        "max_model_len": front.config.max_model_len,
        "tokens": tokens,
        "token_strs": strings,
    }


@router.post("/detokenize", responses=answers(400, 401, 404, 408, 413))
async def detokenize(body: DetokenizeBody, request: Request) -> dict[str, str]:
    """The text of tokens."""
    front = front_of(request)
    check_model(front, body.model)
    most = front.config.max_model_len
    if len(body.tokens) > most:
        raise ApiError(400, f"tokens: at most {most}, the model's context", param="tokens")
    front.check_tokens(body.tokens, "tokens")
    text = await front.call(front.tokenizer.decode, body.tokens, False)
    return {"prompt": text}


@router.get("/version")
async def version() -> dict[str, str]:
    """kvproof's version."""
    return {"version": importlib.metadata.version("kvproof")}


@router.get("/ping", response_class=Response)
@router.get("/health", response_class=Response, responses=answers(503))
async def health(request: Request) -> Response:
    """200 while the engine moves; 503 when it is dead or has work that has not moved."""
    front = front_of(request)
    if front.closing:
        return ApiError(503, "the server is shutting down", code="shutting_down").response()
    # Not through the threads: they may all wait for the engine that is asked about.
    good, why = front.engine.healthy()
    if not good:
        return ApiError(503, why, code="unhealthy").response()
    return Response(status_code=200)


@router.get("/load")
async def load(request: Request) -> dict[str, int]:
    """Requests that are being served."""
    limits = front_of(request).limits
    return {"server_load": limits.live, "queued": limits.queued}


@router.get("/metrics", response_class=Response, responses=text_answer("text/plain"))
async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    front = front_of(request)
    return Response(await front.call(front.metrics.text), media_type=CONTENT_TYPE_LATEST)
