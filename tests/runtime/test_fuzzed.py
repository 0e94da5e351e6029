"""The fuzzer on the engine's core, and the core beside the reference engine of the tests."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from kvproof.runtime.holds import BlockLedger
from kvproof.runtime.lifecycle import Lifecycle
from kvproof.runtime.scheduler import Scheduler
from kvproof.specs.fuzz.generation import Generator, RandomDraw, plan
from kvproof.specs.fuzz.operations import drain
from kvproof.specs.fuzz.run import Failure, explore
from kvproof.specs.fuzz.stateful import stateful_test
from kvproof.specs.fuzz.target import (
    NewRequest,
    RejectedError,
    ResetAnswer,
    Settings,
    Snapshot,
    Target,
)
from kvproof.specs.fuzz.targets.runtime import RuntimeEngine

from ..reference.target import ReferenceTarget


def fuzz(seed: int, operations: int) -> Failure | None:
    """One run; every second one with an environment that loses and repeats signals."""
    draw = RandomDraw(seed)
    generator = Generator(plan(draw, RuntimeEngine, faults=seed % 2 == 0), draw)
    return explore(RuntimeEngine, generator, operations)[1]


@pytest.mark.parametrize("seed", range(16))
def test_the_fuzzer_finds_nothing(seed: int) -> None:
    assert fuzz(seed, 70) is None


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1400))
def test_the_fuzzer_finds_nothing_in_long_runs(seed: int) -> None:
    assert fuzz(seed, 300) is None


Tried = Callable[[Settings], RuntimeEngine]


@pytest.fixture
def tried() -> Iterator[Tried]:
    """Makes engines to try, and closes them."""
    with contextlib.ExitStack() as engines:
        yield lambda chosen: engines.enter_context(contextlib.closing(RuntimeEngine(chosen)))


def test_a_load_that_lacks_blocks_takes_them_from_a_running_request_that_is_stalled(
    tried: Tried,
) -> None:
    """Both waited for ever: the running one for a block, the one ahead of it for room to load."""
    engine = tried(Settings(blocks=5, max_length=20, depth=2, connector="tier"))
    engine.add(NewRequest("r1", (1, 2, 3, 4), max_tokens=1))
    drain(engine)
    engine.add(NewRequest("first", (1, 2, 3, 4), max_tokens=1, session=True))
    engine.add(NewRequest("second", (1,), max_tokens=5, session=True))
    engine.step()
    engine.chunk("second", (80,), 1)
    engine.add(NewRequest("stalled", (1, 2, 3), max_tokens=1, session=True))
    engine.finish_step()
    for _ in range(2):
        engine.step()
        engine.finish_step()
    engine.step()
    engine.chunk("stalled", (60, 61, 62, 63, 64, 65), 4)
    engine.step()
    engine.chunk("first", (70, 71, 72, 73), 1)
    assert drain(engine).stuck == ()


def test_the_engines_log_is_mute_until_the_last_engine_that_is_tried_is_closed() -> None:
    logger = logging.getLogger("kvproof.runtime")
    before = logger.level
    first, second = RuntimeEngine(Settings()), RuntimeEngine(Settings())
    first.close()
    first.close()
    assert logger.level == logging.CRITICAL
    second.close()
    assert logger.level == before


def first_rule_broken(seeds: int) -> str:
    """Of so many runs, the rule that the first one that fails has broken."""
    found = (failure.violation.rule for seed in range(seeds) if (failure := fuzz(seed, 70)))
    return next(found, "none")


def test_the_fuzzer_finds_a_block_that_is_freed_under_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(BlockLedger, "hand_over", lambda ledger, hold: ledger.release(hold.blocks))
    # Otherwise the engine's own check mode fails first.
    monkeypatch.setattr(Lifecycle, "_compare_blocks", lambda *told: None)
    assert first_rule_broken(30) == "touched-is-held"


def test_the_fuzzer_finds_a_scheduler_that_reclaims_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Scheduler, "_reclaimable", lambda scheduler, row, plan: iter(()))
    assert first_rule_broken(60) in ("progress", "parked-give-way")


TestRuntimeEngine = stateful_test(RuntimeEngine, examples=8, steps=30)
TestRuntimeEngineWithFaults = stateful_test(RuntimeEngine, faults=True, examples=8, steps=30)


class BesideTheReference(RuleBasedStateMachine):
    """The same calls on both engines: what clients see of a call, and of the end, is the same.

    When they step, and whom they preempt, is their own affair.
    """

    @initialize(
        blocks=st.integers(4, 10), depth=st.integers(1, 2), running=st.integers(1, 3),
        priority=st.booleans(),
    )  # fmt: skip
    def start(self, blocks: int, depth: int, running: int, priority: bool) -> None:
        chosen = Settings(
            blocks=blocks, depth=depth, max_running=running, max_length=24, priority=priority
        )
        self.engines: tuple[Target, Target] = (RuntimeEngine(chosen), ReferenceTarget(chosen))
        self.count = 0
        self.sessions: list[str] = []
        self.aborted: set[str] = set()

    def both(self, name: str, *arguments: object) -> None:
        answers = self.answers(name, *arguments)
        assert answers[0] == answers[1], f"{name}{arguments}: {answers}"

    def answers(self, name: str, *arguments: object) -> list[object]:
        answers: list[object] = []
        for engine in self.engines:
            try:
                answers.append(getattr(engine, name)(*arguments))
            except RejectedError:
                answers.append("rejected")
        return answers

    def rest(self) -> None:
        """Both step until nothing moves any more: who is left waits for its client."""
        for engine in self.engines:
            for _ in range(400):
                launched = engine.step()
                in_flight = engine.snapshot().steps_in_flight
                if in_flight and (not launched or in_flight == engine.settings.depth):
                    engine.finish_step()
                elif not launched:
                    break
            else:
                raise AssertionError("an engine does not come to rest")

    @rule(
        length=st.integers(1, 26), token=st.integers(1, 3), tokens=st.integers(1, 6),
        session=st.booleans(), stop_every=st.sampled_from((0, 0, 5)), priority=st.integers(0, 2),
    )  # fmt: skip
    def add(
        self, length: int, token: int, tokens: int, session: bool, stop_every: int, priority: int
    ) -> None:
        self.count += 1
        name = f"r{self.count}"
        prompt = (token,) * length
        request = NewRequest(
            name, prompt, tokens, session, priority=priority, stop_every=stop_every
        )
        try:
            self.engines[0].add(request)
        except RejectedError:
            # The reference takes it in and ends it at once; here the caller is told by an error.
            self.engines[1].add(request)
            view = self.engines[1].snapshot().request(name)
            assert view is not None
            assert view.state == "FINISHED_IGNORED"
            self.aborted.add(name)
            return
        self.engines[1].add(request)
        if session:
            self.sessions.append(name)

    @rule()
    def step(self) -> None:
        for engine in self.engines:
            if engine.snapshot().steps_in_flight < engine.settings.depth:
                engine.step()

    @rule()
    def finish(self) -> None:
        for engine in self.engines:
            if engine.snapshot().steps_in_flight:
                engine.finish_step()

    @precondition(lambda self: self.count > 0)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = f"r{data.draw(st.integers(1, self.count))}"
        self.aborted.add(name)
        self.both("abort", name)

    @precondition(lambda self: bool(self.sessions))
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.both("close_input", data.draw(st.sampled_from(self.sessions)))

    @precondition(lambda self: bool(self.sessions))
    @rule(
        data=st.data(), length=st.integers(0, 5), token=st.integers(1, 3),
        tokens=st.integers(1, 4), at_rest=st.booleans(),
    )  # fmt: skip
    def chunk(
        self, data: st.DataObject, length: int, token: int, tokens: int, at_rest: bool
    ) -> None:
        """The next turn, or one that waits for the present one to end."""
        name = data.draw(st.sampled_from(self.sessions))
        if at_rest:
            self.rest()
            self.both("chunk", name, (token,) * length, tokens)
            return
        # A session may have ended, or grown, in one engine and not yet in the other.
        answers = self.answers("chunk", name, (token,) * length, tokens)
        if answers[0] != answers[1]:
            self.aborted.add(name)
            self.answers("abort", name)

    @rule(at_rest=st.booleans())
    def plain_reset(self, at_rest: bool) -> None:
        """Done exactly when nobody holds a block, which sessions between turns may."""
        if at_rest:
            self.rest()
        for engine in self.engines:
            before = engine.snapshot()
            answer = engine.reset(False, False)
            if not before.steps_in_flight:
                assert answer.done == (not before.holds), f"who refuses a reset: {before.holds}"
            if answer.done:
                assert not any(block.cached_as for block in engine.snapshot().blocks)

    @rule(level=st.integers(1, 2))
    def sleep_and_wake(self, level: int) -> None:
        self.both("sleep", level)
        for engine in self.engines:
            assert engine.snapshot().mode == "SLEEPING"
        self.both("wake")

    @rule(mode=st.sampled_from(("keep", "wait")))
    def pause_and_resume(self, mode: str) -> None:
        self.both("pause", mode)
        self.both("resume")

    @rule()
    def forced_reset(self) -> None:
        answers = [engine.reset(True, False) for engine in self.engines]
        assert answers[0].done
        assert answers[1].done

    def teardown(self) -> None:
        if not hasattr(self, "engines"):
            return
        for name in self.sessions:
            self.both("close_input", name)
        ends = [self._end(engine) for engine in self.engines]
        for name in ends[0]:
            if name not in self.aborted:
                assert ends[0][name] == ends[1][name], f"{name} ends otherwise: {ends}"
        for engine in self.engines:
            engine.close()

    @staticmethod
    def _end(engine: Target) -> dict[str, tuple[tuple[int, ...], bool]]:
        drain(engine)
        now: Snapshot = engine.snapshot()
        assert not now.holds
        return {request.id: (request.delivered, request.finished) for request in now.requests}


def examples(number: int) -> settings:
    return settings(
        max_examples=number,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


class TestBesideTheReference(BesideTheReference.TestCase):  # type: ignore[name-defined]
    settings = examples(10)


FAULTS: dict[str, tuple[str, object, str]] = {
    "a chunk is lost": ("_append", lambda *told: None, "ends otherwise"),
    "a reset asks nobody": ("refusing", lambda lifecycle, force: (), "refuses a reset"),
}


class FirstChoice(st.DataObject):
    """For a rule that is called by hand: the first of what it may choose from."""

    def __init__(self) -> None:
        pass

    def draw(self, strategy: st.SearchStrategy[Any], label: Any = None) -> Any:
        """See st.DataObject."""
        return strategy.elements[0]  # type: ignore[attr-defined]


def two_turns_and_a_reset() -> None:
    """A session's second turn, and a reset while it holds blocks between its turns."""
    machine = BesideTheReference()
    machine.start(blocks=8, depth=2, running=2, priority=True)
    with contextlib.ExitStack() as engines:
        for engine in machine.engines:
            engines.callback(engine.close)
        machine.add(length=5, token=1, tokens=2, session=True, stop_every=0, priority=1)
        machine.plain_reset(at_rest=True)
        machine.chunk(FirstChoice(), length=3, token=2, tokens=3, at_rest=False)
        machine.sleep_and_wake(level=1)
        machine.teardown()


