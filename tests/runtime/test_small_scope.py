"""Every interleaving of a few requests and blocks, two steps in flight, by breadth-first search.

Three requests, one of them a session, and five blocks, which are too few for all. A state that was
reached before is not gone on from. From every state the engine must be able to finish everybody
with the right tokens and nothing held: so none of them is a dead end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from kvproof.runtime.api import EngineConfig, FinishReason
from kvproof.runtime.engine import EngineCore
from kvproof.runtime.fake import FakeRunner, expected_tokens
from kvproof.runtime.holds import BlockLedger, StepHold
from kvproof.runtime.prefix import PrefixIndex
from kvproof.runtime.protocols import Connector
from kvproof.runtime.sampling_params import SamplingParams
from kvproof.statemachine import RequestState

from .harness import Heard

PROMPTS = {"a": [1, 1, 1], "b": [1, 1, 2, 2], "s": [3, 3, 3]}
TOKENS = {"a": 3, "b": 2, "s": 2}
CHUNK = [4, 4]
OPERATIONS = (
    "launch", "finish", "device", "abort a", "abort b", "abort s", "chunk", "close", "reset",
    "force",
)  # fmt: skip


class World:
    """One engine with its three requests, and what can be done to it."""

    operations: tuple[str, ...] = OPERATIONS

    def __init__(self) -> None:
        self.now = 0.0
        self.runner = FakeRunner(5, 2, manual=True)
        self.core = EngineCore(
            EngineConfig(
                num_blocks=5, block_size=2, max_model_len=10, max_num_seqs=3,
                max_batched_tokens=6, steps_in_flight=2,
            ),
            self.runner,
            self.connector(),
            clock=lambda: self.now,
        )  # fmt: skip
        self.clients = {name: Heard(list(prompt)) for name, prompt in PROMPTS.items()}
        self.chunks = 0
        self.closed = False
        for name, prompt in PROMPTS.items():
            self.core.add_request(
                name, prompt, SamplingParams(max_tokens=TOKENS[name], temperature=0.0),
                on_output=self.clients[name], resumable=name == "s",
            )  # fmt: skip

    def connector(self) -> Connector | None:
        """The tier behind the device, if the world has one."""
        return None

    def busy(self) -> bool:
        """Whether something has not ended yet that will."""
        return self.core.lifecycle.live > 0

    def close(self) -> None:
        """The world is looked at no longer."""

    def possible(self, operation: str) -> bool:
        if operation == "launch":
            return self.core.in_flight < 2
        if operation == "finish":
            return self.core.in_flight > 0
        if operation == "device":
            return self.runner.waiting_steps > 0
        if operation.startswith("abort"):
            return self.clients[operation[-1]].finish is None
        if operation in ("chunk", "close"):
            return self.clients["s"].finish is None and not self.closed and self.chunks < 2
        return True

    def do(self, operation: str) -> None:
        core = self.core
        if operation == "launch":
            core.tick()
            core.launch_step()
        elif operation == "finish":
            core.finish_step()
        elif operation == "device":
            self.runner.finish()
        elif operation.startswith("abort"):
            core.abort(operation[-1])
        elif operation == "chunk":
            core.add_chunk("s", CHUNK)
            self.chunks += 1
        elif operation == "close":
            core.close_input("s")
            self.closed = True
        else:
            core.reset_prefix_cache(operation == "force").result(0)

    def check(self) -> None:
        """The engine's own books, and every token that was delivered."""
        self.core.lifecycle.check()
        assert self.runner.corruptions == []
        counts = self.core.lifecycle.view.counts
        for block in self.runner.touched():
            assert counts[block] > 0, f"no hold on block {block}, and a launched step touches it"
        for name, client in self.clients.items():
            sequence = list(PROMPTS[name])
            for turn in client.turns:
                assert turn == expected_tokens(sequence, len(turn)), name
                sequence += turn + CHUNK

    def picture(self) -> tuple[object, ...]:
        """What the future depends on; steps are counted from the newest processed one."""
        lifecycle, ledger = self.core.lifecycle, self.core.lifecycle.ledger
        view = lifecycle.view
        requests = []
        for row in lifecycle.known_rows():
            facts = view.facts(row)
            for step in ("newest_step", "stale_step"):
                facts[step] = max(0, facts.get(step, 0) - lifecycle.processed)
            keys = tuple(lifecycle.table(row).tolist())
            requests.append((lifecycle.id_of(row), tuple(sorted(facts.items())), keys))
        steps = [
            (step.rows.tobytes(), step.starts.tobytes(), step.counts.tobytes())
            for step in lifecycle.steps_in_flight
        ]
        return (
            tuple(requests),
            ledger.counts.tobytes(),
            tuple(ledger.pool.eviction_order()),
            tuple(ledger.index.key_of(block) for block in range(5)),
            tuple(steps),
            self.runner.waiting_steps,
            self.runner.kv.slots.tobytes(),
            tuple(client.finish for client in self.clients.values()),
            (self.chunks, self.closed),
        )

    def finish_everybody(self) -> None:
        """From here on nobody is in the way: every request must end, and all must be free."""
        for _ in range(60):
            session = self.core.lifecycle.row_of("s")
            if session is not None and not self.closed:
                parked = RequestState.WAITING_FOR_STREAMING_REQ
                if self.core.lifecycle.state_of(session) == parked:
                    self.do("close")
            self.core.tick()
            launched = self.core.launch_step()
            if not self.core.finish_step() and not launched and not self.busy():
                break
        self.check()
        for name, client in self.clients.items():
            assert client.finish is not None, f"{name} never ends: {self.core.stats()}"
            if client.finish is not FinishReason.ABORT and name != "s":
                assert len(client.tokens) == TOKENS[name]
        assert self.core.holds() == []
        assert self.core.lifecycle.ledger.pool.free == 5


