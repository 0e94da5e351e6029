"""Errors as OpenAI's clients read them: one JSON shape, and a status that says whose fault it is.

Nothing that a client sent is repeated in a message beyond names of fields: prompts and keys do
not belong in logs.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..api import (
    DuplicateRequestError,
    EngineClosedError,
    EngineFailedError,
    InvalidRequestError,
    InvalidWaitError,
    RejectedCallError,
    SessionError,
    UnknownRequestError,
)
from ..model.errors import ChatTemplateError
from ..sampling_params import SamplingParamsError

logger = logging.getLogger("kvproof.server")

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
RETRY_AFTER = 1  # seconds
#: pydantic's type of the error for what is known but not served; its context names the field.
UNSUPPORTED = "unsupported"
#: pydantic's types of errors for a body that is no object at all.
_NO_OBJECT = frozenset({"model_type", "model_attributes_type", "dict_type"})

#: Where a value comes from, as FastAPI puts it before the field.
_SOURCES = frozenset({"body", "query", "path"})
#: Alternatives of a union that pydantic names as a field could be named.
_ALTERNATIVES = frozenset({"bool", "float", "int", "str"})


class ApiError(Exception):
    """An answer other than success. `retry_after` in seconds becomes the header."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def as_dict(self) -> dict[str, Any]:
        """OpenAI's error object."""
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, "invalid_request_error"),
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def headers(self) -> dict[str, str]:
        """Headers that belong to the answer."""
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers

    def response(self) -> JSONResponse:
        """The HTTP answer."""
        return JSONResponse(self.as_dict(), self.status, self.headers)


class ClientGoneError(Exception):
    """The client left before its answer was complete: nobody's fault."""


def unavailable(message: str, retry_after: int = RETRY_AFTER) -> ApiError:
    """503: the server cannot take this now."""
    return ApiError(503, message, code="unavailable", retry_after=retry_after)


def translated(error: Exception) -> ApiError | None:
    """An error of the engine or the model as an answer; None for an error that is not declared."""
    match error:
        case ApiError():
            return error
        case SamplingParamsError():
            return ApiError(400, str(error), param=error.field)
        case InvalidRequestError() | ChatTemplateError():
            return ApiError(400, str(error))
        case InvalidWaitError():
            return ApiError(400, str(error), param="wait")
        case UnknownRequestError():
            return ApiError(404, str(error))
        case DuplicateRequestError() | SessionError():
            return ApiError(409, str(error))
        case RejectedCallError():
            return ApiError(409, str(error), retry_after=RETRY_AFTER)
        case EngineClosedError():
            return unavailable(str(error) or "the engine is shutting down")
        case ClientGoneError():
            # Nobody reads it; the access log and the metrics show it as what it is.
            return ApiError(499, "the client left", code="client_closed_request")
        case EngineFailedError():
            return ApiError(503, f"the engine has failed: {error}", code="engine_failed")
    return None


def install(app: FastAPI) -> None:
    """Make every error of the app's routes an answer in this shape."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return from_validation(error.errors()).response()

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        answer = ApiError(error.status_code, str(error.detail)).response()
        answer.headers.update(error.headers or {})
        return answer

    async def ours(request: Request, error: Exception) -> JSONResponse:
        return answered(error, f"{request.method} {_route(request)}").response()

    for kind in (
        ApiError,
        ClientGoneError,
        SamplingParamsError,
        InvalidRequestError,
        InvalidWaitError,
        ChatTemplateError,
        UnknownRequestError,
        DuplicateRequestError,
        SessionError,
        RejectedCallError,
        EngineClosedError,
        EngineFailedError,
    ):
        app.add_exception_handler(kind, ours)
    app.add_middleware(_CatchAll)


class _CatchAll:
    """ASGI layer: an exception that nobody expected is an answer too, if none has begun."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on."""
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception as error:
            if scope["type"] != "http":
                raise
            route = getattr(scope.get("route"), "path", "?")
            answer = answered(error, f"{scope['method']} {route}")
            if not begun:
                await answer.response()(scope, receive, send)


def answered(error: Exception, what: str) -> ApiError:
    """Any exception as an answer. One that is our fault is logged, by its type and stack only.

    Its message may repeat what a client sent.
    """
    known = translated(error)
    if known is None:
        stack = "".join(traceback.format_tb(error.__traceback__))
        logger.error("%s failed: %s\n%s", what, type(error).__name__, stack)
        known = ApiError(500, "internal error; this is a fault of the server")
    return known


def from_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """pydantic's findings as one answer: the first field named, no value repeated."""
    if not errors:
        return ApiError(400, "the request is not valid")
    for error in errors:
        if error.get("type") == UNSUPPORTED:
            return ApiError(400, str(error["msg"]), param=error["ctx"]["param"])
    first = errors[0]
    kind = first.get("type")
    param = _field(first.get("loc", ()))
    message = str(first.get("msg", "not valid")).removeprefix("Value error, ")
    if kind == "json_invalid":
        return ApiError(400, "the body is not valid JSON")
    if param is None and kind in _NO_OBJECT:
        return ApiError(400, "the body must be a JSON object, sent as application/json")
    if kind == "extra_forbidden":
        return ApiError(400, f"{param}: this server knows no such field", param=param)
    alternatives = sorted({str(e["msg"]) for e in errors if _field(e.get("loc", ())) == param})
    if len(alternatives) > 1:
        message = "; or: ".join(alternatives)
    return ApiError(400, f"{param}: {message}" if param else message, param=param)


def _field(place: Sequence[str | int]) -> str | None:
    """Where a body is wrong, as `messages[0].content`; None when it is the body itself.

    In a union pydantic appends its own names of the alternatives: a client knows the field alone.
    """
    field = ""
    for part in place[1 if place and place[0] in _SOURCES else 0 :]:
        if isinstance(part, int):
            field += f"[{part}]"
        elif field and (part in _ALTERNATIVES or not part.isidentifier()):
            break
        else:
            field += f".{part}" if field else part
    return field or None


def _route(request: Request) -> str:
    route = request.scope.get("route")
    return str(getattr(route, "path", "?"))
