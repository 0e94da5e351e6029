"""What the guard adds to vLLM's decode step: 256 running requests, one token each a step.

`.venv-vllm/bin/python -m pytest -m vllm -s tests/benchmarks/test_guard.py` prints the figures.
Plain and guarded schedulers take turns, chunk by chunk, in one process; processor time is counted,
not wall time, and the least of the rounds is taken, since the machine may be busy. `schedule` and
`update_from_output` are timed; the fake device is not. Only a generous bound is asserted.
"""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.filterwarnings("default")]

RUNNING, STEPS, ROUNDS = 256, 20, 12


def running(mode: str | None, asynchronous: bool) -> Any:
    """A scheduler with all requests decoding."""
    from kvproof.specs.fuzz.target import Settings
    from kvproof.specs.fuzz.targets import vllm, vllm_guarded

    kinds = {
        (False, False): vllm.VllmScheduler,
        (False, True): vllm.VllmAsyncScheduler,
        (True, False): vllm_guarded.GuardedVllmScheduler,
        (True, True): vllm_guarded.GuardedVllmAsyncScheduler,
    }
    kind = kinds[mode is not None, asynchronous]
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


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_the_guard_costs_little_of_a_decode_step(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVPROOF_GUARD", os.environ.get("KVPROOF_GUARD", "observe"))
    schedulers = {mode: running(mode, asynchronous) for mode in (None, "observe", "repair")}
    best = dict.fromkeys(schedulers, float("inf"))
    for scheduler in schedulers.values():
        for _ in range(3):
            step(scheduler)
    for _ in range(ROUNDS):
        for mode, scheduler in schedulers.items():
            spent = sum(step(scheduler) for _ in range(STEPS)) / STEPS / RUNNING
            best[mode] = min(best[mode], spent)
    plain = best[None]
    print(
        f"\n{'async' if asynchronous else 'sync'}: vLLM {plain * 1e6:.2f} us a request and step",
        end="",
    )
    for mode in ("observe", "repair"):
        print(f"; {mode} {best[mode] * 1e6:.2f} us ({best[mode] / plain - 1:+.1%})", end="")
    print()
    assert best["repair"] < plain * 1.25
    own = least(lambda: own_work(schedulers["repair"]))
    print(f"the guard's own work: {own * 1e6:.1f} us a step, {own / plain / RUNNING:.2%} of vLLM's")
    assert own < plain * RUNNING * 0.05


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


def least(measure: Any) -> float:
    """The least of a few rounds."""
    return min(measure() for _ in range(10))
