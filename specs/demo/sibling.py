"""The sibling: a parked streaming-input session, which once made a forced reset impossible."""

from __future__ import annotations

import json
from typing import Any

from websockets.sync.client import ClientConnection, connect

from .client import PATIENCE, Api, DemoError
from .rows import Row
from .trials import Bench, owners

_TURN_TOKENS = 24


class _Session:
    """A session over `/v1/sessions`, one turn at a time."""

    def __init__(self, api: Api, socket: ClientConnection) -> None:
        self._api = api
        self._socket = socket

    def open(self, prompt: list[int]) -> list[int]:
        """The first turn's tokens."""
        opening = {
            "type": "open",
            "prompt": prompt,
            "max_tokens": _TURN_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        return self._turn(opening)

    def chunk(self, prompt: list[int]) -> list[int]:
        """The next turn's tokens."""
        return self._turn({"type": "chunk", "prompt": prompt})

    def close(self) -> str:
        """End it; how it ended."""
        self._socket.send(json.dumps({"type": "close"}))
        return str(self._until("ended")[-1]["finish_reason"])

    def _turn(self, message: dict[str, Any]) -> list[int]:
        self._socket.send(json.dumps(message))
        events = self._until("turn")
        return [token for event in events for token in event.get("token_ids", ())]

    def _until(self, kind: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] != kind:
            try:
                event = json.loads(self._socket.recv(timeout=PATIENCE))
            except TimeoutError:
                raise DemoError(f"the session says nothing for {PATIENCE:.0f} s") from None
            if event["type"] in ("error", "ended") and event["type"] != kind:
                raise DemoError(f"the session: {event}")
            events.append(event)
        return events


def sibling(bench: Bench, name: str) -> Row:
    """Park a session, force a reset, go on: as if nothing had happened."""
    first, second = bench.session_input()
    undisturbed = _two_turns(bench.api, first, second)
    bench.idle()
    with bench.trial(name, prompts=0) as (row, _):
        with connect(_socket_url(bench.api), open_timeout=PATIENCE) as socket:
            session = _Session(bench.api, socket)
            tokens = [session.open(first)]
            bench.no_transfer()
            holds = bench.api.holds()
            row.check("the parked session holds blocks", bool(owners(holds, "REQUEST")), holds)
            plain = bench.api.reset(forced=False)
            named = plain.body.get("holders", [])
            row.check(
                "without the flag it refuses, and its client can end it",
                plain.body.get("success") is False
                and [one["ends_by"] for one in named] == ["client"],
                plain,
            )
            holds = bench.api.holds()
            row.check("no transfer is in flight", {one["kind"] for one in holds} == {"REQUEST"})
            forced = bench.api.reset(forced=True)
            row.check("the forced reset succeeds at once", forced.body.get("success") is True)
            tokens.append(session.chunk(second))
            row.check("it closes in good order", session.close() == "stop")
        same = tokens == undisturbed
        row.refused = "REQUEST ×1, not forced"
        row.true_when = "at once"
        row.same = "2 of 2" if same else "NO"
        row.check("both turns have the tokens of an undisturbed session", same, tokens)
    return row


def _two_turns(api: Api, first: list[int], second: list[int]) -> list[list[int]]:
    with connect(_socket_url(api), open_timeout=PATIENCE) as socket:
        session = _Session(api, socket)
        tokens = [session.open(first)]
        tokens.append(session.chunk(second))
        session.close()
        return tokens


def _socket_url(api: Api) -> str:
    return api.url.replace("http", "ws", 1) + "/v1/sessions"
