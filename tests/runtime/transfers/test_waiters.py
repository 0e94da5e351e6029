"""Requests that wait for one load: who joins, who leaves, and what a failure does to the others."""

from __future__ import annotations

from kvproof.runtime.api import FinishReason
from kvproof.runtime.transfers import Fault

from .engine_harness import SIZE
from .scenarios import (
    HOLD,
    LONGER,
    PROMPT,
    Engine,
    assert_right,
    end_clean,
    loading,
)


def test_a_leaders_abort_does_not_hurt_those_who_joined(engine: Engine) -> None:
    h = engine(blocks=16)
    loading(h, HOLD, name="leader")
    h.add("follower", [*PROMPT, 77], 4)
    h.turn()
    h.core.abort("leader")
    h.turn()
    assert len(h.loads) == 1
    h.connector.release()
    h.finish("follower")
    assert_right(h, "follower", 4)
    assert h.core.stats().tier_loaded_bytes == 3 * h.runner.kv.bytes_per_block
    end_clean(h)


def test_a_failed_load_fails_for_all_who_wait_and_none_writes_into_anothers_block(
    engine: Engine,
) -> None:
    h = engine(blocks=20)
    loading(h, Fault(hold=True, only=1, spoil=True), name="leader")
    for name in ("b", "c"):
        h.add(name, [*PROMPT, ord(name)], 4)
    h.turn()
    h.connector.release()
    h.finish("leader", "b", "c")
    for name in ("leader", "b", "c"):
        assert_right(h, name, 4)
    end_clean(h)


def test_a_load_is_not_retried_for_ever(engine: Engine) -> None:
    h = engine(loads_limit=3)
    h.only_in_tier("first", PROMPT)
    h.connector.choose = lambda _transfer, is_load, _blocks: Fault(only=0 if is_load else None)
    h.add("waits", LONGER)
    h.finish("waits")
    assert h.connector.counts["failed"] == 3
    assert_right(h, "waits", 4)
    end_clean(h)


def test_under_policy_fail_a_failed_load_ends_its_requests(engine: Engine) -> None:
    h = engine(load_failure_policy="fail")
    loading(h, Fault(only=1))
    h.finish("waits")
    assert h.told["waits"].finish is FinishReason.ERROR
    assert h.told["waits"].tokens == []
    end_clean(h)


def test_a_load_that_takes_too_long_for_its_request_is_given_up(engine: Engine) -> None:
    h = engine(load_deadline=5.0)
    number = loading(h, HOLD)
    h.pass_time(6.0)
    h.turn()
    assert h.transfer_state(number) in ("CANCELLING", "ABSENT")
    h.finish("waits")
    assert_right(h, "waits", 4)
    assert h.core.stats().tier_loaded_bytes == 0
    end_clean(h)


def test_two_requests_that_load_do_not_wait_for_each_other(engine: Engine) -> None:
    # Each needs seven of ten blocks to run: both loads fit, both runs do not.
    h = engine(blocks=10)
    prompts = {name: list(range(base, base + 26)) for name, base in (("a", 100), ("b", 200))}
    for name, prompt in prompts.items():
        h.only_in_tier(f"first {name}", prompt[: 5 * SIZE])
    h.connector.next_load.extend([HOLD, HOLD])
    for name, prompt in prompts.items():
        h.add(name, prompt, 4)
    for _ in range(3):
        h.turn()
    h.connector.release()
    h.run(lambda: bool(h.connector.release()) or all(t.finish for t in h.told.values()))
    for name in prompts:
        assert_right(h, name, 4)
    end_clean(h)
