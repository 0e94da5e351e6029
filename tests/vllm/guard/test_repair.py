"""In repair mode none of the documented faults is left that the guard says it closes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kvproof.specs.fuzz.campaign import Budget, search
from kvproof.specs.fuzz.findings import Finding
from kvproof.specs.fuzz.pytest_writer import file_name, write
from kvproof.specs.fuzz.run import replay
from kvproof.specs.fuzz.target import NewRequest, Settings, next_token
from kvproof.specs.fuzz.targets import load

from ..findings import DRAIN, RECORDED, Recorded, add, chunk, session
from ..test_findings import run_written
from .targets import Unrepaired

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

#: Cannot be closed from a subclass of the scheduler: completions carry no number.
OPEN = {"late-completion-ends-the-next-load"}
CLOSED = [recorded for recorded in RECORDED if recorded.name not in OPEN]


def guarded(asynchronous: bool = False, **settings: Any) -> Any:
    name = "vllm-guarded-async" if asynchronous else "vllm-guarded"
    return load(name)(Settings(**settings))


def one_step(target: Any) -> None:
    target.step()
    target.finish_step()


@pytest.mark.parametrize("recorded", CLOSED, ids=lambda recorded: recorded.name)
def test_a_documented_fault_is_closed(recorded: Recorded) -> None:
    name = recorded.target.replace("vllm", "vllm-guarded")
    failure = replay(load(name), recorded.settings, recorded.operations)
    assert failure is None, failure and failure.violation.message


def test_a_reset_under_a_load_is_refused_and_changes_nothing() -> None:
    target = guarded(blocks=4, connector="mock", depth=1)
    target.add(NewRequest("loads", (1, 2, 3, 4), 2, remote_tokens=4))
    target.add(NewRequest("runs", (1, 2), 4))
    one_step(target)
    before = target.snapshot()
    assert target.scheduler.reset_prefix_cache(True, True) is False
    assert target.snapshot() == before
    assert before.request("runs").state == "RUNNING"
    target.complete("load/loads/1")
    one_step(target)
    # Landed, but not taken out of the state of loading yet: let go of all the same.
    assert target.scheduler.reset_prefix_cache(True, True) is True
    assert not target.snapshot().holds


def test_a_forced_reset_does_not_wait_for_a_launched_step() -> None:
    target = guarded(True, depth=2, connector="offload", blocks=4)
    target.add(NewRequest("r", (1, 2, 3, 4, 5), 3))
    target.step()
    assert target.reset(True, False).done
    assert [hold.kind for hold in target.snapshot().holds] == ["STEP"]
    assert all(block.cached_as is None for block in target.snapshot().blocks)
    target.finish_step()
    assert not target.snapshot().holds


def test_a_parked_session_that_was_reset_keeps_its_tokens() -> None:
    tokens = []
    for reset in (False, True):
        target = guarded(blocks=8)
        target.add(NewRequest("s", (1, 2, 3, 4, 5), 2, session=True))
        for _ in range(2):
            one_step(target)
        assert target.snapshot().request("s").state == "WAITING_FOR_STREAMING_REQ"
        if reset:
            assert target.reset(True, False).done
            assert not target.snapshot().holds
        target.chunk("s", (60, 61), 2)
        while target.scheduler.get_num_unfinished_requests():
            one_step(target)
        tokens.append(target.snapshot().request("s").delivered)
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) == 4


def test_a_session_that_was_preempted_in_an_earlier_turn_and_reclaimed_is_sent_as_new() -> None:
    """Found by the fuzzer: it loaded its prefix, and its turn's tokens never reached the runner."""
    operations = (
        add("r1", list(range(21, 30)), 5),
        add("r2", [1, 2, 3, 4], 1),
        session("r3", [1, 2, 3], 3),
        add("r4", list(range(1, 13)), 2),
        chunk("r3", [80], 2),
        DRAIN,
    )
    settings = Settings(blocks=4, max_length=16, connector="offload-all")
    failure = replay(load("vllm-guarded"), settings, operations)
    assert failure is None, failure and failure.violation.message


