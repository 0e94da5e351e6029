"""Small pieces that several routes put into their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from starlette.requests import HTTPConnection

from ..model.tokenizer import Tokenizer
from .errors import ApiError
from .front import Front, Generation

_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_WORDS = {
    400: "The request is wrong; the message names the field.",
    401: "The API key is missing or wrong.",
    403: "Host or Origin is not allowed.",
    404: "No such model, request or route.",
    408: "The body did not arrive in time.",
    409: "The state of the engine or the request does not allow it.",
    413: "The body is too large.",
    429: "This key has too much at once; see Retry-After.",
    503: "The server cannot take this now; see Retry-After.",
}


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Declared answers of a route, for the OpenAPI document."""
    return {
        status: {
            "description": _WORDS[status],
            "content": {"application/json": {"schema": _ERROR_SCHEMA}},
        }
        for status in statuses
    }


def generated(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The same for a route that generates: one object, or with stream=true events."""
    whole = {
        "type": "object",
        "required": ["id", "object", "created", "model", "choices", "usage"],
        "properties": {
            "id": {"type": "string"},
            "object": {"type": "string"},
            "created": {"type": "integer"},
            "model": {"type": "string"},
            "choices": {"type": "array", "items": {"type": "object"}, "minItems": 1},
            "usage": {"type": "object"},
        },
    }
    # A stream is described by one of its events.
    event = {
        "type": "object",
        "required": ["data"],
        "properties": {"data": {"type": "string", "description": "A chunk as JSON, or [DONE]."}},
    }
    return {
        200: {
            "description": "The answer, or with stream=true server-sent events that end in [DONE].",
            "content": {
                "application/json": {"schema": whole},
                "text/event-stream": {"schema": event},
            },
        },
        **answers(*statuses),
    }


def text(media_type: str) -> dict[int | str, dict[str, Any]]:
    """200 with a text of that type."""
    return {
        200: {"description": "OK", "content": {media_type: {"schema": {"type": "string"}}}},
    }


def front_of(connection: HTTPConnection) -> Front:
    """The model that this app serves."""
    return cast(Front, connection.app.state.front)


def check_model(front: Front, model: str | None) -> None:
    """Raises ApiError 404 for a model that is not the one served."""
    if model is not None and model != front.config.model_name:
        raise ApiError(
            404,
            f"this server serves the model {front.config.model_name!r} only",
            param="model",
            code="model_not_found",
        )


def usage(generations: Sequence[Generation]) -> dict[str, Any]:
    """Tokens of these requests so far."""
    prompt = sum(len(one.prompt) for one in generations)
    output = sum(one.output_tokens for one in generations)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in generations)},
    }


def shown(tokenizer: Tokenizer, token: int) -> str:
    """One token as text; bytes that are no character by themselves become U+FFFD."""
    return tokenizer.decode((token,), skip_special_tokens=False)
