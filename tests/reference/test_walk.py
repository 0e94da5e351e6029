"""Random walks: whatever clients, tiers and operators do, every invariant holds after each call."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, ClassVar

import pytest
from kvproof.specs.fuzz.generation import Generator, RandomDraw, plan
from kvproof.specs.fuzz.run import Failure, explore
from kvproof.specs.fuzz.target import Snapshot
from kvproof.statemachine import EngineMode, RefusedError, RequestEvent, blocks
from kvproof.statemachine.answers import HAND_OVER, RELEASE
from kvproof.statemachine.states import CACHE, CANCELLING, QUARANTINED, RUNNING, WEIGHTS

from .driving import copies, fence, finish, turns
from .engine import Engine
from .pool import Pool
from .records import Config, Request
from .target import ReferenceTarget
from .tier import HostTier

ASKED_TO_STOP = (CANCELLING, QUARANTINED)


class Walk:
    """An engine, and one random call after the other."""

    def __init__(self, seed: int, kind: type[Engine] = Engine) -> None:
        self.chance = random.Random(seed)
        self.e = kind(
            Config(
                blocks=self.chance.choice((5, 8)),
                steps_ahead=self.chance.choice((1, 2)),
                max_running=self.chance.choice((1, 2, 4)),
                token_budget=self.chance.choice((4, 16)),
                model_length=20,
            ),
            HostTier,
        )
        self.sent: dict[str, list[list[int]]] = {}  # what each client sent: prompt and chunks
        self.requests: dict[str, Request] = {}
        self.done: Counter[str] = Counter()
        self.calls = [self.step] * 8 + [self.finish_step] * 8 + [self.end_a_copy] * 4
        self.calls += [self.add] * 3 + [self.chunk] * 2
        self.calls += [
            self.abort,
            self.close,
            self.grammar,
            self.time,
            self.reset,
            self.pause,
            self.resume,
            self.resume,
            self.sleep,
            self.wake,
            self.wake,
            self.weights,
        ]

    def walk(self, calls: int) -> None:
        for _ in range(calls):
            call = self.chance.choice(self.calls)
            try:
                call()
                self.done[call.__name__] += 1
            except RefusedError:
                self.done[f"{call.__name__} refused"] += 1
            self.check()

    def check(self) -> None:
        self.e.check()
        for name, request in self.requests.items():
            expected = turns(*self.sent[name])
            assert request.delivered == expected[: len(request.delivered)], name

    def end(self) -> None:
        """Everything is let run out: nothing may be left, not even in quarantine."""
        while self.e.facts.mode == EngineMode.SLEEPING:
            self.e.wake()
        if self.e.facts.mode != EngineMode.ACTIVE:
            self.e.resume()
        for request in self.e.requests.values():
            self.e.grammar(request.id, True)
        finish(self.e)
        for number in list(self.e.transfers):
            fence(self.e, number)
        self.e.shutdown()
        finish(self.e)
        self.check()

    # --- the calls -------------------------------------------------------------------------------

    def step(self) -> None:
        self.e.step()

    def finish_step(self) -> None:
        if self.e.launched:
            self.e.finish_step()

    def add(self) -> None:
        name = f"r{len(self.sent)}"
        start = self.chance.choice((1, 1, 40))
        prompt = list(range(start, start + self.chance.randrange(1, 12)))
        session = self.chance.random() < 0.5
        grammar = self.chance.random() < 0.1
        self.sent[name] = [prompt]
        self.requests[name] = self.e.add(
            name, prompt, session=session, grammar=grammar, priority=self.chance.randrange(2)
        )

    def some(self) -> str:
        return self.chance.choice([*self.e.requests, "nobody"])

    def chunk(self) -> None:
        name = self.some()
        tokens = [self.chance.randrange(60, 70) for _ in range(self.chance.randrange(5))]
        self.e.chunk(name, tokens)
        self.sent[name].append(tokens)

    def abort(self) -> None:
        self.e.abort(self.some())

    def close(self) -> None:
        self.e.close_input(self.some())

    def grammar(self) -> None:
        self.e.grammar(self.some(), self.chance.random() < 0.8)

    def time(self) -> None:
        self.e.advance(self.chance.choice((1.0, 15.0, 40.0)))

    def end_a_copy(self) -> None:
        """A copy ends as it may, or a signal comes that nobody waits for."""
        number = self.chance.choice([*self.e.transfers, self.e.started + 1])
        kind = self.chance.choice(("landed", "landed", "landed", "failed", "fenced", "begun"))
        tier, valid = self.e.tier, 0
        assert tier is not None
        transfer = self.e.transfers.get(number)
        if transfer is not None and kind == "landed" and number in copies(self.e):
            tier.land(number)
        elif transfer is not None and kind == "failed" and number in copies(self.e):
            valid = self.chance.randrange(len(transfer.blocks) + 1)
            tier.fail(number, valid)
        elif transfer is not None and kind == "fenced" and transfer.facts.state in ASKED_TO_STOP:
            tier.stop(number)
        self.e.signal(number, kind, valid)

    def reset(self) -> None:
        flags = [self.chance.random() < 0.5 for _ in range(2)]
        self.e.reset(*flags, wait=self.chance.choice((0.0, 20.0)))

    def pause(self) -> None:
        self.e.pause(self.chance.choice(("abort", "wait", "keep")))

    def resume(self) -> None:
        self.e.resume()

    def sleep(self) -> None:
        mode = self.chance.choice(("abort", "wait", "keep"))
        asleep = self.e.sleep(self.chance.choice((1, 2)), mode)
        self.done["slept"] += asleep

    def wake(self) -> None:
        self.e.wake(self.chance.choice((WEIGHTS, CACHE, WEIGHTS + CACHE)))

    def weights(self) -> None:
        self.done["new weights"] += self.e.weights_changed()


@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_every_invariant_holds_and_nothing_is_left(seed: int) -> None:
    walk = Walk(seed)
    walk.walk(150)
    walk.end()
    assert walk.e.facts.mode == EngineMode.STOPPED
    assert (walk.e.requests, walk.e.transfers, walk.e.holds_left()) == ({}, {}, 0)
    assert len(walk.e.pool.free()) == walk.e.config.blocks


def test_the_walks_get_everywhere() -> None:
    done: Counter[str] = Counter()
    for seed in range(100, 112):
        walk = Walk(seed)
        walk.walk(150)
        done += walk.done
    for call in ("slept", "new weights", "reset", "chunk refused", "resume refused", "end_a_copy"):
        assert done[call], call


class HandsNothingOver(Pool):
    """Blocks are freed under the step that still touches them."""

    def request_holds(self, commands: int, *rest: Any) -> list[int]:
        if commands & HAND_OVER:
            commands ^= HAND_OVER | RELEASE
        return super().request_holds(commands, *rest)


class ReleasesTwice(Pool):
    """A landed load's blocks are released once more than they were taken."""

    def transfer_holds(self, commands: int, owner: Any, covered: Any, writes: bool) -> None:
        super().transfer_holds(commands, owner, covered, writes)
        if commands & RELEASE and writes:
            for block in covered:
                blocks.release(self.facts[block])


