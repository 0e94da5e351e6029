"""Observing changes nothing, is silent where vLLM has no fault, and names faults that it has."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from kvproof.runtime.integrations.vllm_report import DepartureError, Report, logger
from kvproof.specs.fuzz.campaign import LENGTH
from kvproof.specs.fuzz.generation import Generator
from kvproof.specs.fuzz.run import explore, replay
from kvproof.specs.fuzz.target import NewRequest, Settings

from ..findings import RECORDED, Recorded
from ..test_targets import without_known_faults
from .targets import Observed, ObservedAsync, departures

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


def test_each_kind_is_logged_once_with_both_sides() -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    report = Report(strict=False)
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        report.departure("a", "this", "that", "r1")
        report.departure("a", "this", "that", "r2")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert report.counts["departure", "a"] == 2
    assert lines == ["kvproof guard: a (r1). The declaration says: this. vLLM: that."]


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
