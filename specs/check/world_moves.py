"""Everything that can happen in a tiny instance, one event after another.

The moves are those of `system`, told the truth by whoever tells it. A move that does not go leaves
no state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...statemachine.states import (
    ABSENT,
    CANCELLING,
    FINISHED_REPETITION,
    FINISHED_STOPPED,
    IN_FLIGHT,
    LIVE,
    LOAD,
    QUEUED,
    EngineEvent,
    RequestEvent,
    TransferEvent,
)
from .world import State, World
from .world_doing import Attempt, Doing, Move, Pick

R, T, E = RequestEvent, TransferEvent, EngineEvent
OPEN = (QUEUED, IN_FLIGHT, CANCELLING)


@dataclass(frozen=True)
class Done:
    """A move that went: in words, the state that it left, the rows that decided, what was told."""

    words: str
    state: State
    rows: tuple[tuple[str, int], ...]
    action: str
    #: What the events were told, by variable; and how each block was taken.
    told: Mapping[str, int] = field(default_factory=dict)
    picks: Mapping[int, Pick] = field(default_factory=dict)
    #: The request and the transfer that acted.
    acting: tuple[int | None, int | None] = (None, None)


class Moves(Doing):
    """The moves of one instance."""

    def of(self, state: State, themes: frozenset[str] | None = None) -> Iterator[Done]:
        """All moves that go in a state; `themes` leaves those of some actions only."""
        for action, words, move in self._tried(state):
            if themes is not None and action not in themes:
                continue
            attempt = Attempt(World(self.shape, state))
            if move(attempt) and attempt.went:
                yield Done(
                    words, attempt.world.state(), tuple(attempt.rows), action, attempt.told,
                    attempt.picks, attempt.acting,
                )  # fmt: skip

    # --- what is tried --------------------------------------------------------------------------

    def _tried(self, state: State) -> Iterator[tuple[str, str, Move]]:
        world = World(self.shape, state)
        for request in range(self._size.requests):
            if request and not any(world[f"r{before}"].arrival for before in range(request)):
                break  # requests are alike: the first one comes first
            yield from self._request_moves(world, request)
        for transfer in range(self._size.transfers):
            yield from self._transfer_moves(world, transfer)
        yield from self._engine_moves(world)
        for block in range(self._size.blocks):
            if world[f"b{block}"].cached:
                yield "evict", f"block {block} is evicted", self._evict(block)

    def _request_moves(self, world: World, i: int) -> Iterator[tuple[str, str, Move]]:
        r, e = world[f"r{i}"], world["e"]

        def move(event: RequestEvent, words: str = "", **told: int) -> tuple[str, str, Move]:
            name = event.name.lower()
            return name, f"{name} r{i}{words and ' ' + words}", self._fires(i, event, told)

        if r.state == 0:
            for tokens, words in ((1, "one token"), (self._size.model_length, "too long")):
                yield move(R.ADD, words, tokens=tokens, arrival=i + 1)
            yield move(R.ADD, "a session", tokens=1, arrival=i + 1, resumable=True)
            yield move(R.ADD, "with a grammar", tokens=1, arrival=i + 1, grammar=True)
            return
        if r.state not in LIVE:
            yield move(R.FORGET, idle=True)
            return
        yield move(R.GRAMMAR_READY)
        yield move(R.GRAMMAR_FAILED)
        yield from self._taking(world, i)
        for blocks in range(1, r.covered):
            yield move(R.TRIM, f"to {blocks}", blocks=blocks)
        room = r.covered * e.block_size - r.computed
        for tokens in sorted({1, max(1, min(room, e.block_size))}):
            yield "launch", f"a step with {tokens} token of r{i} is launched", self._step(i, tokens)
        in_flight = r.computed - r.written
        if in_flight > 0:
            for blocks in range(r.hashed, (r.written + in_flight) // e.block_size + 1):
                yield move(
                    R.PUBLISH, f"{in_flight} tokens, {blocks} blocks", step=r.newest_step,
                    tokens=in_flight, blocks=blocks,
                )  # fmt: skip
        yield move(R.OUTPUT, step=r.newest_step, tokens=1)
        yield move(R.PREEMPT, forced=True)
        queued = r.queued_tokens - max(r.queued_chunks - 1, 0)
        for reason, words in ((FINISHED_STOPPED, "stop"), (FINISHED_REPETITION, "repetition"),
                              (0, "length")):  # fmt: skip
            yield move(R.STOP, words, step=r.newest_step, reason=reason, tokens=queued)
        yield move(R.STOP, "at the limit", step=r.newest_step, at_limit=True)
        yield move(R.CHUNK, tokens=1)
        yield move(R.CLOSE_INPUT)
        yield move(R.RECLAIM)
        yield move(R.ABORT)
        yield move(R.ERROR)
        yield move(R.DEADLINE, expired=True)

    def _taking(self, world: World, i: int) -> Iterator[tuple[str, str, Move]]:
        """Admissions and growth, with the blocks that they would take."""
        r, e = world[f"r{i}"], world["e"]
        free = [
            block for block in range(self._size.blocks)
            if self._blocks.may_hand_out(world[f"b{block}"])
        ]  # fmt: skip
        promised = sum(
            world[f"r{other}"].reserved for other in range(self._size.requests) if other != i
        )
        hits: list[int] = []
        while r.covered == 0:
            found = [
                block for block in range(self._size.blocks)
                if self._blocks.may_hit(world[f"b{block}"])
                and world[f"b{block}"].hashed_as == len(hits) + 1
                and world[f"more{block}"].epoch == e.epoch and block not in hits
            ]  # fmt: skip
            if not found:
                break
            hits.append(found[0])
        left = [block for block in free if block not in hits]
        room = len(free) - promised
        taken = len([block for block in hits if block in free])
        for count in range(min(len(left), 2) + 1):
            told = {
                "blocks": len(hits) + count, "hits": len(hits), "fresh": taken + count,
                "free": room,
            }  # fmt: skip
            new = left[:count]
            blocks = _taken(r.covered, hits, new)
            words = f"{len(hits)} hits, {count} fresh"
            yield "admit", f"admit r{i}: {words}", self._fires(i, R.ADMIT, told, blocks)
            grown = {"blocks": count, "free": room}
            yield "grow", f"grow r{i} by {count}", self._fires(
                i, R.GROW, grown, _taken(r.covered, [], new)
            )  # fmt: skip
            if count:
                yield from self._naming_again(world, i, grown, new)
            for transfer in range(self._size.transfers):
                t = world[f"t{transfer}"]
                remote = {
                    **told, "transfer": transfer + 1, "remote_tokens": 10**6, "joinable": True,
                }  # fmt: skip
                if t.state == ABSENT and count:
                    yield (
                        "admit_remote", f"admit_remote r{i}: {words}, t{transfer} starts",
                        self._loads(i, transfer, remote, blocks, new),
                    )  # fmt: skip
                elif t.state in (QUEUED, IN_FLIGHT) and t.kind == LOAD and not count:
                    yield from self._joining(world, i, transfer, remote, hits)

    def _naming_again(
        self, world: World, i: int, told: dict[str, int], new: list[int]
    ) -> Iterator[tuple[str, str, Move]]:
        """Growth that names, beside fresh blocks, one that the table has: to be taken once."""
        for block in range(self._size.blocks):
            position = world[f"place{i}.{block}"].position
            if position >= 0:
                taken = {**_taken(world[f"r{i}"].covered, [], new), block: Pick(position)}
                yield (
                    "grow", f"grow r{i} by {len(new)}, block {block} of its table is named again",
                    self._fires(i, R.GROW, told, taken),
                )  # fmt: skip

    def _joining(
        self, world: World, i: int, transfer: int, told: dict[str, int], hits: list[int]
    ) -> Iterator[tuple[str, str, Move]]:
        """Join a load: its blocks that continue the request's own prefix are taken as well."""
        r = world[f"r{i}"]
        joined = sorted(
            (world[f"copy{transfer}.{block}"].prefix, block)
            for block in range(self._size.blocks)
            if world[f"copy{transfer}.{block}"].carried and world[f"place{i}.{block}"].position < 0
        )
        start = r.covered + len(hits)
        blocks = [block for prefix, block in joined if prefix >= start + 1]
        if [prefix for prefix, _ in joined][: len(blocks)] != [
            start + 1 + number for number in range(len(blocks))
        ] or not blocks:
            return
        taken = _taken(r.covered, hits, blocks, fresh=False)
        told = {**told, "blocks": len(hits) + len(blocks)}
        yield (
            "admit_remote", f"admit_remote r{i}: joins t{transfer}",
            self._joins(i, transfer, told, taken, blocks),
        )  # fmt: skip

    def _transfer_moves(self, world: World, j: int) -> Iterator[tuple[str, str, Move]]:
        t = world[f"t{j}"]
        if t.state == ABSENT:
            hits = [
                block for block in range(self._size.blocks)
                if self._blocks.may_hit(world[f"b{block}"])
            ]  # fmt: skip
            for block in hits:
                yield "start", f"store t{j} of block {block} starts", self._stores(j, [block])
            return
        for event in (T.BEGIN, T.LAND, T.FAIL, T.CANCEL, T.FENCE, T.GIVE_UP, T.RETIRE):
            name = event.name.lower()
            yield name, f"{name} t{j}", self._moves_transfer(j, event)
        yield "fail", f"fail t{j}: its blocks are complete", self._moves_transfer(
            j, T.FAIL, valid=True
        )  # fmt: skip
        yield "fail", f"fail t{j}, fatally", self._moves_transfer(j, T.FAIL, fatal=True)
        yield "lease_over", f"lease_over t{j}", self._moves_transfer(j, T.LEASE_OVER)

    def _engine_moves(self, world: World) -> Iterator[tuple[str, str, Move]]:
        e, counted = world["e"], self._counted(world)

        def move(event: EngineEvent, words: str = "", **told: int) -> tuple[str, str, Move]:
            name = event.name.lower()
            asked = {**told, **counted}
            return name, f"{name}{words and ' ' + words}", self._fires_engine(event, asked)

        if not (e.weights_resident and e.cache_resident):
            yield move(E.LAUNCH_STEP)  # elsewhere with the request that it computes
        if e.launched > e.processed:
            yield move(E.STEP_PROCESSED, step=e.processed + 1)
        for pausing, words in ((1, "abort"), (2, "wait"), (3, "keep")):
            yield move(E.PAUSE, words, pausing=pausing)
        for event in (E.PAUSE_REACHED, E.PAUSE_FAILED, E.RESUME, E.SLEEP_FAILED, E.WAKE_FAILED,
                      E.RESET_PENDING, E.RESET_DECIDED, E.WEIGHTS_CHANGED, E.SHUTDOWN,
                      E.DRAINED, E.ADD, E.CHUNK, E.SIGNAL, E.LEASE):  # fmt: skip
            yield move(event)
        yield move(E.SLEEP, level=1, pausing=3)
        for tags, words in ((1, "weights"), (2, "cache"), (3, "both")):
            yield move(E.WAKE, words, tags=tags)
            yield move(E.WOKE, words, tags=tags)
        if e.launched == e.processed:
            for force in (False, True):
                for tier in (False, True):
                    words = f"{'forced' if force else 'plain'}{' with the tier' * tier}"
                    yield "reset", f"reset, {words}", self._resets(force, tier)


def _taken(covered: int, hits: list[int], new: list[int], *, fresh: bool = True) -> dict[int, Pick]:
    """Hits first, then the others, behind what the table has."""
    taken = {block: Pick(covered + number) for number, block in enumerate(hits)}
    for number, block in enumerate(new, covered + len(hits)):
        taken[block] = Pick(number, fresh)
    return taken
