"""Faults of the reference engine in the life of its requests: steps, sessions, who makes way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvproof.statemachine import RefusedError, RequestEvent
from kvproof.statemachine.states import LIVE, RUNNING

from ...reference.pool import Slots
from ...reference.records import Request, Row
from ...reference.target import ObservedEngine
from .seeding import Seeded, seeding

FAULTS: list[Seeded] = []
seeded = seeding(FAULTS)


@seeded("delivered")
class StaleOutput(ObservedEngine):
    """The output of a step that is stale is delivered all the same."""

    def settle(self, row: Row, step: int, misread: Any) -> None:
        stale = step <= row.request.facts.stale_step
        super().settle(row, step, misread)
        if stale and row.sampled is not None and row.request.facts.state in LIVE:
            row.request.delivered.append(row.sampled)


@seeded("attended", "covered", "delivered", "hash-is-content", "no-exception")
class ResumedTooFar(ObservedEngine):
    """A preempted request goes on where it was, and its blocks are gone."""

    def fire(self, request: Request, event: RequestEvent, *a: Any, **told: Any) -> bool:
        written = request.facts.written
        went = super().fire(request, event, *a, **told)
        if went and event == RequestEvent.PREEMPT:
            request.facts.computed = request.facts.written = written
        return went


@seeded("not-forgotten", seed=10)
class SessionLost(ObservedEngine):
    """A session whose next chunk is already there when its turn ends is in no queue."""

    def take_chunk(self, request: Request, tokens: list[int], max_tokens: int) -> None:
        super().take_chunk(request, tokens, max_tokens)
        if request.chunks:
            del self.requests[request.id]


@seeded("within-length", seed=10)
class SessionOverLength(ObservedEngine):
    """A session's chunk is taken however long the session already is."""

    def chunk(self, request_id: str, tokens: Sequence[int], max_tokens: int = 4) -> None:
        self.facts.model_length += 100
        self.facts.pool_blocks += 100
        try:
            super().chunk(request_id, tokens, max_tokens)
        finally:
            self.facts.model_length -= 100
            self.facts.pool_blocks -= 100


@seeded("own-tokens", "delivered")
class SessionDropsToken(ObservedEngine):
    """A session's last token is lost when its next chunk comes."""

    def take_chunk(self, request: Request, tokens: list[int], max_tokens: int) -> None:
        request.tokens[-1:] = [*tokens[:1]]
        super().take_chunk(request, tokens, max_tokens)


@seeded("hash-is-content", "attended")
class StaleHash(ObservedEngine):
    """A session's blocks keep the hash of the tokens that were there before its next chunk."""

    def slots(self, request: Request, blocks: int) -> list[Slots]:
        slots = super().slots(request, blocks)
        if request.facts.turn_start and request.facts.state == RUNNING:
            return [tuple(reversed(part)) for part in slots]
        return slots


@seeded("parked-give-way", "progress")
class HoldersDeadlock(ObservedEngine):
    """Requests that hold blocks and do not run never give them up."""

    def must_make_way(self, holder: Request, request: Request, free: int, needed: int) -> bool:
        return False


@seeded("progress")
class IdlesWithWork(ObservedEngine):
    """The engine stops stepping when nothing runs, with requests waiting."""

    def step(self) -> int | None:
        if self.facts.processed > 3 and not self.in_state(RUNNING):
            return None
        return super().step()


@seeded("refused-changes-nothing")
class RefusedChunkQueued(ObservedEngine):
    """A chunk that is refused has been queued."""

    def chunk(self, request_id: str, tokens: Sequence[int], max_tokens: int = 4) -> None:
        try:
            super().chunk(request_id, tokens, max_tokens)
        except RefusedError:
            self.known(request_id).tokens += list(tokens)
            raise


@seeded("counters")
class ChunkCountedTwice(ObservedEngine):
    """A chunk that is queued is counted twice."""

    def chunk(self, request_id: str, tokens: Sequence[int], max_tokens: int = 4) -> None:
        super().chunk(request_id, tokens, max_tokens)
        request = self.known(request_id)
        request.facts.queued_chunks += bool(request.chunks)