def replay(path: tuple[str, ...], make: Callable[[], World] = World) -> World:
    world = make()
    for operation in path:
        world.do(operation)
    return world


def explore(depth: int, make: Callable[[], World] = World) -> tuple[int, int]:
    """Go through every state up to that depth. Returns how many there are, and transitions."""
    seen: set[tuple[object, ...]] = set()
    frontier: list[tuple[str, ...]] = [()]
    transitions = 0
    for _ in range(depth):
        following = []
        for path in frontier:
            for operation, world in _successors(path, make):
                transitions += 1
                picture = world.picture()
                if picture not in seen:
                    seen.add(picture)
                    step = (*path, operation)
                    following.append(step)
                    try:
                        world.check()
                        world.finish_everybody()
                    except AssertionError as error:
                        raise AssertionError(f"after {', '.join(step)}: {error}") from error
                world.close()
        frontier = following
    return len(seen), transitions


def _successors(path: tuple[str, ...], make: Callable[[], World]) -> Iterator[tuple[str, World]]:
    world = replay(path, make)
    for operation in [each for each in world.operations if world.possible(each)]:
        # The first one goes on from the world that is there already.
        here, world = world or replay(path, make), None  # type: ignore[assignment]
        here.do(operation)
        yield operation, here


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_every_interleaving_to_depth_four() -> None:
    states, transitions = explore(4)
    assert states > 300
    assert transitions > states


@pytest.mark.long
def test_every_interleaving_to_depth_eight() -> None:
    states, transitions = explore(8)
    assert states > 8_000
    assert transitions > states


def test_a_dead_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that forgets to give preempted requests their turn again."""
    plan_waiting = EngineCore.launch_step

    def forgetful(core: EngineCore) -> bool:
        lifecycle = core.lifecycle
        if any(lifecycle.state_of(row) == RequestState.PREEMPTED for row in lifecycle.waiting):
            return False
        return plan_waiting(core)

    monkeypatch.setattr(EngineCore, "launch_step", forgetful)
    with pytest.raises(AssertionError, match="after launch, force: a never ends"):
        explore(2)


def test_a_block_that_is_freed_under_a_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hold is not handed over to the step: it is released, as if nothing was launched."""

    def release_at_once(ledger: BlockLedger, hold: StepHold) -> None:
        ledger.release(hold.blocks)

    monkeypatch.setattr(BlockLedger, "hand_over", release_at_once)
    with pytest.raises(AssertionError, match="after launch, abort a: no hold on block 0"):
        explore(2)


def test_a_block_that_is_handed_out_and_still_a_hit_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PrefixIndex, "drop", lambda index, blocks: None)
    monkeypatch.setattr(PrefixIndex, "clear", lambda index: None)
    with pytest.raises((AssertionError, KeyError)):
        explore(4)


def test_the_picture_tells_states_apart() -> None:
    assert replay(("launch",)).picture() != replay(("launch", "device")).picture()
    assert replay(("launch", "abort a")).picture() != replay(("launch",)).picture()
    assert np.array_equal(
        replay(("launch", "finish")).runner.kv.slots,
        replay(("launch", "device", "finish")).runner.kv.slots,
    )