class FreesUnderAStep(Engine):
    pool_class = HandsNothingOver


class FreesTwice(Engine):
    pool_class = ReleasesTwice


class KeepsComputedTokens(Engine):
    """A reclaimed session believes that its KV is still there."""

    def fire(self, request: Request, event: RequestEvent, *rest: Any, **told: Any) -> bool:
        computed = request.facts.computed
        went = super().fire(request, event, *rest, **told)
        if event == RequestEvent.RECLAIM and went:
            request.facts.computed = computed
        return went


class LosesAToken(Engine):
    """A session's next turn forgets the last token of the one before."""

    def take_chunk(self, request: Request, tokens: list[int], max_tokens: int) -> None:
        request.tokens.pop()
        super().take_chunk(request, tokens, max_tokens)


class NeverReclaims(Engine):
    """Parked sessions keep their blocks whoever lacks some."""

    def must_make_way(self, *_: Any) -> bool:
        return False


class PublishesEarly(Engine):
    """Blocks become hits when their step is launched."""

    def step(self) -> int | None:
        number = super().step()
        for request in self.in_state(RUNNING) if number else []:
            whole = request.facts.computed // self.config.block_size
            for block, slots in zip(request.table, self.slots(request, whole), strict=False):
                self.pool.publish(block, slots)
        return number


FAULTY = [
    FreesUnderAStep,
    FreesTwice,
    KeepsComputedTokens,
    LosesAToken,
    NeverReclaims,
    PublishesEarly,
]


def goes_wrong(kind: type[Engine], seed: int) -> bool:
    """Whether a walk finds something wrong with an engine."""
    walk = Walk(seed, kind)
    try:
        walk.walk(150)
        walk.end()
        assert not walk.e.requests
    except (AssertionError, RefusedError):
        return True
    return False


@pytest.mark.parametrize("kind", FAULTY)
def test_a_seeded_fault_is_found_within_twenty_walks(kind: type[Engine]) -> None:
    assert any(goes_wrong(kind, seed) for seed in range(20))


class CheckedTarget(ReferenceTarget):
    """The fuzzer's target, with the engine's own check beside the oracle's rules."""

    looks: ClassVar[int] = 0

    def snapshot(self) -> Snapshot:
        """See Target."""
        self.engine.check()
        type(self).looks += 1
        return super().snapshot()


def fuzz(seed: int, operations: int) -> Failure | None:
    """One run of the fuzzer; every second one with an environment that loses and repeats."""
    draw = RandomDraw(seed)
    generator = Generator(plan(draw, CheckedTarget, faults=seed % 2 == 0), draw)
    return explore(CheckedTarget, generator, operations)[1]


@pytest.mark.parametrize("seed", range(40))
def test_the_fuzzer_finds_nothing_in_the_reference_engine(seed: int) -> None:
    assert fuzz(seed, 80) is None
    assert CheckedTarget.looks


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_the_fuzzer_finds_nothing_in_the_reference_engine_in_long_runs(seed: int) -> None:
    assert fuzz(seed, 400) is None
