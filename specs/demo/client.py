"""HTTP calls to the served engine, as its operator and its clients make them; stdlib only."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

#: Seconds to wait for something before it counts as not happening.
PATIENCE = 120.0
#: Seconds between two polls.
LOOK = 0.04


class DemoError(Exception):
    """The scenario cannot go on: the server is gone, or something expected never came."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer."""

    status: int
    body: Any

    @property
    def ok(self) -> bool:
        """Whether the status says success."""
        return self.status == 200


class Api:
    """Calls to one server. Each call has a connection of its own, so that threads may share it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.url = url
        self._host, self._port = parts.hostname or "", parts.port or 80

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> Answer:
        """One call. Raises DemoError when the server does not answer."""
        with self._sent(method, path, body, query) as response:
            raw = response.read()
            kind = response.getheader("Content-Type", "")
            value = json.loads(raw) if kind.startswith("application/json") else raw.decode()
            return Answer(response.status, value)

    def lines(self, path: str, body: Any) -> Iterator[bytes]:
        """The lines of a streamed answer."""
        with self._sent("POST", path, body, {}) as response:
            if response.status != 200:
                raise DemoError(f"POST {path}: {response.status} {response.read().decode()}")
            yield from response

    @contextmanager
    def _sent(
        self, method: str, path: str, body: Any, query: dict[str, Any]
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=PATIENCE)
        target = f"{path}?{urlencode(query)}" if query else path
        content = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            connection.request(method, target, content, headers)
            yield connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise DemoError(f"{method} {path}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()

    def tokens_of(self, text: str) -> list[int]:
        """Token ids of a text."""
        answer = self.call("POST", "/tokenize", {"prompt": text})
        return list(answer.body["tokens"])

    def holds(self) -> list[dict[str, Any]]:
        """Who holds blocks at this moment."""
        return list(self.call("GET", "/debug/holds").body["holds"])

    def stats(self) -> dict[str, Any]:
        """The engine's counters."""
        return dict(self.call("GET", "/debug/stats").body)

    def reset(self, forced: bool, wait: float = 0.0) -> Answer:
        """`POST /reset_prefix_cache`, the host tier left alone."""
        query: dict[str, Any] = {"reset_running_requests": str(forced).lower()}
        if wait:
            query["wait"] = wait
        return self.call("POST", "/reset_prefix_cache", **query)

    def state_of(self, request_id: str) -> str:
        """A request's state; "" when the engine has forgotten it."""
        answer = self.call("GET", f"/debug/requests/{request_id}")
        return str(answer.body["state"]) if answer.ok else ""


def poll(what: str, look: Callable[[], Any]) -> Any:
    """Look again and again until something is seen, and return it. Raises DemoError."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if seen := look():
            return seen
        time.sleep(LOOK)
    raise DemoError(f"{what} has not been seen for {PATIENCE:.0f} s")


def completion(prompt: list[int], tokens: int, **fields: Any) -> dict[str, Any]:
    """The body of a greedy completion of exactly that many tokens."""
    return {
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **fields,
    }


class Stream:
    """A streamed completion that a thread reads. `tokens` grows as they arrive."""

    def __init__(self, api: Api, name: str, prompt: list[int], owed: int) -> None:
        self.name = name
        self.request_id = f"cmpl-{name}-0"
        self.owed = owed
        self.tokens: list[int] = []
        self.finish: str | None = None
        self.error: str | None = None
        self._api = api
        self._body = completion(prompt, owed, stream=True, request_id=name)
        self._thread = threading.Thread(target=self._read, name=f"stream-{name}", daemon=True)
        self._thread.start()

    @property
    def left(self) -> int:
        """Tokens that it was promised and has not received."""
        return self.owed - len(self.tokens)

    def join(self) -> None:
        """Wait for its end. Raises DemoError if it does not come."""
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            raise DemoError(f"stream {self.name} has not ended for {PATIENCE:.0f} s")

    def _read(self) -> None:
        try:
            for line in self._api.lines("/v1/completions", self._body):
                data = line.removeprefix(b"data: ").strip()
                if not data or data == b"[DONE]":
                    continue
                event = json.loads(data)
                if "error" in event:
                    self.error = event["error"]["message"]
                    continue
                for choice in event["choices"]:
                    self.tokens.extend(choice["token_ids"])
                    self.finish = choice["finish_reason"] or self.finish
        except DemoError as error:
            self.error = str(error)