def test_a_refused_sleep_leaves_the_engine_running() -> None:
    target = guarded(blocks=4, connector="mock")
    target.add(NewRequest("loads", (1, 2, 3, 4), 2, remote_tokens=4))
    one_step(target)
    assert target.sleep(1) is False
    assert target.snapshot().mode == "ACTIVE"


def test_a_pause_that_waits_does_not_end_while_something_runs() -> None:
    target = guarded(blocks=8)
    target.add(NewRequest("s", (1,), 1, session=True))
    one_step(target)
    target.add(NewRequest("r", (1, 2), 4))
    assert target.reset(True, False).done  # the parked session holds nothing now
    one_step(target)
    target.pause("wait")
    assert target.scheduler.get_num_unfinished_requests() == 1


@pytest.mark.parametrize("mode", ["wait", "keep"])
def test_a_pause_that_clears_the_cache_completes_with_a_parked_session(mode: str) -> None:
    target = guarded(blocks=8)
    target.add(NewRequest("s", (1, 2, 3, 4, 5), 2, session=True))
    for _ in range(2):
        one_step(target)
    assert target.snapshot().holds
    assert target.core.pause_scheduler(mode, clear_cache=True) is None
    assert target.snapshot().mode == "PAUSED"
    assert not target.snapshot().holds
    target.resume()
    target.chunk("s", (60, 61), 2)
    while target.scheduler.get_num_unfinished_requests():
        one_step(target)
    delivered = target.snapshot().request("s").delivered
    first = [next_token((1, 2, 3, 4, 5), 0), next_token((1, 2, 3, 4, 5, delivered[0]), 0)]
    assert list(delivered[:2]) == first
    assert len(delivered) == 4


def test_a_pause_that_clears_the_cache_under_a_load_is_rolled_back() -> None:
    target = guarded(blocks=4, connector="mock")
    target.add(NewRequest("loads", (1, 2, 3, 4), 2, remote_tokens=4))
    one_step(target)

    def pause() -> None:
        target._await(target.core.pause_scheduler("keep", clear_cache=True))
        one_step(target)  # it waits for what is under way

    with pytest.raises(RuntimeError, match="Failed to reset the KV connector cache"):
        pause()
    assert target.snapshot().mode == "ACTIVE"
    target.complete("load/loads/1")
    while target.scheduler.get_num_unfinished_requests():
        one_step(target)
    assert len(target.snapshot().request("loads").delivered) == 2


def test_what_was_repaired_is_counted() -> None:
    target = guarded(blocks=4)
    target.add(NewRequest("s", (1,), 1, session=True))
    one_step(target)
    assert target.reset(True, False).done
    counts = target.scheduler.guard_report.counts
    assert counts["repair", "blocks reclaimed for a forced reset"] == 1


@pytest.mark.parametrize("name", ["vllm-guarded", "vllm-guarded-async"])
def test_a_short_search_finds_nothing(name: str) -> None:
    report = search(load(name), Budget(seconds=None, operations=6_000, replays=0), seed=5)
    assert [finding.failure.violation.message for finding in report.findings] == []


@pytest.mark.long
@pytest.mark.parametrize("name", ["vllm-guarded", "vllm-guarded-async"])
def test_five_minutes_find_nothing(name: str) -> None:
    report = search(load(name), Budget(seconds=300), seed=1)
    assert [finding.failure.violation.message for finding in report.findings] == []


def test_a_test_that_is_written_of_the_guard_fails_for_its_finding(tmp_path: Path) -> None:
    """It imports the guard, and nothing of the fuzzer. For it the guard repairs nothing."""
    recorded = next(each for each in CLOSED if each.name == "reset-with-a-parked-session")
    failure = replay(Unrepaired, recorded.settings, recorded.operations)
    assert failure is not None
    finding = Finding(failure, 1, 0, 0, 0.0)
    text = write(finding, "kvproof fuzz")
    assert "from kvproof.runtime.integrations.vllm import GuardedScheduler" in text
    assert "kvproof.specs" not in text
    (tmp_path / file_name(finding)).write_text(text)
    run = run_written(tmp_path)
    assert "1 failed" in run.stdout, run.stdout[-3000:] + run.stderr[-2000:]
    assert "ImportError" not in run.stdout
