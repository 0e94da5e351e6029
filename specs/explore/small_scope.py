"""Small scope on a real engine: every interleaving of a few operations, to a stated depth.

The engine is a `Target` of the fuzzer, and the oracle is the fuzzer's: every rule is checked
after every operation. An engine cannot be copied, so each way is gone again from a fresh engine;
ways that lead to the same snapshot are gone on from once. What a snapshot does not show (the
order of a free list, say) may differ between them: this is a search for faults, not a proof.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

from ..fuzz.operations import Operation
from ..fuzz.run import Failure, Session
from ..fuzz.target import Feature, NewRequest, Settings, Snapshot, Target


@dataclass(frozen=True)
class Scope:
    """What is tried: requests, in their order; settings; how deep.

    `chunks` is how often a session's client may send more. `drains`: at each new state the engine
    is left alone until nothing moves, to see that nothing is stuck.
    """

    settings: Settings
    requests: tuple[NewRequest, ...]
    depth: int
    chunks: int = 1
    drains: bool = True


def scope_of(target: type[Target], depth: int, *, sessions: bool = True) -> Scope:
    """Two requests that share a prefix, and a session, on six blocks of two tokens."""
    connector = target.connectors[-1]
    features = target.features_with(connector)
    requests = [
        NewRequest("r1", (1, 2, 3, 4), max_tokens=2),
        NewRequest("r2", (1, 2, 3, 4, 5), max_tokens=1, remote_tokens=2),
    ]
    if sessions and Feature.SESSIONS in features:
        requests.append(NewRequest("s1", (1, 2, 9), max_tokens=1, session=True))
    settings = Settings(
        blocks=6,
        block_size=2,
        max_running=3,
        token_budget=8,
        max_length=10,
        depth=2 if Feature.OVERLAP in features else 1,
        connector=connector,
        tier_blocks=4,
    )
    return Scope(settings, tuple(requests), depth)


@dataclass
class SmallScopeReport:
    """How many ways were gone, to how many different states, and what broke."""

    states: int = 1
    transitions: int = 0
    levels: list[int] = field(default_factory=lambda: [1])
    seconds: float = 0.0
    failure: Failure | None = None


def explore_target(
    target: type[Target],
    scope: Scope,
    report: Callable[[SmallScopeReport], None] | None = None,
) -> SmallScopeReport:
    """Every interleaving to the scope's depth, breadth first: the first failure is a shortest."""
    begin = time.monotonic()
    found = SmallScopeReport()
    frontier: list[tuple[Operation, ...]] = [()]
    session = _at(target, scope, ())
    seen: set[Hashable] = {_key(session)}
    session.target.close()
    for _ in range(scope.depth):
        following: list[tuple[Operation, ...]] = []
        for way in frontier:
            session = _at(target, scope, way)
            for number, operation in enumerate(list(_operations(session, scope))):
                if number:
                    session = _at(target, scope, way)
                found.transitions += 1
                failure = session.apply(operation)
                key = None if failure else _key(session)
                if failure is None and key not in seen and scope.drains:
                    failure = session.apply(Operation("drain"))
                session.target.close()
                if failure is not None:
                    found.failure = failure
                    found.seconds = time.monotonic() - begin
                    return found
                if key not in seen:
                    seen.add(key)
                    following.append((*way, operation))
            found.states, found.seconds = len(seen), time.monotonic() - begin
            if report is not None:
                report(found)
        frontier = following
        if not frontier:
            break
        found.levels.append(len(frontier))
    found.seconds = time.monotonic() - begin
    return found


def _at(target: type[Target], scope: Scope, way: tuple[Operation, ...]) -> Session:
    """A fresh engine on which a way was gone again."""
    session = Session(target, scope.settings)
    for operation in way:
        failure = session.apply(operation)
        assert failure is None, "an engine that does not repeat itself"
    return session


def _key(session: Session) -> Hashable:
    """What is seen of a state: the snapshot, and what the clients have done."""
    clients = tuple(
        (name, tuple(client.tokens), tuple(client.chunks), client.turns, client.closed)
        for name, client in sorted(session.oracle.clients.items())
    )
    return session.now, clients


def _operations(session: Session, scope: Scope) -> Iterator[Operation]:
    """What may be tried next; what makes no sense is left out."""
    now, settings = session.now, scope.settings
    for operation in _thinkable(session, now, scope):
        if operation.name == "step" and now.steps_in_flight >= settings.depth:
            continue
        if operation.name == "finish_step" and not now.steps_in_flight:
            continue
        if session.oracle.may_send(operation):
            yield operation


def _thinkable(session: Session, now: Snapshot, scope: Scope) -> Iterator[Operation]:
    features = session.target.features_with(scope.settings.connector)
    added = len(session.oracle.clients)
    if added < len(scope.requests):
        yield Operation("add", (scope.requests[added],))
    yield Operation("step")
    yield Operation("finish_step")
    for transfer in now.transfers:
        if transfer.open and not transfer.lost:
            yield Operation("complete", (transfer.id,))
            if Feature.FAILURES in features and transfer.kind == "LOAD":
                yield Operation("fail", (transfer.id, 0))
    for name, client in session.oracle.clients.items():
        view = now.request(name)
        live = view is not None and view.known and not view.finished
        if not live:
            continue
        if client.request.session:
            sent = client.turns - 1 + len(client.chunks)
            if sent < scope.chunks:
                yield Operation("chunk", (name, (7,), 1))
            yield Operation("close_input", (name,))
        yield Operation("abort", (name,))
    if Feature.RESET in features:
        yield Operation("reset", (False, False))
    if Feature.RESET_RUNNING in features:
        yield Operation("reset", (True, False))
    if Feature.CLOCK in features:
        yield Operation("tick")
