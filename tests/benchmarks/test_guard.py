"""What the guard adds to vLLM's decode step: 256 running requests, one token each a step.

`.venv-vllm/bin/python -m pytest -m vllm -s tests/benchmarks/test_guard.py` prints the figures.
Plain and guarded schedulers take turns in one process, a chunk of steps each, the first of a round
being another one each time; a round gives a ratio, and the median of the rounds is shown beside
that of a second plain scheduler, which tells the noise. Processor time is counted, not wall time.
`schedule` and `update_from_output` are timed; the fake device is not. What is asserted is the
guard's own work, timed alone, and a generous bound of the whole.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.filterwarnings("default")]

RUNNING, STEPS, ROUNDS = 256, 20, 30
MODES = ("plain", "plain again", "observe", "repair")


@pytest.fixture(autouse=True)
def nothing_to_collect() -> Iterator[None]:
    """As vLLM's engine core does it: what there is at the start is not looked at again."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def running(mode: str, asynchronous: bool) -> Any:
    """A scheduler with all requests decoding."""
    from kvproof.specs.fuzz.target import Settings
    from kvproof.specs.fuzz.targets import vllm, vllm_guarded

    kinds = {
        (False, False): vllm.VllmScheduler,
        (False, True): vllm.VllmAsyncScheduler,
        (True, False): vllm_guarded.GuardedVllmScheduler,
        (True, True): vllm_guarded.GuardedVllmAsyncScheduler,
    }
    kind = kinds[not mode.startswith("plain"), asynchronous]
    target: Any = kind(
        Settings(blocks=16_000, block_size=16, max_running=RUNNING, token_budget=8192,
                 max_length=2048, depth=1)
    )  # fmt: skip
    if mode == "observe":
        target.scheduler.guard_repairs = False
    parameters = target._sampling(max_tokens=1500, ignore_eos=True)
    for number in range(RUNNING):
        prompt = [1 + (number * 7 + i) % 900 for i in range(32)]
        target.scheduler.add_request(
            target._request_type(
                f"r{number}", prompt, parameters, None, block_hasher=target._hasher
            )
        )
    return target.scheduler


def step(scheduler: Any) -> float:
    """Processor seconds of one step."""
    begin = time.process_time_ns()
    output = scheduler.schedule()
    spent = time.process_time_ns() - begin
    assert len(output.num_scheduled_tokens) == RUNNING
    return spent / 1e9 + finish(scheduler, output)


def finish(scheduler: Any, output: Any) -> float:
    """Processor seconds of processing a step in which each request was given one token."""
    from vllm.v1.outputs import ModelRunnerOutput

    names = list(output.num_scheduled_tokens)
    result = ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: i for i, name in enumerate(names)},
        sampled_token_ids=[[7] for _ in names],
    )
    begin = time.process_time_ns()
    scheduler.update_from_output(output, result)
    return (time.process_time_ns() - begin) / 1e9


def a_request_and_step(scheduler: Any, steps: int) -> float:
    """Processor microseconds."""
    return sum(step(scheduler) for _ in range(steps)) / steps / RUNNING * 1e6


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_the_guard_costs_little_of_a_decode_step(
    asynchronous: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVPROOF_GUARD", "observe")
    monkeypatch.delenv("KVPROOF_TRACE", raising=False)
    schedulers = {mode: running(mode, asynchronous) for mode in MODES}
    for scheduler in schedulers.values():
        a_request_and_step(scheduler, 3)
    rounds: list[dict[str, float]] = []
    for number in range(ROUNDS):
        turn = number % len(MODES)
        order = MODES[turn:] + MODES[:turn]
        rounds.append({mode: a_request_and_step(schedulers[mode], STEPS) for mode in order})
    plain = statistics.median(one["plain"] for one in rounds)
    print(f"\n{'async' if asynchronous else 'sync'}: vLLM {plain:.1f} us a request and step")
    ratios = {}
    for mode in MODES[1:]:
        ratio = sorted(one[mode] / one["plain"] - 1 for one in rounds)
        ratios[mode] = statistics.median(ratio)
        middle = f"{ratio[ROUNDS // 4]:+.1%} to {ratio[-ROUNDS // 4]:+.1%}"
        print(f"{mode}: {ratios[mode]:+.1%} (the middle half of the rounds: {middle})")
    own = min(own_work(schedulers["repair"]) for _ in range(10))
    print(f"the guard's own work: {own * 1e6:.1f} us a step, {own * 1e8 / plain / RUNNING:.2f} %")
    monkeypatch.setenv("KVPROOF_TRACE", str(tmp_path / "trace.jsonl"))
    traced = running("observe", asynchronous)
    a_request_and_step(traced, 1)
    spent = min(a_request_and_step(traced, 2) for _ in range(3))
    print(
        f"with KVPROOF_TRACE: {spent:.0f} us a request and step, {spent / plain:.1f} times vLLM's"
    )
    assert ratios["repair"] < 0.25
    assert own * 1e6 < plain * RUNNING * 0.05


def own_work(scheduler: Any) -> float:
    """Processor seconds of what the guard does in one steady step, vLLM left out."""
    output = scheduler.schedule()
    begin = time.process_time_ns()
    for _ in range(100):
        scheduler._guard_watch("scheduled", output)
        scheduler._guard_watch("processed", output, None)
    spent = (time.process_time_ns() - begin) / 1e9 / 100
    assert scheduler._guard_shadow is not None
    finish(scheduler, output)
    return spent
