"""Observing changes nothing, is silent where vLLM has no fault, and names faults that it has."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kvproof.runtime.integrations.vllm_report import DepartureError, Report, logger
from kvproof.specs.fuzz.campaign import LENGTH
from kvproof.specs.fuzz.generation import Generator, RandomDraw, plan
from kvproof.specs.fuzz.run import Session, explore, replay
from kvproof.specs.fuzz.target import NewRequest, Settings, Target
from kvproof.specs.fuzz.targets.vllm import VllmAsyncScheduler, VllmScheduler
from prometheus_client import REGISTRY

from ..findings import RECORDED, Recorded
from ..test_targets import without_known_faults
from .targets import Observed, ObservedAsync, Strict, StrictAsync, departures

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

#: What the guard says of a documented fault when it only watches.
SEEN = {
    "reset-during-a-transfer": "forced reset",
    "reset-with-a-parked-session": "forced reset",
    "reset-with-a-step-in-flight": "forced reset",
    "second-connector-reset": "reset",
    "failed-sleep-stays-paused": "forced reset",
    "session-longer-than-the-model": "chunk in WAITING_FOR_STREAMING_REQ",
    "session-in-no-queue": "a session in no queue",
}


@pytest.mark.parametrize("target", [Observed, ObservedAsync])
def test_where_vllm_has_no_fault_nothing_is_reported(target: Any) -> None:
    departures()
    performed = 0
    for seed in range(40):
        chosen, draw = without_known_faults(seed, target)
        done, failure = explore(target, Generator(chosen, draw), LENGTH)
        assert failure is None
        performed += len(done)
    assert performed > 1_500
    assert departures() == {}


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded.name)
def test_an_observed_vllm_fails_as_vllm_does_and_the_guard_says_so(recorded: Recorded) -> None:
    departures()
    target = ObservedAsync if recorded.target.endswith("async") else Observed
    failure = replay(target, recorded.settings, recorded.operations)
    assert failure is not None
    assert failure.violation.rule == recorded.rule
    if recorded.name in SEEN:
        assert departures()[SEEN[recorded.name]] >= 1


@pytest.mark.parametrize(
    ("plain", "observed"), [(VllmScheduler, Observed), (VllmAsyncScheduler, ObservedAsync)]
)
def test_an_observed_vllm_is_after_each_call_in_the_state_that_a_plain_one_is_in(
    plain: type[Target], observed: type[Target]
) -> None:
    compared = 0
    for seed in range(24):
        draw = RandomDraw(seed)
        chosen = plan(draw, plain, faults=seed % 4 == 0)
        generator = Generator(chosen, draw)
        one, other = (Session(kind, chosen.settings) for kind in (plain, observed))
        for _ in range(LENGTH):
            operation = generator.next(one.target, one.now)
            failures = [session.apply(operation) for session in (one, other)]
            assert one.now == other.now
            if failures != [None, None]:
                assert failures[0] is not None
                assert failures[1] is not None
                assert failures[0].key() == failures[1].key()
                break
            compared += 1
    assert compared > 500


@contextmanager
def logged() -> Iterator[list[str]]:
    """What the guard logs meanwhile."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def test_each_kind_is_logged_once_with_both_sides() -> None:
    report = Report(strict=False)
    with logged() as lines:
        report.departure("a", "this", "that", "r1")
        report.departure("a", "this", "that", "r2")
    assert report.counts["departure", "a"] == 2
    assert lines == ["kvproof guard: a (r1). The declaration says: this. vLLM: that."]


def parked(target: Any) -> Any:
    """The target, in which a session waits for its client."""
    target.add(NewRequest("s", (1, 2, 3, 4, 5), 1, session=True))
    target.step()
    target.finish_step()
    assert target.snapshot().request("s").state == "WAITING_FOR_STREAMING_REQ"
    return target


def test_an_observed_scheduler_logs_a_departure_once_and_counts_each() -> None:
    target = parked(Observed(Settings(blocks=4, max_length=8)))
    sample = ("kvproof_guard_events_total", {"kind": "departure", "what": "forced reset"})
    before = REGISTRY.get_sample_value(*sample) or 0
    with logged() as lines:
        for _ in range(3):
            with pytest.raises(RuntimeError, match="Failed to reset KV cache"):
                target.reset(True, False)
        target.chunk("s", (6, 7, 8, 9), 1)
    said = [line for line in lines if "The declaration says" in line]
    assert [line.split(". ")[0] for line in said] == [
        "kvproof guard: forced reset",
        "kvproof guard: chunk in WAITING_FOR_STREAMING_REQ (s)",
    ]
    assert "The declaration says: done. vLLM: raises RuntimeError: Failed to reset" in said[0]
    assert "(reject, WAITING_FOR_STREAMING_REQ). vLLM: it goes to WAITING." in said[1]
    assert target.scheduler.guard_report.counts["departure", "forced reset"] == 3
    assert REGISTRY.get_sample_value(*sample) == before + 3


@pytest.mark.parametrize("target", [Strict, StrictAsync])
def test_a_strict_scheduler_raises_where_vllm_departs(target: Any) -> None:
    engine = parked(target(Settings(blocks=4, max_length=8)))
    with pytest.raises(DepartureError, match=r"forced reset.*declared: done; vLLM: raises"):
        engine.reset(True, False)
    with pytest.raises(DepartureError, match="chunk in WAITING_FOR_STREAMING_REQ"):
        engine.chunk("s", (6, 7, 8, 9), 1)


@pytest.mark.parametrize("target", [Strict, StrictAsync])
def test_a_strict_scheduler_is_silent_where_vllm_has_no_fault(target: Any) -> None:
    for seed in range(15):
        chosen, draw = without_known_faults(seed, target)
        assert explore(target, Generator(chosen, draw), LENGTH)[1] is None


@pytest.mark.parametrize("name", [name for name in SEEN if name != "failed-sleep-stays-paused"])
def test_strict_stops_at_a_documented_fault_that_the_guard_sees(name: str) -> None:
    recorded = next(recorded for recorded in RECORDED if recorded.name == name)
    target = StrictAsync if recorded.target.endswith("async") else Strict
    failure = replay(target, recorded.settings, recorded.operations)
    assert failure is not None
    assert "DepartureError" in failure.violation.message
    assert SEEN[name] in failure.violation.message


def test_strict_raises_unless_vllm_departs_by_design() -> None:
    report = Report(strict=True)
    report.departure("admit in PREEMPTED", "its last step is not processed", "it runs")
    with pytest.raises(DepartureError, match="declared: this; vLLM: that"):
        report.departure("a", "this", "that")


def test_the_records_follow_vllm() -> None:
    target = Observed(Settings(blocks=8))
    target.add(NewRequest("s", (1, 2, 3, 4, 5), 2, session=True))
    shadow = target.scheduler._guard_shadow
    states = [shadow.records["s"].state]
    for _ in range(2):
        target.step()
        target.finish_step()
        states.append(shadow.records["s"].state)
    target.close_input("s")
    assert states == [1, 5, 4]  # waits, runs, is parked
    assert "s" not in shadow.records


def test_a_mistake_of_the_shadow_does_not_stop_the_engine() -> None:
    target = Observed(Settings(blocks=8))
    target.scheduler._guard_shadow.scheduled = None
    target.add(NewRequest("r", (1, 2), 1))
    target.step()
    target.finish_step()
    assert target.scheduler._guard_shadow is None
    assert target.snapshot().request("r").finished
