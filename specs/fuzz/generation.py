"""What happens next: settings, features and operations, drawn so that things overlap.

Small pools, shared prefixes, sessions and transfers that stay open make collisions likely. Each
run uses only some of the features (swarm testing): a fault that is hit at every turn would
otherwise hide all others, and some faults show only when something does *not* happen for a while.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from .operations import FAULTS, Operation
from .target import Feature, NewRequest, Settings, Snapshot, Target

T = TypeVar("T")


class Draw(Protocol):
    """A source of choices: pseudo-random, or Hypothesis'."""

    def below(self, bound: int) -> int:
        """An int from 0 to bound - 1; small ones are simpler."""


class RandomDraw:
    """Choices from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, bound: int) -> int:
        """See Draw."""
        return int(self._random.random() * bound)


def pick(draw: Draw, options: Sequence[T]) -> T:
    """One of the options; the first ones are simpler."""
    return options[draw.below(len(options))]


def chance(draw: Draw, percent: int) -> bool:
    """True in so many of a hundred draws; False is simpler."""
    return draw.below(100) >= 100 - percent


#: How often an operation is drawn beside the others that are possible, before the swarm's choice.
WEIGHTS = {
    "step": 30,
    "finish_step": 30,
    "add": 14,
    "abort": 4,
    "chunk": 8,
    "close_input": 3,
    "complete": 12,
    "fail": 4,
    "lose": 2,
    "duplicate": 4,
    "reset": 3,
    "pause": 2,
    "resume": 4,
    "sleep": 1,
    "wake": 6,
    "tick": 1,
    "drain": 1,
}

#: The features that an operation needs; any one of them will do.
NEEDS: dict[str, tuple[Feature, ...]] = {
    "chunk": (Feature.SESSIONS,),
    "close_input": (Feature.SESSIONS,),
    "complete": (Feature.LOADS, Feature.STORES),
    "fail": (Feature.FAILURES,),
    "lose": (Feature.LATE_SIGNALS,),
    "duplicate": (Feature.LATE_SIGNALS,),
    "reset": (Feature.RESET,),
    "pause": (Feature.PAUSE,),
    "resume": (Feature.PAUSE,),
    "sleep": (Feature.SLEEP,),
    "wake": (Feature.SLEEP,),
    "tick": (Feature.CLOCK,),
}

#: Features that a run may do without. The others are there whenever the target has them.
OPTIONAL = (
    Feature.SESSIONS,
    Feature.LOADS,
    Feature.STORES,
    Feature.FAILURES,
    Feature.RESET,
    Feature.RESET_RUNNING,
    Feature.RESET_CONNECTOR,
    Feature.PAUSE,
    Feature.SLEEP,
    Feature.OVERLAP,
    Feature.PRIORITY,
    Feature.CLOCK,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run may do: the settings, the features that are on, and each operation's weight."""

    settings: Settings
    features: frozenset[Feature]
    weights: dict[str, int]
    requests: int = 8  # at most
    stretch: bool = True  # chunks may take a session beyond the model's length
    families: int = 2  # of prompts; those of one family share prefixes

    def labels(self) -> frozenset[str]:
        """The features and operations in use, as the search compares them with known findings."""
        names = {name for name, weight in self.weights.items() if weight}
        names |= {str(feature) for feature in self.features}
        names.add(f"connector:{self.settings.connector}")
        if self.stretch:
            names.add("stretch")
        return frozenset(names)


def plan(draw: Draw, target: type[Target], faults: bool, connector: str | None = None) -> Plan:
    """Draw what one run may do. With `faults` the environment may lose and repeat signals."""
    connector = pick(draw, target.connectors) if connector is None else connector
    available = target.features_with(connector)
    features = {feature for feature in available if feature not in OPTIONAL}
    for feature in OPTIONAL:
        if feature in available and chance(draw, 60):
            features.add(feature)
    if not faults:
        features.discard(Feature.LATE_SIGNALS)
    block_size = pick(draw, (4, 2))
    blocks = pick(draw, (6, 4, 8, 5, 10))
    longest = min(blocks * block_size, pick(draw, (16, 32, 24)))
    max_running = pick(draw, (4, 2, 3, 1))
    settings = Settings(
        blocks=blocks,
        block_size=block_size,
        max_running=max_running,
        token_budget=max(max_running, pick(draw, (16, 8, 4, 32))),
        max_length=longest,
        priority=Feature.PRIORITY in features and chance(draw, 60),
        depth=2 if Feature.OVERLAP in features else 1,
        connector=connector,
        tier_blocks=pick(draw, (8, 3, 5, 16)),
        fail_policy=pick(draw, ("recompute", "fail")),
    )
    weights = dict(WEIGHTS)
    for name, needed in NEEDS.items():
        if not features.intersection(needed):
            weights[name] = 0
    for name in ("abort", "close_input", "chunk", "reset", "pause", "sleep", "complete", "add"):
        # Some runs hardly do a thing, others do it all the time.
        weights[name] = weights[name] * pick(draw, (3, 1, 6, 0 if name != "add" else 1)) // 3
    return Plan(
        settings,
        frozenset(features),
        weights,
        requests=pick(draw, (6, 3, 10, 16)),
        stretch=chance(draw, 40),
        families=pick(draw, (1, 2, 3)),
    )


