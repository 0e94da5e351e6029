"""Many clients at once against a server on a fake device, each of which knows what is right.

Clients stream, wait, leave in the middle, hold sessions; an operator resets, pauses, puts to
sleep and aborts. A token that is wrong, an answer 500 or a stream that breaks off is a fault.
"""

import asyncio
import contextlib
import json
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from .fake_device import expected

SHARED = [[(31 * n + 7 * at) % 256 for at in range(96)] for n in range(6)]


@dataclass
class Figures:
    """What has been done, what was wrong, and how long answers took."""

    done: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    first_token: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.done.items()))
        times = statistics.quantiles(self.first_token, n=100) if self.first_token else [0.0] * 99
        return (
            f"{self.seconds:.0f} s: {counts}; {self.tokens / self.seconds:.0f} tokens/s, "
            f"first token {times[49] * 1000:.1f} ms (median), {times[98] * 1000:.1f} ms (p99)"
        )


class Load:
    """The clients of one run."""

    def __init__(self, url: str, seconds: float, seed: int) -> None:
        self.figures = Figures()
        self._url = url
        self._seconds = seconds
        self._seed = seed
        self._end = 0.0
        self._names = iter(range(1_000_000))

    async def run(self, clients: int = 32) -> Figures:
        """All of them, until the time is over and each has ended what it began."""
        started = time.monotonic()
        self._end = started + self._seconds
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        async with (
            httpx.AsyncClient(base_url=self._url, timeout=60, limits=limits) as http,
            asyncio.TaskGroup() as group,
        ):
            for number in range(clients):
                group.create_task(self._client(http, random.Random(self._seed + number)))
            group.create_task(self._operator(http, random.Random(self._seed - 1)))
        self.figures.seconds = time.monotonic() - started
        return self.figures

    @property
    def _over(self) -> bool:
        return time.monotonic() >= self._end

    def _fault(self, what: str) -> None:
        self.figures.faults.append(what)

    async def _client(self, http: httpx.AsyncClient, rng: random.Random) -> None:
        while not self._over:
            draw = rng.random()
            if draw < 0.55:
                await self._stream(http, rng, leave_after=None)
            elif draw < 0.75:
                await self._whole(http, rng)
            elif draw < 0.9:
                await self._stream(http, rng, leave_after=rng.randrange(6))
            else:
                await self._session(rng)

    def _body(self, rng: random.Random) -> dict:
        prompt = rng.choice(SHARED)[: rng.choice((16, 48, 96))]
        prompt = prompt + [rng.randrange(256) for _ in range(rng.randrange(1, 40))]
        return {
            "prompt": prompt,
            "max_tokens": rng.randrange(1, 48),
            "return_token_ids": True,
            "request_id": f"load-{next(self._names)}",
        }

    def _compare(self, kind: str, prompt: list, asked: int, tokens: list, reason: str) -> None:
        right = expected(prompt, asked)
        complete = tokens == right and reason == "length"
        aborted = reason == "abort" and tokens == right[: len(tokens)]
        if not (complete or aborted):
            self._fault(f"{kind}: {len(tokens)} of {asked} tokens, {reason}, {tokens[:5]}")
        self.figures.done[kind if complete else f"{kind}, aborted"] += 1
        self.figures.tokens += len(tokens)

    def _refused(self, answer: httpx.Response, kind: str) -> bool:
        if answer.status_code == 200:
            return False
        if answer.status_code not in (429, 503) or "Retry-After" not in answer.headers:
            self._fault(f"{kind}: {answer.status_code}")
        self.figures.done[f"{kind}, {answer.status_code}"] += 1
        return True

    async def _whole(self, http: httpx.AsyncClient, rng: random.Random) -> None:
        body = self._body(rng)
        answer = await http.post("/v1/completions", json=body)
        if not self._refused(answer, "answer"):
            (choice,) = answer.json()["choices"]
            self._compare(
                "answer",
                body["prompt"],
                body["max_tokens"],
                choice["token_ids"],
                choice["finish_reason"],
            )

    async def _stream(
        self, http: httpx.AsyncClient, rng: random.Random, leave_after: int | None
    ) -> None:
        body = self._body(rng) | {"stream": True}
        started, tokens, reason, events = time.monotonic(), [], None, 0
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            if self._refused(answer, "stream"):
                return
            async for line in answer.aiter_lines():
                if events == leave_after:
                    self.figures.done["left"] += 1
                    return
                if not line.startswith("data: {"):
                    continue
                if events == 0:
                    self.figures.first_token.append(time.monotonic() - started)
                events += 1
                event = json.loads(line[6:])
                if "error" in event:
                    self._fault(f"stream: {event}")
                    return
                tokens += event["choices"][0]["token_ids"]
                reason = event["choices"][0]["finish_reason"] or reason
        self._compare("stream", body["prompt"], body["max_tokens"], tokens, str(reason))

    async def _session(self, rng: random.Random) -> None:
        history = self._body(rng)["prompt"]
        opening = {"type": "open", "prompt": history, "max_tokens": 9, "return_token_ids": True}
        async with connect(self._url.replace("http", "ws", 1) + "/v1/sessions") as socket:
            message = opening
            for _ in range(3):
                with contextlib.suppress(ConnectionClosed):  # why is in what can still be read
                    await socket.send(json.dumps(message))
                tokens, end = await self._turn(socket)
                if end is None:
                    return
                reason = "abort" if end["finish_reason"] == "abort" else end["finish_reason"]
                self._compare("turn", history, 9, tokens, reason)
                if end["type"] == "ended":
                    return
                more = [rng.randrange(256) for _ in range(rng.randrange(1, 20))]
                history = history + tokens + more
                message = {"type": "chunk", "prompt": more}
            if rng.random() < 0.5:  # or it parks, and the operator's abort ends it
                with contextlib.suppress(ConnectionClosed):
                    await socket.send(json.dumps({"type": "close"}))
                await self._turn(socket)

    async def _turn(self, socket) -> tuple[list, dict | None]:
        tokens: list[int] = []
        while True:
            event = json.loads(await socket.recv())
            if event["type"] == "error":
                kind = event["error"]["type"]
                if kind not in ("service_unavailable_error", "rate_limit_error", "conflict_error"):
                    self._fault(f"session: {event}")
                self.figures.done[f"session, {kind}"] += 1
                return tokens, None
            tokens += event.get("token_ids", [])
            if event["type"] in ("turn", "ended"):
                return tokens, event

    async def _operator(self, http: httpx.AsyncClient, rng: random.Random) -> None:
        acts = (self._reset, self._pause, self._sleep, self._abort, self._look)
        for act in acts:
            await act(http, rng)
        while not self._over:
            (act,) = rng.choices(acts, (12, 3, 2, 1, 2))
            await act(http, rng)

    async def _reset(self, http: httpx.AsyncClient, rng: random.Random) -> None:
        path = f"/reset_prefix_cache?reset_running_requests={str(rng.random() < 0.7).lower()}"
        path += "&reset_external=true" if rng.random() < 0.2 else ""
        await self._call(http, "reset", path + ("&wait=0.5" if rng.random() < 0.3 else ""))

    async def _pause(self, http: httpx.AsyncClient, rng: random.Random) -> None:
        await self._call(http, "pause", f"/pause?mode={rng.choice(('abort', 'wait', 'keep'))}")
        await self._call(http, "resume", "/resume")

    async def _sleep(self, http: httpx.AsyncClient, rng: random.Random) -> None:
        await self._call(http, "sleep", f"/sleep?level={rng.choice((1, 2))}&mode=keep")
        await self._call(http, "wake", "/wake_up?tags=weights")
        await self._call(http, "wake", "/wake_up?tags=kv_cache")
        await self._call(http, "resume", "/resume")

    async def _abort(self, http: httpx.AsyncClient, rng: random.Random) -> None:
        await self._call(http, "abort of all", "/abort_requests")

    async def _look(self, http: httpx.AsyncClient, rng: random.Random) -> None:
        for one in (await http.get("/debug/holds")).json()["holds"][:3]:
            await http.get(f"/debug/requests/{one['owner']}")
        self.figures.done["look"] += 1

    async def _call(self, http: httpx.AsyncClient, kind: str, path: str) -> None:
        answer = await http.post(path)
        if answer.status_code not in (200, 409):
            self._fault(f"{kind}: {answer.status_code} {answer.text[:200]}")
        refused = answer.status_code == 409 or answer.json().get("success") is False
        self.figures.done[f"{kind}, refused" if refused else kind] += 1
