"""The operator's routes, with vLLM's names, parameters and answers; and what the engine holds.

A declared outcome is an answer. A refused reset is 200 with `"success": false`, as vLLM answers
it (409 with strict=true); a refused pause, resume, sleep or wake is 409, because vLLM's clients
take any 200 of these for done. A 500 is a fault of ours.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse

from ..api import CallResult
from .answers import answers, front_of
from .errors import RETRY_AFTER, ApiError
from .fields import AbortBody
from .http import unless_gone


async def only_known_parameters(request: Request) -> None:
    """A mistyped parameter must not be read as its default: a plain reset is not a forced one."""
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        would_be = f"; it knows {', '.join(sorted(known))}" if known else ""
        raise ApiError(
            400, f"{unknown[0]}: this route knows no such parameter{would_be}", param=unknown[0]
        )


router = APIRouter(dependencies=[Depends(only_known_parameters)])
Mode = Annotated[Literal["abort", "wait", "keep"], Query(description="what happens to requests")]
#: vLLM's names of what can be woken, and ours.
_TAGS = {"weights": "weights", "kv_cache": "cache", "cache": "cache"}
_GUARDED = answers(400, 401, 403)
_CALLS = answers(400, 401, 403, 409, 503)


@router.post("/reset_prefix_cache", responses=_CALLS)
async def reset_prefix_cache(
    request: Request,
    reset_running_requests: Annotated[
        bool, Query(description="preempt what runs and reclaim what is parked")
    ] = False,
    reset_external: Annotated[bool, Query(description="clear the connector's tier too")] = False,
    reset_connector: Annotated[bool, Query(description="the same as reset_external")] = False,
    wait: Annotated[
        float, Query(ge=0, description="seconds, at most 60, to wait for what ends by itself")
    ] = 0.0,
    strict: Annotated[bool, Query(description="answer a refusal with 409")] = False,
) -> Response:
    """Drop every cached prefix; a refusal names who holds blocks and how each hold ends."""
    front = front_of(request)
    external = reset_external or reset_connector
    # Whoever leaves gives a waiting reset up: its engine must not stay closed for nobody.
    result = await unless_gone(
        request,
        front.waiting_call(front.engine.begin_reset, reset_running_requests, external, wait),
    )
    if result.success or not strict:
        return JSONResponse(result.as_dict())
    return JSONResponse(result.as_dict(), 409, {"Retry-After": str(RETRY_AFTER)})


@router.post("/pause", responses=_CALLS)
async def pause(
    request: Request,
    mode: Mode = "abort",
    clear_cache: Annotated[bool, Query(description="ignored with mode=keep")] = True,
) -> Response:
    """Stop generating: abort what is live, wait for it, or keep it where it is."""
    front = front_of(request)
    clear = clear_cache and mode != "keep"
    result = await front.waiting_call(front.engine.begin_pause, mode, clear)
    return _answer(result, {"status": "paused"})


@router.post("/resume", responses=_CALLS)
async def resume(request: Request) -> Response:
    """Generate again."""
    front = front_of(request)
    return _answer(await front.call(front.engine.resume), {"status": "resumed"})


@router.get("/is_paused", responses=_GUARDED)
async def is_paused(request: Request) -> dict[str, bool]:
    """Whether nothing is generated."""
    front = front_of(request)
    return {"is_paused": await front.call(front.engine.is_paused)}


@router.post("/sleep", responses=_CALLS)
async def sleep(
    request: Request,
    level: Annotated[int, Query(ge=1, le=2, description="2 drops the copy of the weights")] = 1,
    mode: Mode = "abort",
) -> Response:
    """Give the memory of weights and cache back to the system."""
    front = front_of(request)
    result = await front.waiting_call(front.engine.begin_sleep, level, mode)
    return _answer(result, {"status": "sleeping", "level": level})


@router.post("/wake_up", responses=_CALLS)
async def wake_up(
    request: Request,
    tags: Annotated[list[str] | None, Query(description="weights, kv_cache; none: both")] = None,
) -> Response:
    """Take the memory again."""
    front = front_of(request)
    unknown = sorted(set(tags or ()) - set(_TAGS))
    if unknown:
        raise ApiError(400, f"tags: {unknown[0]!r} is not weights or kv_cache", param="tags")
    ours = tuple(dict.fromkeys(_TAGS[tag] for tag in tags)) if tags else ("weights", "cache")
    result = await front.call(front.engine.wake, ours)
    asleep = await front.call(front.engine.is_sleeping)
    return _answer(result, {"status": "sleeping" if asleep else "awake", "tags": tags})


@router.get("/is_sleeping", responses=_GUARDED)
async def is_sleeping(request: Request) -> dict[str, bool]:
    """Whether memory is given back."""
    front = front_of(request)
    return {"is_sleeping": await front.call(front.engine.is_sleeping)}


@router.post("/abort_requests", responses=answers(400, 401, 403, 408, 413))
async def abort_requests(request: Request, body: AbortBody | None = None) -> dict[str, Any]:
    """Abort requests by the ids of their answers, or all of them and all sessions."""
    front = front_of(request)
    wanted = None if body is None or not body.request_ids else body.request_ids
    live = [*front.live, *(one.request_id for one in request.app.state.sessions.live)]
    names = live if wanted is None else [one for one in live if _is_named(one, wanted)]
    aborted = [await front.call(front.engine.abort, name) for name in names]
    return {"status": "aborted", "aborted": sum(aborted)}


def _is_named(request_id: str, wanted: list[str]) -> bool:
    return request_id in wanted or request_id.rpartition("-")[0] in wanted


@router.get("/debug/holds", responses=_GUARDED)
async def debug_holds(request: Request) -> dict[str, Any]:
    """Who holds which number of blocks, since when, and how it ends. Empty when idle."""
    front = front_of(request)
    holders = await front.call(front.engine.holds)
    return {"holds": [holder.as_dict() for holder in holders]}


@router.get("/debug/requests/{request_id}", responses=answers(401, 403, 404))
async def debug_request(request_id: str, request: Request) -> dict[str, Any]:
    """One request: its state, its facts as numbers, its transitions so far."""
    front = front_of(request)
    for name in (request_id, f"{request_id}-0"):  # an answer's id is its first request's stem
        info = await front.call(front.engine.request_info, name)
        if info is not None:
            return dataclasses.asdict(info) | {"transitions": list(info.transitions)}
    raise ApiError(404, "no request of this id is remembered")


@router.get("/debug/stats", responses=_GUARDED)
async def debug_stats(request: Request) -> dict[str, Any]:
    """The engine's counters, one consistent picture."""
    front = front_of(request)
    return dataclasses.asdict(await front.call(front.engine.stats))


def _answer(result: CallResult, done: dict[str, Any]) -> Response:
    if result.success:
        return JSONResponse(done | {"success": True, "mode": result.mode, "why": result.why})
    headers = {"Retry-After": str(RETRY_AFTER)} if result.retryable else {}
    return JSONResponse(result.as_dict(), 409, headers)