@dataclass(slots=True)
class Generator:
    """Draws one operation after the other for a run."""

    plan: Plan
    draw: Draw
    added: int = 0
    live_sessions: list[str] = field(default_factory=list)
    lengths: dict[str, int] = field(default_factory=dict)  # of sessions, at most

    def possible(self, target: Target, now: Snapshot) -> list[tuple[str, int]]:
        """The operations that make sense now, with their weights."""
        weights = self.plan.weights
        full = now.steps_in_flight >= self.plan.settings.depth
        allowed = target.calls_when_full if full else None
        names = []
        for name, weight in weights.items():
            if not weight or (
                allowed is not None and name not in allowed and name != "finish_step"
            ):
                continue
            if self._makes_sense(name, now, full):
                names.append((name, weight))
        return names

    def _makes_sense(self, name: str, now: Snapshot, full: bool) -> bool:
        if name == "step":
            return not full
        if name == "finish_step":
            return now.steps_in_flight > 0
        if name == "add":
            return self.added < self.plan.requests
        if name == "abort":
            return bool(now.requests)
        if name == "close_input":
            return bool(self.live_sessions)
        if name == "chunk":
            return any(self._room(session) > 1 for session in self.live_sessions)
        if name in ("complete", "lose"):
            return any(t.open and not t.lost for t in now.transfers)
        if name == "fail":
            return any(t.open and t.kind == "LOAD" for t in now.transfers)
        if name == "duplicate":
            return any(not t.open for t in now.transfers)
        if name in ("pause", "resume"):
            return now.mode == ("ACTIVE" if name == "pause" else "PAUSED")
        if name in ("sleep", "wake"):
            return (now.mode == "SLEEPING") == (name == "wake")
        return True

    def next(self, target: Target, now: Snapshot) -> Operation:
        """Draw an operation and its arguments."""
        possible = self.possible(target, now)
        at = self.draw.below(sum(weight for _, weight in possible))
        for name, weight in possible:
            if at < weight:
                return self.make(name, now)
            at -= weight
        raise AssertionError("the weights do not add up")

    def make(self, name: str, now: Snapshot) -> Operation:
        """Draw the arguments of an operation that makes sense now."""
        draw = self.draw
        if name == "add":
            return Operation("add", (self._request(),))
        if name == "abort":
            # Now and then a client gives up when all is over already.
            late = chance(draw, 15)
            live = [r.id for r in now.requests if late or not r.finished]
            return Operation("abort", (pick(draw, live or [r.id for r in now.requests]),))
        if name == "chunk":
            session = pick(draw, [s for s in self.live_sessions if self._room(s) > 1])
            size = 1 + draw.below(min(6, self._room(session) - 1))
            answer = 1 + draw.below(min(4, self._room(session) - size))
            self.lengths[session] += size + answer
            base = 60 + draw.below(3) * 10
            return Operation("chunk", (session, tuple(range(base, base + size)), answer))
        if name == "close_input":
            session = pick(draw, self.live_sessions)
            self.live_sessions.remove(session)
            return Operation("close_input", (session,))
        if name in ("complete", "lose"):
            open_ = [t.id for t in now.transfers if t.open and not t.lost]
            return Operation(name, (pick(draw, open_),))
        if name == "fail":
            loads = [t for t in now.transfers if t.open and t.kind == "LOAD"]
            load = pick(draw, loads)
            return Operation("fail", (load.id, draw.below(len(load.blocks) or 1)))
        if name == "duplicate":
            return Operation(name, (pick(draw, [t.id for t in now.transfers if not t.open]),))
        if name == "reset":
            running = Feature.RESET_RUNNING in self.plan.features and chance(draw, 60)
            connector = Feature.RESET_CONNECTOR in self.plan.features and chance(draw, 40)
            return Operation("reset", (running, connector))
        if name == "pause":
            return Operation("pause", (pick(draw, ("keep", "wait", "abort")),))
        if name == "sleep":
            return Operation("sleep", (1 + draw.below(2),))
        return Operation(name)

    def _room(self, session: str) -> int:
        """Tokens that the session may still get, answers included."""
        length = self.plan.settings.max_length
        return length if self.plan.stretch else length - 1 - self.lengths[session]

    def _request(self) -> NewRequest:
        draw, features, settings = self.draw, self.plan.features, self.plan.settings
        self.added += 1
        name = f"r{self.added}"
        session = Feature.SESSIONS in features and chance(draw, 45)
        longest = max(1, settings.max_length - 2)
        length = 1 + draw.below(min(longest, 3 * settings.block_size + 2))
        if chance(draw, 25):
            length = 1 + draw.below(longest)
        remote = 0
        if Feature.LOADS in features and chance(draw, 50):
            # A remote tier has whole blocks, or the whole prompt.
            remote = settings.block_size * draw.below(1 + length // settings.block_size)
            if not remote or chance(draw, 30):
                remote = length
        answer = 1 + draw.below(min(8, settings.max_length - length))
        if session:
            self.live_sessions.append(name)
            self.lengths[name] = length + answer
        return NewRequest(
            name,
            self._prompt(length),
            max_tokens=answer,
            session=session,
            priority=draw.below(3) if settings.priority else 0,
            stop_every=pick(draw, (0, 0, 5, 7, 3)) if Feature.STOPS in features else 0,
            remote_tokens=remote,
            send=Feature.STORES in features and not session and chance(draw, 30),
        )

    def _prompt(self, length: int) -> tuple[int, ...]:
        """Prompts of a family share a prefix; the last tokens may be its own."""
        base = 1 + 20 * self.draw.below(self.plan.families)
        prompt = [base + i for i in range(length)]
        if chance(self.draw, 30):
            own = 1 + self.draw.below(length)
            prompt[-own:] = [50 + self.added * 7 + i for i in range(own)]
        return tuple(prompt)


def is_legal(operations: Sequence[Operation]) -> bool:
    """Whether a legal environment can do this: no signal is lost or repeated."""
    return not any(operation.name in FAULTS for operation in operations)
