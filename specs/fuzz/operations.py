"""Operations as plain data: what the fuzzer does to a target, recorded so that it can be replayed.

A sequence of operations survives the removal of any of them: one that no longer makes sense (its
request was never added, its transfer does not exist, the pipeline is full) is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from .target import (
    Feature,
    NewRequest,
    Promise,
    RejectedError,
    ResetAnswer,
    Snapshot,
    Target,
)

PARKED = "WAITING_FOR_STREAMING_REQ"
GRAMMAR = "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR"

#: The operations that no legal environment performs.
FAULTS = frozenset({"lose", "duplicate"})

#: How often `drain` goes round before it gives up: enough to recompute every token of a full
#: pool one at a time.
DRAIN_ROUNDS = 120


@dataclass(frozen=True, slots=True)
class Operation:
    """One call: the method's name and its arguments, all of them plain values."""

    name: str
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(_literal, self.arguments))})"

    def to_json(self) -> dict[str, Any]:
        """As JSON; `from_json` reads it back."""
        arguments = [asdict(a) if isinstance(a, NewRequest) else a for a in self.arguments]
        return {"op": self.name, "arguments": arguments}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Operation:
        """The operation that `to_json` wrote."""
        arguments = []
        for argument in data["arguments"]:
            if isinstance(argument, dict):
                argument = NewRequest(**{**argument, "prompt": tuple(argument["prompt"])})
            elif isinstance(argument, list):
                argument = tuple(argument)
            arguments.append(argument)
        return cls(data["op"], tuple(arguments))


def _literal(value: Any) -> str:
    if isinstance(value, NewRequest):
        default = NewRequest("", ())
        parts = [repr(value.id), f"prompt={list(value.prompt)}"]
        parts += [
            f"{name}={current!r}"
            for name, current in asdict(value).items()
            if name not in ("id", "prompt") and current != getattr(default, name)
        ]
        return ", ".join(parts)
    if isinstance(value, tuple):
        return repr(list(value))
    return repr(value)


@dataclass(frozen=True, slots=True)
class Drained:
    """How a drain ended: requests that do not go on though they could, and sessions it closed."""

    stuck: tuple[str, ...]
    closed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an operation led to."""

    rejected: str | None = None  # the engine's typed refusal
    answer: bool | ResetAnswer | Drained | None = None


def applicable(target: Target, now: Snapshot, operation: Operation) -> bool:
    """Whether an operation makes sense, and is legal for its caller, in this state."""
    name, arguments, settings = operation.name, operation.arguments, target.settings
    full = now.steps_in_flight >= settings.depth
    allowed = target.calls_when_full
    if full and allowed is not None and name not in allowed and name != "finish_step":
        return False
    if name == "step":
        return not full
    if name == "finish_step":
        return now.steps_in_flight > 0
    if name == "add":
        new: NewRequest = arguments[0]
        return now.request(new.id) is None and 0 < len(new.prompt) < settings.max_length
    if name in ("abort", "chunk", "close_input"):
        return now.request(arguments[0]) is not None
    if name in ("complete", "fail", "lose"):
        return any(t.id == arguments[0] and t.open and not t.lost for t in now.transfers)
    if name == "duplicate":
        return any(t.id == arguments[0] and not t.open for t in now.transfers)
    if name in ("pause", "resume"):
        return now.mode == ("ACTIVE" if name == "pause" else "PAUSED")
    if name in ("sleep", "wake"):
        return (now.mode == "SLEEPING") == (name == "wake")
    return True


def perform(target: Target, operation: Operation) -> Outcome:
    """Carry out an operation. What the engine raises beyond its typed refusals is passed on."""
    call: Callable[..., Any] = (
        (lambda: drain(target)) if operation.name == "drain" else getattr(target, operation.name)
    )
    try:
        return Outcome(answer=call(*operation.arguments))
    except RejectedError as refusal:
        return Outcome(rejected=str(refusal))


def drain(target: Target) -> Drained:
    """Let everything that is under way end, and step until nothing moves any more.

    Stuck are the requests that could go on, by what their state says, and do not: their client is
    not waited for, and no transfer is open. An engine that keeps its promises leaves none. Where
    it does not promise that sessions which wait for their client give way, they are closed first.
    """
    _settle(target)
    while (mode := target.snapshot().mode) != "ACTIVE":
        try:
            if mode == "SLEEPING":
                target.wake()
            else:
                target.resume()
        except RejectedError:
            break
        _settle(target)
        if target.snapshot().mode == mode:
            break
    if Feature.CLOCK in target.features_with(target.settings.connector):
        target.tick()
        _settle(target)
    promises = target.promises_with(target.settings.connector)
    closed: list[str] = []
    while Promise.PARKED_SESSIONS_ARE_RECLAIMED not in promises and stuck(target.snapshot()):
        parked = [r.id for r in target.snapshot().requests if r.known and r.state == PARKED]
        if not parked:
            break
        target.close_input(parked[0])
        closed.append(parked[0])
        _settle(target)
    return Drained(stuck(target.snapshot()), tuple(closed))


def _settle(target: Target) -> None:
    still = 0
    for _ in range(DRAIN_ROUNDS):
        before = _progress(now := target.snapshot())
        for transfer in now.transfers:
            if transfer.open and not transfer.lost:
                target.complete(transfer.id)
        launched = True
        while launched and target.snapshot().steps_in_flight < target.settings.depth:
            launched = target.step()
        if target.snapshot().steps_in_flight:
            target.finish_step()
        elif not _open(target.snapshot()):
            break  # idle: the engine says that there is nothing to do
        still = 0 if _progress(target.snapshot()) != before else still + 1
        if still > 6:
            break
    while target.snapshot().steps_in_flight:
        target.finish_step()


def _open(now: Snapshot) -> bool:
    return any(t.open and not t.lost for t in now.transfers)


def _progress(now: Snapshot) -> tuple[object, ...]:
    """What changes when something moves: tokens delivered or computed, states, transfers."""
    return (
        tuple((r.id, r.state, r.known, r.computed, len(r.delivered)) for r in now.requests),
        tuple((t.id, t.open) for t in now.transfers),
    )


def stuck(now: Snapshot) -> tuple[str, ...]:
    """The requests that wait for nobody outside the engine; none while a lost transfer is open."""
    if any(t.open for t in now.transfers):
        return ()
    return tuple(
        r.id
        for r in now.requests
        if r.known and not r.finished and r.state not in (PARKED, GRAMMAR)
    )
