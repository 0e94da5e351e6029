"""How the moves of a tiny instance are done: an event, its commands on every block, what follows.

The same cells and the same parts as in `system`, with numbers in the place of symbols.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...statemachine.answers import (
    ANSWER_MASK,
    COMMAND_MASK,
    GO,
    ROW_SHIFT,
    STOP_WAITING,
    WAIT,
)
from ...statemachine.reset import NO_EVENT
from ...statemachine.states import (
    CANCELLING,
    FAILED,
    IN_FLIGHT,
    JOIN,
    LANDED,
    LEAVE,
    LIVE,
    LOAD,
    PREEMPT,
    PREEMPTED,
    QUEUED,
    RESET,
    RUNNING,
    START,
    STORE,
    TRANSFER_FAILED,
    TRANSFER_LANDED,
    EngineEvent,
    RequestEvent,
    TransferEvent,
)
from .world import Shape, World

R, T, E = RequestEvent, TransferEvent, EngineEvent
OPEN = (QUEUED, IN_FLIGHT, CANCELLING)


@dataclass(frozen=True)
class Pick:
    """How an event takes a block."""

    position: int = -1
    fresh: bool = False
    loaded: bool = False


class Attempt:
    """A move in the making."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rows: list[tuple[str, int]] = []
        self.told: dict[str, int] = {}
        self.picks: dict[int, Pick] = {}
        self.acting: tuple[int | None, int | None] = (None, None)
        self.commands = 0
        self.waited = 0
        self.went = False

    def note(self, machine: str, code: int) -> None:
        self.rows.append((machine, code >> ROW_SHIFT))
        self.went = True

    def note_if(self, code: int) -> None:
        if code & ANSWER_MASK == GO:
            self.note("transfer", code)

    def tell(self, record: str, told: dict[str, int]) -> None:
        self.told.update({f"{record}.{name}": value for name, value in told.items()})


#: Carries a move out; says whether it went.
Move = Callable[[Attempt], bool]


