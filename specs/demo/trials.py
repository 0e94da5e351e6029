"""The trials: each starts streams that must load from the host tier, resets, and checks it all.

No check trusts one side alone: the LOAD that a refusal names is looked up in `/debug/holds` before
and after that refusal; whether streams still owe tokens is asked of the engine as well as of the
streams; token ids are compared with those of an undisturbed run.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from .client import Answer, Api, Stream, completion, poll
from .rows import Row

STREAM_TOKENS = 64
_AFTER_TOKENS = 8
#: Attempts at a trial whose reset came too late.
ATTEMPTS = 5

#: Runs one trial on a bench, under the name that its row gets.
Trial = Callable[["Bench", str], "Row"]


@dataclass(slots=True)
class Prompt:
    """A prompt and what an undisturbed run made of it."""

    number: int
    tokens: list[int]
    undisturbed: list[int] = field(default_factory=list)


class Bench:
    """One server, its prompts, and the streams of the trial that runs."""

    def __init__(self, api: Api, prompts: list[Prompt]) -> None:
        self.api = api
        self.prompts = prompts
        self._next = itertools.cycle(prompts)
        self._names = itertools.count(1)
        self._small = Prompt(0, prompts[0].tokens[:24])
        self.streams: list[Stream] = []  # of the trial that runs; a live view reads them
        self.doing = ""

    def undisturbed(self, prompts: list[Prompt]) -> None:
        """Run prompts with nothing in their way, and keep what comes."""
        self.doing = "(undisturbed)"
        streams = [self._stream(prompt) for prompt in prompts]
        for stream, prompt in zip(streams, prompts, strict=True):
            stream.join()
            prompt.undisturbed = list(stream.tokens)
        if not self._small.undisturbed:
            self._small.undisturbed = self._generate(self._small)
        self.idle()

    def session_input(self) -> tuple[list[int], list[int]]:
        """What a session is opened with, and its further chunk."""
        prompt = next(self._next)
        return prompt.tokens[:100], prompt.tokens[100:140]

    def no_transfer(self) -> None:
        """Wait until no transfer is in flight."""
        poll(
            "an end of the transfers",
            lambda: not {"LOAD", "STORE"} & {one["kind"] for one in self.api.holds()},
        )

    def idle(self) -> None:
        """Wait until nobody holds a block: nothing runs, and every store has ended."""
        poll("an idle engine", lambda: not self.api.holds())

    @contextmanager
    def trial(self, name: str, prompts: int = 2) -> Iterator[tuple[Row, list[Prompt]]]:
        """What every trial has: an idle engine before, health and a generation after it."""
        self.idle()
        row, picked = Row(name), [next(self._next) for _ in range(prompts)]
        self.streams, self.doing = [], name
        started = time.monotonic()
        before = self.api.stats()["tier_loaded_bytes"]
        yield row, picked
        row.loaded_bytes = self.api.stats()["tier_loaded_bytes"] - before
        health = self.api.call("GET", "/health")
        same = self._generate(self._small) == self._small.undisturbed
        row.after = f"{health.status} {'same' if same else 'WRONG'}"
        row.check("the server is healthy afterwards", health.ok, health.status)
        row.check("it generates afterwards, and the right tokens", same)
        row.seconds = time.monotonic() - started

    def start(self, row: Row, prompts: list[Prompt]) -> list[str]:
        """Start a stream for each prompt, and return the LOADs once there is one.

        The trial is missed when that LOAD, or a stream that waits for it, came and went unseen.
        """
        self.streams = [self._stream(prompt) for prompt in prompts]
        loads: list[str] = []

        def seen() -> bool:
            begun = any(stream.tokens for stream in self.streams)
            loads[:] = owners(self.api.holds(), "LOAD")
            return begun or bool(loads)

        poll("a load from the host tier", seen)
        states = self._states()
        waits = "WAITING_FOR_REMOTE_KVS" in states
        row.missed = not (loads and waits)
        row.check("a stream waits for its load", waits, states)
        return loads

    def finish(self, row: Row, prompts: list[Prompt]) -> None:
        """Wait for the streams, and compare their tokens."""
        right = 0
        for stream, prompt in zip(self.streams, prompts, strict=True):
            stream.join()
            same = stream.tokens == prompt.undisturbed and len(stream.tokens) == STREAM_TOKENS
            right += same
            row.check(
                f"{stream.name} has the {STREAM_TOKENS} tokens of an undisturbed run",
                same and stream.finish == "length",
                stream.error or _difference(stream.tokens, prompt.undisturbed),
            )
        row.same = f"{right} of {len(prompts)}"

    def ended(self) -> bool:
        """Whether the engine says of every stream that its request has ended."""
        return all(_is_over(self.api.state_of(stream.request_id)) for stream in self.streams)

    def live(self) -> bool:
        """Whether the engine says of every stream that its request is live."""
        return not any(_is_over(self.api.state_of(stream.request_id)) for stream in self.streams)

    def _states(self) -> list[str]:
        return [self.api.state_of(stream.request_id) for stream in self.streams]

    def _stream(self, prompt: Prompt) -> Stream:
        name = f"prompt{prompt.number}-run{next(self._names)}"
        return Stream(self.api, name, prompt.tokens, STREAM_TOKENS)

    def _generate(self, prompt: Prompt) -> list[int]:
        answer = self.api.call("POST", "/v1/completions", completion(prompt.tokens, _AFTER_TOKENS))
        return list(answer.body["choices"][0]["token_ids"]) if answer.ok else []


def _until_met(trial: Trial) -> Trial:
    """The trial, run again where its load ended before the reset came, as on a busy machine."""

    @wraps(trial)
    def again(bench: Bench, name: str) -> Row:
        for _ in range(ATTEMPTS):
            row = trial(bench, name)
            if not row.missed:
                return row
        row.check(f"a reset comes before a load has ended, in {ATTEMPTS} attempts", False)
        return row

    return again


@_until_met
def flagged(bench: Bench, name: str) -> Row:
    """Reset with the force flag: refused by the load alone, true while streams still owe."""
    with bench.trial(name) as (row, prompts):
        loads = bench.start(row, prompts)
        refusals = _Refusals(row)
        _refused_by_a_load(bench, row, refusals, loads, forced=True)
        answer = _until_true(bench.api, refusals, forced=True)
        left = [stream.left for stream in bench.streams]
        live = bench.live()
        row.true_when = f"{left[0]}+{left[1]} owed"
        row.check("true while both streams owe tokens", min(left) > 0 and live, left)
        row.check("it says which tier is clear", answer.body.get("tiers") == ["device"], answer)
        row.check(
            "only transfers refused, and requests that wait for one",
            all(one["kind"] in ("LOAD", "STORE", "REQUEST") for one in refusals.holders)
            and all({"LOAD", "STORE"} & kinds for kinds in refusals.kinds),
            refusals.kinds,
        )
        bench.finish(row, prompts)
        row.refused = refusals.told()
    row.check("bytes were loaded from the host", row.loaded_bytes > 0, row.loaded_bytes)
    return row


@_until_met
def control(bench: Bench, name: str) -> Row:
    """Reset without the flag: refused by the load, then by what runs; true once that is done."""
    with bench.trial(name) as (row, prompts):
        loads = bench.start(row, prompts)
        refusals = _Refusals(row)
        _refused_by_a_load(bench, row, refusals, loads, forced=False)
        _until_true(bench.api, refusals, forced=False)
        ended = bench.ended()
        bench.finish(row, prompts)
        row.true_when = "streams done" if ended else "NOT done"
        row.check("true only once the streams are done", ended)
        running = [kinds for kinds in refusals.kinds if "REQUEST" in kinds and "LOAD" not in kinds]
        row.check("refused later by the running requests", bool(running), refusals.kinds)
        row.check(
            "never refused by a load once there was none",
            "LOAD" not in refusals.kinds[-1],
            refusals.kinds,
        )
        row.refused = refusals.told()
    row.check("bytes were loaded from the host", row.loaded_bytes > 0, row.loaded_bytes)
    return row


@_until_met
def waiting(bench: Bench, name: str, wait: float = 10.0) -> Row:
    """A forced reset that waits, under a load in flight: it succeeds by itself."""
    with bench.trial(name) as (row, prompts):
        bench.start(row, prompts)
        answer = bench.api.reset(forced=True, wait=wait)
        left = [stream.left for stream in bench.streams]
        done = bool(answer.body.get("success"))
        row.refused = "nothing, in one call"
        row.true_when = f"{left[0]}+{left[1]} owed" if done else "NEVER"
        row.check("one call with wait succeeded", answer.ok and done, answer)
        row.check("while both streams owed tokens", min(left) > 0, left)
        bench.finish(row, prompts)
    row.check("bytes were loaded from the host", row.loaded_bytes > 0, row.loaded_bytes)
    return row


def owners(holds: list[dict[str, Any]], kind: str) -> list[str]:
    """The owners of holds of one kind."""
    return [one["owner"] for one in holds if one["kind"] == kind]


class _Refusals:
    """The refusals of one trial, in their order."""

    def __init__(self, row: Row) -> None:
        self._row = row
        self.holders: list[dict[str, Any]] = []
        self.kinds: list[set[str]] = []

    def add(self, answer: Answer) -> list[dict[str, Any]]:
        """Note one, and return who refused."""
        holders = list(answer.body.get("holders", ()))
        good = answer.status == 200 and answer.body.get("success") is False
        if not good or not holders:
            self._row.check("a refusal is 200, success false, and names its holders", False, answer)
        self.holders += holders
        self.kinds.append({one["kind"] for one in holders})
        return holders

    def told(self) -> str:
        """`LOAD ×12, REQUEST ×40`: transfers first; a request that waits for one goes with it."""
        names = (" + ".join(sorted(kinds - {"REQUEST"})) or "REQUEST" for kinds in self.kinds)
        counted = [(name, len(list(group))) for name, group in itertools.groupby(names)]
        return ", ".join(f"{name} ×{count}" for name, count in counted)


def _refused_by_a_load(
    bench: Bench, row: Row, refusals: _Refusals, loads: list[str], forced: bool
) -> None:
    """The first reset, while the load is known to be in flight."""
    answer = bench.api.reset(forced)
    afterwards = owners(bench.api.holds(), "LOAD")
    row.missed = not set(loads) & set(afterwards)
    named = owners(refusals.add(answer), "LOAD")
    row.check("refused while the load is in flight", answer.body.get("success") is False, answer)
    row.check(
        "the LOAD it names is in /debug/holds, before and after",
        bool(named) and set(named) <= set(afterwards) and bool(set(named) & set(loads)),
        f"named {named}, held before {loads}, after {afterwards}",
    )


def _until_true(api: Api, refusals: _Refusals, forced: bool) -> Answer:
    """Ask again until true."""

    def ask() -> Answer | None:
        answer = api.reset(forced)
        if answer.body.get("success"):
            return answer
        refusals.add(answer)
        return None

    found = poll("a reset that succeeds", ask)
    assert isinstance(found, Answer)
    return found


def _is_over(state: str) -> bool:
    return state == "" or state.startswith("FINISHED")


def _difference(tokens: list[int], expected: list[int]) -> str:
    for at, (one, other) in enumerate(zip(tokens, expected, strict=False)):
        if one != other:
            return f"token {at} is {one}, not {other}"
    return f"{len(tokens)} tokens of {len(expected)}"
