"""The ASGI app of one served model: which routes exist, and the layers in front of them.

From the outside in: answers are counted, then Host, Origin and key are checked, then the body is
read, then a route runs. Admin and debug routes exist only where an operator asked for them.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from ..model.tokenizer import Tokenizer
from . import admin, chat, completions, errors, service, session_routes
from .body import BodyLimit
from .contract import ServedEngine
from .front import Front
from .metrics import CountResponses, Metrics
from .security import Guard, Keys
from .sessions import Sessions
from .settings import ServerConfig


def create_app(engine: ServedEngine, tokenizer: Tokenizer, config: ServerConfig) -> FastAPI:
    """The app. The engine is the caller's: the app never shuts it down."""
    metrics = Metrics(engine, config.model_name)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        front = app.state.front = Front(engine, tokenizer, config, metrics)
        sessions = app.state.sessions = Sessions(front)
        try:
            yield
        finally:
            await sessions.close()
            await front.close()

    app = FastAPI(
        title="kvproof",
        version=importlib.metadata.version("kvproof"),
        description="An LLM engine whose request lifecycle is declared and verified.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    errors.install(app)
    for routes in (completions, chat, service, session_routes):
        app.include_router(routes.router)
    if config.admin:
        app.include_router(admin.router)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    app.add_middleware(BodyLimit, max_body=config.max_body, timeout=config.body_timeout)
    app.add_middleware(Guard, config=config, keys=Keys(config))
    app.add_middleware(CountResponses, metrics=metrics)
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document: FastAPI's, with our errors in place of its 422."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
        )
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            document.get("components", {}).get("schemas", {}).pop(name, None)
        app.openapi_schema = document
    return app.openapi_schema
