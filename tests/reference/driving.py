"""Driving the reference engine from a test: steps, copies that end, answers to expect."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.specs.fuzz.target import EOS, next_token
from kvproof.statemachine import RequestState
from kvproof.statemachine.states import QUARANTINED

from .engine import Engine
from .records import Config, Request
from .tier import HostTier

#: What most scenarios ask: one full block and half of the next.
PROMPT = [1, 2, 3, 4, 5, 6]


def engine(tier: type[HostTier] | None = None, **sizes: int | str | float) -> Engine:
    """An engine of a small pool."""
    return Engine(Config(**sizes), tier)  # type: ignore[arg-type]


def run(e: Engine, steps: int = 1000) -> int:
    """Step until nothing can be computed, at most `steps` times; check every invariant each time.

    Returns how many steps there were.
    """
    count = 0
    while count < steps and (e.step() or e.launched):
        e.check()
        e.finish_step()
        e.check()
        count += 1
    return count


def copies(e: Engine) -> list[int]:
    """The copies that will end by themselves."""
    return [number for number, t in e.transfers.items() if t.facts.state != QUARANTINED]


def land(e: Engine, number: int | None = None) -> None:
    """A copy lands, or all of them do."""
    assert e.tier is not None
    for each in [number] if number is not None else copies(e):
        e.tier.land(each)
        e.signal(each, "landed")
        e.check()


def fail(e: Engine, number: int, valid: int = 0) -> None:
    """A copy fails; its first blocks are right."""
    assert e.tier is not None
    e.tier.fail(number, valid)
    e.signal(number, "failed", valid)
    e.check()


def fence(e: Engine, number: int) -> None:
    """A copy that was cancelled can touch nothing any more."""
    assert e.tier is not None
    e.tier.stop(number)
    e.signal(number, "fenced")
    e.check()


def finish(e: Engine) -> None:
    """Step, and let copies land, until nothing is left to do."""
    while run(e) or copies(e):
        land(e)


def store(e: Engine, tokens: Sequence[int]) -> None:
    """Bring the KV of some tokens into the host tier, and nothing of it stays on the device."""
    e.add("stored", [*tokens, 1], max_tokens=1)
    run(e)
    e.step()
    land(e)
    assert e.reset().success


def load_in_flight(
    e: Engine, name: str = "loading", tokens: Sequence[int] = (7, 8, 9, 10, 11)
) -> Request:
    """A request whose prefix is being loaded from the host tier."""
    store(e, tokens[:4])
    request = e.add(name, tokens)
    e.step()
    assert state(request) == "WAITING_FOR_REMOTE_KVS"
    e.check()
    return request


def parked(e: Engine, name: str = "chat") -> None:
    """A session whose first turn, PROMPT, is over."""
    request = e.add(name, PROMPT, session=True)
    run(e)
    assert state(request) == "WAITING_FOR_STREAMING_REQ"


def state(request: Request) -> str:
    """The state's name."""
    return RequestState(request.facts.state).name


def answer(prompt: Sequence[int], max_tokens: int, stop_every: int = 0) -> list[int]:
    """What the fake model answers to a prompt."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < max_tokens:
        tokens.append(next_token(tokens, stop_every))
        if tokens[-1] == EOS:
            break
    return tokens[len(prompt) :]


def turns(prompt: Sequence[int], *chunks: Sequence[int], max_tokens: int = 4) -> list[int]:
    """What an undisturbed session answers to a prompt and its chunks, over all turns."""
    tokens, delivered = [], []
    for part in (prompt, *chunks):
        tokens += part
        new = answer(tokens, max_tokens)
        tokens += new
        delivered += new
    return delivered


def everything(e: Engine) -> tuple[object, ...]:
    """All that a refused call must leave as it was."""
    return (
        e.facts.copy(),
        [(r.id, r.facts.copy(), list(r.tokens), list(r.table)) for r in e.requests.values()],
        [(t.number, t.facts.copy()) for t in e.transfers.values()],
        [facts.copy() for facts in e.pool.facts],
        {key: h.copy() for key, h in e.pool.held.items() if any(h.as_dict().values())},
        dict(e.tier.stored) if e.tier else {},
    )
