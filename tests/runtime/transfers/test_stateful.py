"""Hypothesis chooses the operations on an engine with a faulty tier, and shrinks what fails."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from .test_soak import FaultyChaos


class FaultyTier(RuleBasedStateMachine):
    """Each rule is one operation; its details come from the seed."""

    chaos: FaultyChaos

    @initialize(
        seed=st.integers(0, 10_000),
        rate=st.sampled_from((0.0, 0.5, 1.0)),
        depth=st.sampled_from((1, 2)),
        blocks=st.sampled_from((6, 8, 12)),
    )
    def begin(self, seed: int, rate: float, depth: int, blocks: int) -> None:
        self.chaos = FaultyChaos(seed, rate, depth=depth, blocks=blocks)

    @rule(name=st.sampled_from(("launch", "finish", "tick", "add", "add_session", "time")))
    def go_on(self, name: str) -> None:
        self.chaos.do(name)

    @rule(name=st.sampled_from(("chunk", "close_input", "abort", "reset", "give_up_reset")))
    def call(self, name: str) -> None:
        self.chaos.do(name)

    @rule(name=st.sampled_from(("pause", "resume", "sleep", "wake", "weights_changed")))
    def call_engine(self, name: str) -> None:
        self.chaos.do(name)

    @rule(name=st.sampled_from(("confirm", "find", "inject", "fail_tier_reset", "fail_row")))
    def go_wrong(self, name: str) -> None:
        self.chaos.do(name)

    @rule(turns=st.integers(1, 6))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            for name in ("tick", "launch", "finish"):
                self.chaos.do(name)

    def teardown(self) -> None:
        if hasattr(self, "chaos"):
            try:
                self.chaos.end()
            finally:
                self.chaos.close()


def run(examples: int, steps: int) -> None:
    checks: Any = list(HealthCheck)
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        FaultyTier,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, suppress_health_check=checks
        ),
    )


def test_whatever_is_done_every_token_is_right_and_nothing_is_left() -> None:
    run(examples=12, steps=40)


@pytest.mark.long
def test_after_hundreds_of_calls_too_every_token_is_right_and_nothing_is_left() -> None:
    run(examples=300, steps=150)