class Doing:
    """Carries moves of one instance out."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        declaration = shape.declaration
        self._request = declaration.machine("request")
        self._transfer = declaration.machine("transfer")
        self._engine = declaration.machine("engine")
        joined = declaration.modules["joined"]
        self._request_parts = joined.REQUEST_PARTS
        self._transfer_parts = joined.TRANSFER_PARTS
        self._blocks = declaration.modules["blocks"]
        self._reset = declaration.modules["reset"]
        self._size = shape.size

    def _fires(
        self, i: int, event: int, told: dict[str, int], taken: dict[int, Pick] | None = None
    ) -> Move:
        def fire(a: Attempt) -> bool:
            if not self._request_event(a, i, event, told, taken or {}):
                return False
            return self._leaves(a, i)

        return fire

    def _request_event(
        self, a: Attempt, i: int, event: int, told: dict[str, int], taken: dict[int, Pick]
    ) -> bool:
        """Fire an event of a request and carry out its commands on every block."""
        world = a.world
        r, e = world[f"r{i}"], world["e"]
        x = self.shape.ask(**told)
        covered, a.waited = r.covered, r.waits_for
        code = self._request.fire(event, r, e, x)
        if code & ANSWER_MASK != GO:
            return False
        a.note("request", code)
        a.tell("ask", told)
        a.acting = (i, a.acting[1])
        a.commands = commands = code & COMMAND_MASK
        nothing = Pick()
        for block in range(self._size.blocks):
            pick = taken.get(block, nothing)
            record = self.shape.pick(
                named=pick.position >= 0, fresh=pick.fresh, position=max(pick.position, 0),
                prefix=pick.position + 1, indexed=True, loaded=pick.loaded,
            )  # fmt: skip
            for part in self._request_parts:
                part(
                    event, commands, covered, r, e, x, record, world[f"place{i}.{block}"],
                    world[f"held{i}.{block}"], world[f"b{block}"], world[f"more{block}"],
                )  # fmt: skip
            a.picks[block] = pick
        return True

    def _leaves(self, a: Attempt, i: int) -> bool:
        if a.commands & STOP_WAITING and 0 < a.waited <= self._size.transfers:
            t = a.world[f"t{a.waited - 1}"]
            a.note_if(self._transfer.fire(LEAVE, t, a.world["e"], self.shape.transfer_ask()))
        return True

    def _loads(
        self, i: int, j: int, told: dict[str, int], taken: dict[int, Pick], new: list[int]
    ) -> Move:
        def load(a: Attempt) -> bool:
            carried = {
                block: Pick(pick.position, pick.fresh, block in new)
                for block, pick in taken.items()
            }
            if not self._request_event(a, i, R.ADMIT_REMOTE, told, carried):
                return False
            a.acting = (i, j)
            self._start(a, j, LOAD, {block: carried[block].position + 1 for block in new})
            self._join(a, j)
            return True

        return load

    def _joins(
        self, i: int, j: int, told: dict[str, int], taken: dict[int, Pick], blocks: list[int]
    ) -> Move:
        def join(a: Attempt) -> bool:
            carried = {
                block: Pick(pick.position, False, block in blocks) for block, pick in taken.items()
            }
            if not self._request_event(a, i, R.ADMIT_REMOTE, told, carried):
                return False
            a.acting = (i, j)
            self._join(a, j)
            return True

        return join

    def _join(self, a: Attempt, j: int) -> None:
        if a.commands & WAIT:
            t = a.world[f"t{j}"]
            a.note_if(self._transfer.fire(JOIN, t, a.world["e"], self.shape.transfer_ask()))

    def _stores(self, j: int, blocks: list[int]) -> Move:
        def store(a: Attempt) -> bool:
            prefixes = {block: a.world[f"b{block}"].hashed_as for block in blocks}
            return self._start(a, j, STORE, prefixes)

        return store

    def _start(self, a: Attempt, j: int, kind: int, prefixes: dict[int, int]) -> bool:
        told = {"kind": kind, "published": kind == STORE, "unshared": kind == LOAD}
        return self._transfer_event(a, j, START, told, prefixes)

    def _transfer_event(
        self,
        a: Attempt,
        j: int,
        event: int,
        told: dict[str, int],
        prefixes: dict[int, int],
        valid: bool = False,
    ) -> bool:
        world = a.world
        t, e = world[f"t{j}"], world["e"]
        code = self._transfer.fire(event, t, e, self.shape.transfer_ask(**told))
        if code & ANSWER_MASK != GO:
            return False
        a.note("transfer", code)
        a.tell("transfer_ask", told)
        a.acting = (a.acting[0], j)
        commands = code & COMMAND_MASK
        for block in range(self._size.blocks):
            pick = self.shape.pick(
                named=block in prefixes, prefix=prefixes.get(block, 0), valid=valid
            )
            for part in self._transfer_parts:
                part(
                    event, commands, t, e, pick, world[f"copy{j}.{block}"],
                    world[f"kept{j}.{block}"], world[f"b{block}"], world[f"more{block}"],
                )  # fmt: skip
        e.quarantined = sum(
            world[f"b{block}"].quarantined > 0 for block in range(self._size.blocks)
        )
        return True

    def _moves_transfer(
        self, j: int, event: int, *, valid: bool = False, fatal: bool = False
    ) -> Move:
        def move(a: Attempt) -> bool:
            world = a.world
            t = world[f"t{j}"]
            was_open = t.state in OPEN
            if event in (T.LAND, T.FAIL, T.FENCE):
                for block in range(self._size.blocks):
                    world[f"copy{j}.{block}"].working = False
            if not self._transfer_event(a, j, event, {"expired": True}, {}, valid):
                return False
            if was_open and t.state not in OPEN:
                for i in range(self._size.requests):
                    if world[f"r{i}"].waits_for == j + 1:
                        self._told_of_end(a, i, j, valid, fatal)
            return True

        return move

    def _told_of_end(self, a: Attempt, i: int, j: int, valid: bool, fatal: bool) -> None:
        world = a.world
        r, e = world[f"r{i}"], world["e"]
        loaded = [
            world[f"place{i}.{block}"].position
            for block in range(self._size.blocks)
            if world[f"copy{j}.{block}"].carried and world[f"place{i}.{block}"].position >= 0
        ]
        if world[f"t{j}"].state == LANDED:
            blocks = max([r.hashed, *(position + 1 for position in loaded)])
            told = {"transfer": j + 1, "blocks": blocks,
                    "tokens": max(blocks * e.block_size, r.computed)}  # fmt: skip
            event = TRANSFER_LANDED
        else:
            kept = r.covered if valid else min([*loaded, r.hashed])
            failed = world[f"t{j}"].state == FAILED
            told = {"transfer": j + 1, "blocks": kept if failed else 0, "fatal": fatal}
            event = TRANSFER_FAILED
        if self._request_event(a, i, event, told, {}):
            self._leaves(a, i)

    def _step(self, i: int, tokens: int) -> Move:
        def step(a: Attempt) -> bool:
            e = a.world["e"]
            code = self._engine.fire(E.LAUNCH_STEP, e, self.shape.engine_ask())
            if code & ANSWER_MASK != GO:
                return False
            a.note("engine", code)
            return self._request_event(a, i, R.LAUNCH, {"step": e.launched, "tokens": tokens}, {})

        return step

    def _fires_engine(self, event: int, asked: dict[str, int]) -> Move:
        def fire(a: Attempt) -> bool:
            world = a.world
            code = self._engine.fire(event, world["e"], self.shape.engine_ask(**asked))
            if code & ANSWER_MASK != GO:
                return False
            a.note("engine", code)
            a.tell("engine_ask", asked)
            if event == E.STEP_PROCESSED:
                for i in range(self._size.requests):
                    for block in range(self._size.blocks):
                        self._blocks.step_processed(
                            asked["step"], world[f"held{i}.{block}"], world[f"b{block}"]
                        )
            return True

        return fire

    def _counted(self, world: World) -> dict[str, int]:
        """What the engine's events are told of all requests and transfers."""
        requests = [world[f"r{i}"] for i in range(self._size.requests)]
        transfers = [world[f"t{j}"] for j in range(self._size.transfers)]
        steps = sum(
            world[f"held{i}.{block}"].by_step
            for i in range(self._size.requests)
            for block in range(self._size.blocks)
        )
        holders = sum(t.state in OPEN for t in transfers)
        return {
            "running": sum(r.state in (RUNNING, PREEMPTED) for r in requests),
            "live": sum(r.state in LIVE for r in requests),
            "holders": holders,
            "holds": holders + steps + sum(r.covered > 0 for r in requests),
        }

    def _resets(self, force: bool, tier: bool) -> Move:
        def reset(a: Attempt) -> bool:
            world, declared = a.world, self._reset
            code = self._engine.fire(RESET, world["e"], self.shape.engine_ask())
            if code & ANSWER_MASK != GO:
                return False
            a.note("engine", code)
            requests = [world[f"r{i}"] for i in range(self._size.requests)]
            transfers = [world[f"t{j}"] for j in range(self._size.transfers)]
            refusing = sum(
                declared.request_refuses(r.state, r.covered > 0, force) for r in requests
            ) + sum(declared.transfer_refuses(t.state) for t in transfers)
            a.tell("reset", {"refusing": refusing, "force": force, "tier_asked": tier,
                             "tier_cleared": True})  # fmt: skip
            for i, r in enumerate(requests):
                event = declared.sent_event(refusing, r.state, r.covered > 0)
                if event != NO_EVENT:
                    told = {"forced": event == PREEMPT}
                    self._request_event(a, i, event, told, {})
            for block in range(self._size.blocks):
                if declared.drops_prefixes(refusing):
                    self._blocks.drop(world[f"b{block}"])
                if declared.clears_tier(refusing, tier):
                    world[f"more{block}"].tier_present = False
            return True

        return reset

    def _evict(self, block: int) -> Move:
        def evict(a: Attempt) -> bool:
            self._blocks.drop(a.world[f"b{block}"])
            a.went = True
            return True

        return evict