def test_two_turns_and_a_reset_are_as_in_the_reference() -> None:
    two_turns_and_a_reset()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_difference_from_the_reference_is_seen(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    name, instead, message = FAULTS[fault]
    monkeypatch.setattr(Lifecycle, name, instead)
    with pytest.raises(AssertionError, match=message):
        two_turns_and_a_reset()


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_a_difference_from_the_reference_is_found(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    name, instead, message = FAULTS[fault]
    monkeypatch.setattr(Lifecycle, name, instead)
    chosen = settings(
        examples(300), derandomize=True, database=None, phases=[Phase.generate],
        report_multiple_bugs=False,
    )  # fmt: skip
    with pytest.raises(AssertionError, match=message):
        run_state_machine_as_test(BesideTheReference, settings=chosen)


@pytest.mark.long
class TestLongBesideTheReference(BesideTheReference.TestCase):  # type: ignore[name-defined]
    settings = examples(1000)


def test_what_a_plan_lets_go_and_takes_again_no_later_admission_of_it_hits(tried: Tried) -> None:
    """Found by an hour of fuzzing: "four" was given a block that "three" had just been given."""
    engine = tried(Settings(blocks=4, block_size=2, max_length=8, depth=2))
    engine.add(NewRequest("one", (21, 22, 23), max_tokens=2, session=True))
    engine.add(NewRequest("two", (1, 2), max_tokens=1, session=True))
    engine.add(NewRequest("three", (41, 42, 43), max_tokens=1))
    engine.add(NewRequest("four", (1, 2, 3), max_tokens=1))
    engine.step()
    engine.step()
    engine.finish_step()
    engine.finish_step()
    engine.step()
    assert drain(engine).stuck == ()
    assert engine.misreads == []


def test_a_repeated_signal_is_heard_alone(tried: Tried) -> None:
    """The answer to a cancel was heard with it, and the change laid at the repeated one's door."""
    engine = tried(Settings(blocks=5, max_running=2, max_length=20, connector="tier"))
    engine.add(NewRequest("one", (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), max_tokens=2))
    engine.add(NewRequest("two", (41, 42, 43, 44, 45, 46, 47), max_tokens=2))
    drain(engine)
    engine.add(NewRequest("three", (1,), max_tokens=2))
    engine.add(NewRequest("four", (1, 2, 3, 4, 5), max_tokens=1))
    engine.step()
    engine.finish_step()
    engine.abort("four")
    assert engine.core.transfers is not None
    engine.core.transfers.cancel_unwaited()
    assert engine.tier is not None
    assert [signal.kind.name for signal in engine.tier.signals] == ["FENCED"]
    before = engine.snapshot()
    ended = next(name for name in engine._names.values() if name.startswith("store"))
    engine.duplicate(ended)
    assert engine.snapshot() == before
    engine.step()
    assert engine.snapshot() != before


def test_who_can_never_go_on_is_nobodys_victim_in_the_same_plan(tried: Tried) -> None:
    """Found by an hour of fuzzing: the request was to be preempted after it had failed."""
    engine = tried(
        Settings(blocks=4, block_size=2, max_length=8, priority=True, depth=2, connector="tier")
    )
    engine.add(NewRequest("stored", (1, 2), max_tokens=2))
    for _ in range(2):
        engine.step()
        engine.finish_step()
    (store,) = [transfer.id for transfer in engine.snapshot().transfers if transfer.open]
    engine.lose(store)
    drain(engine)
    assert engine.core.stats().blocks_quarantined == 1
    engine.add(NewRequest("fails", (11, 12, 13), max_tokens=5, priority=2))
    for _ in range(4):
        engine.step()
        engine.finish_step()
    engine.add(NewRequest("next", (21,), max_tokens=1))
    engine.step()
    assert drain(engine).stuck == ()
    (answered,) = [each for each in engine.snapshot().requests if each.id == "next"]
    assert len(answered.delivered) == 1


def test_a_signal_that_has_not_been_heard_of_is_not_repeated(tried: Tried) -> None:
    """The first the engine heard of a load that it had cancelled was taken for the second."""
    engine = tried(Settings(blocks=4, block_size=4, max_length=16, connector="tier"))
    engine.add(NewRequest("first", (21, 22, 23, 24), max_tokens=1))
    drain(engine)
    engine.add(NewRequest("evicts", tuple(range(1, 14)), max_tokens=1))
    drain(engine)
    engine.add(NewRequest("loads", (21, 22, 23, 24, 25), max_tokens=1))
    engine.step()
    engine.abort("loads")
    assert engine.core.transfers is not None
    engine.core.transfers.cancel_unwaited()
    (load,) = [name for name in engine._names.values() if name.startswith("load")]
    assert engine.tier is not None
    assert [signal.kind.name for signal in engine.tier.signals] == ["FENCED"]
    before = engine.snapshot()
    with pytest.raises(RejectedError, match="not been heard of once"):
        engine.duplicate(load)
    assert engine.snapshot() == before


def test_what_a_tier_says_is_heard_before_the_next_call(tried: Tried) -> None:
    """A refused reset was blamed for the end of a load that had been cancelled before it."""
    engine = tried(Settings(blocks=4, max_length=16, depth=2, connector="tier"))
    engine.add(NewRequest("first", (21, 22, 23, 24), max_tokens=1))
    drain(engine)
    engine.reset(False, False)
    engine.add(NewRequest("runs", (1,), max_tokens=3))
    engine.step()
    engine.add(NewRequest("loads", (21, 22, 23, 24, 25), max_tokens=1))
    engine.step()
    assert [hold.kind for hold in engine.snapshot().holds].count("LOAD") == 1
    engine.finish_step()
    engine.abort("loads")
    engine.finish_step()
    before = engine.snapshot()
    assert engine.reset(False, False) == ResetAnswer(False, ("runs",))
    assert engine.snapshot() == before
