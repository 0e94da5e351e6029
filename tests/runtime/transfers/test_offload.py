"""Prefixes go to the host tier and come back, and nobody waits who need not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest
from kvproof.runtime.api import FinishReason
from kvproof.runtime.transfers import Fault, HostTier

from ..test_scheduler import picture
from .engine_harness import SIZE, EngineHarness

Engine = Callable[..., EngineHarness]
PROMPT = list(range(10, 22))  # three blocks
LONGER = [*PROMPT, 30, 31]
OTHER = list(range(100, 114))


def test_a_prefix_that_left_the_device_is_loaded_back(engine: Engine) -> None:
    h = engine()
    h.only_in_tier("first", PROMPT)
    told = h.add("second", LONGER, 6)
    h.finish("second")
    assert told.tokens == h.expected("second", 6)
    stats = h.core.stats()
    assert stats.tier_loaded_bytes == 3 * h.runner.kv.bytes_per_block
    assert stats.tier_stored_bytes > 0
    h.settle()
    h.assert_nothing_is_held()


def test_a_prefix_that_was_evicted_for_others_is_loaded_back(engine: Engine) -> None:
    h = engine(blocks=8)
    h.add("first", PROMPT, 2)
    h.finish("first")
    h.settle()
    h.add("filler", range(200, 229), 3)
    h.finish("filler")
    told = h.add("second", LONGER, 6)
    h.finish("second")
    assert told.tokens == h.expected("second", 6)
    assert h.core.stats().tier_loaded_bytes == 3 * h.runner.kv.bytes_per_block


def test_output_is_stored_as_well_as_prompts(engine: Engine) -> None:
    h = engine()
    told = h.add("first", PROMPT, 9)
    h.finish("first")
    h.settle()
    assert h.core.reset_prefix_cache(reset_running_requests=True).result(0)
    h.add("second", [*PROMPT, *told.tokens], 2)
    h.finish("second")
    assert h.core.stats().tier_loaded_bytes == 5 * h.runner.kv.bytes_per_block


def test_the_last_token_is_computed_even_if_the_tier_has_it(engine: Engine) -> None:
    h = engine()
    h.only_in_tier("first", PROMPT)
    told = h.add("second", PROMPT, 3)
    h.finish("second")
    assert told.tokens == h.expected("second", 3)
    assert h.core.stats().tier_loaded_bytes == 2 * h.runner.kv.bytes_per_block


def test_nothing_is_loaded_that_is_on_the_device(engine: Engine) -> None:
    h = engine()
    h.add("first", PROMPT, 1)
    h.finish("first")
    h.settle()
    h.add("second", LONGER, 2)
    h.finish("second")
    assert h.core.stats().tier_loaded_bytes == 0


def test_only_what_is_missing_on_the_device_is_loaded(engine: Engine) -> None:
    h = engine()
    h.only_in_tier("first", PROMPT)
    h.add("head", PROMPT[: SIZE + 1], 1)
    h.finish("head")
    before = h.core.stats().tier_loaded_bytes
    told = h.add("second", LONGER, 4)
    h.finish("second")
    assert told.tokens == h.expected("second", 4)
    assert h.core.stats().tier_loaded_bytes - before == 2 * h.runner.kv.bytes_per_block


def test_nobody_queues_behind_a_load_who_need_not(engine: Engine) -> None:
    h = engine()
    h.only_in_tier("first", PROMPT)
    h.add("on device", OTHER, 1)
    h.finish("on device")
    h.connector.next_load.append(Fault(hold=True))
    h.add("waits", LONGER)
    h.add("hits", OTHER, 3)
    h.add("new", range(300, 306), 3)
    h.finish("hits", "new")
    assert h.state("waits") == "WAITING_FOR_REMOTE_KVS"
    h.connector.release()
    h.finish("waits")
    assert h.told["waits"].tokens == h.expected("waits", 4)


def test_several_requests_wait_for_one_load(engine: Engine) -> None:
    h = engine(blocks=16)
    h.only_in_tier("first", PROMPT)
    h.connector.next_load.append(Fault(hold=True))
    for name in ("a", "b", "c"):
        h.add(name, [*PROMPT, ord(name)], 3)
    h.turn()
    h.add("later", LONGER, 3)
    h.turn()
    assert len(h.loads) == 1
    assert {h.state(name) for name in ("a", "b", "c", "later")} == {"WAITING_FOR_REMOTE_KVS"}
    h.connector.release()
    h.finish("a", "b", "c", "later")
    for name in ("a", "b", "c", "later"):
        assert h.told[name].tokens == h.expected(name, 3)
    assert h.core.stats().tier_loaded_bytes == 3 * h.runner.kv.bytes_per_block


def test_who_shares_only_the_head_of_a_load_joins_for_the_head(engine: Engine) -> None:
    h = engine(blocks=16)
    h.only_in_tier("first", PROMPT)
    h.connector.next_load.append(Fault(hold=True))
    h.add("all", LONGER, 3)
    h.add("head", [*PROMPT[: 2 * SIZE], 77, 78, 79], 3)
    h.turn()
    assert len(h.loads) == 1
    h.connector.release()
    h.finish("all", "head")
    assert h.told["all"].tokens == h.expected("all", 3)
    assert h.told["head"].tokens == h.expected("head", 3)


def test_another_salt_finds_nothing_in_the_tier(engine: Engine) -> None:
    h = engine()
    h.only_in_tier("first", PROMPT)
    h.add("other tenant", LONGER, 2, salt=b"tenant")
    h.finish("other tenant")
    assert h.core.stats().tier_loaded_bytes == 0


def test_a_session_whose_blocks_were_reclaimed_loads_them_back(engine: Engine) -> None:
    h = engine()
    told = h.add("session", PROMPT, 4, resumable=True)
    h.run(lambda: told.turns == 1)
    h.run(lambda: not h.core.transfers.waiting_to_store and not h.stores)  # type: ignore[union-attr]
    assert h.core.reset_prefix_cache(reset_running_requests=True).result(0)
    h.core.add_chunk("session", [50, 51, 52])
    h.run(lambda: told.turns == 2)
    first = h.expected("session", 4)
    assert told.tokens[:4] == first
    h.add("undisturbed", [*PROMPT, *first, 50, 51, 52], 4)
    assert told.tokens[4:] == h.expected("undisturbed", 4)
    assert h.core.stats().tier_loaded_bytes > 0


def test_what_the_tier_forgot_is_stored_again_when_the_device_has_it(engine: Engine) -> None:
    h = engine(tier_blocks=4)
    h.add("first", PROMPT, 1)
    h.finish("first")
    h.settle()
    h.add("other", range(200, 216), 1)  # four blocks: the tier forgets the first prompt
    h.finish("other")
    h.settle()
    h.add("again", LONGER, 1)  # hits on the device
    h.finish("again")
    h.settle()
    assert h.core.reset_prefix_cache(reset_running_requests=True).result(0)
    h.add("last", LONGER, 2)
    h.finish("last")
    assert h.core.stats().tier_loaded_bytes == 3 * h.runner.kv.bytes_per_block


def test_stores_never_hold_more_than_their_share_of_the_pool(engine: Engine) -> None:
    h = engine(blocks=16)
    h.connector.next_store.extend([Fault(hold=True)] * 20)
    h.add("first", range(100, 140), 1)
    h.finish("first")
    for _ in range(10):
        h.turn()
    held = sum(holder.blocks for holder in h.core.holds() if holder.kind == "STORE")
    assert 0 < held <= 4
    h.connector.next_store.clear()
    h.connector.release()
    h.settle()
    assert h.core.stats().tier_stored_bytes == 10 * h.runner.kv.bytes_per_block


def test_a_tier_of_no_size_changes_nothing(engine: Engine) -> None:
    h = engine(tier_blocks=0)
    h.only_in_tier("first", PROMPT)
    h.add("second", LONGER, 3)
    h.finish("second")
    assert h.told["second"].tokens == h.expected("second", 3)
    assert h.told["second"].finish is FinishReason.LENGTH
    assert h.core.stats().tier_loaded_bytes == 0


def test_a_connector_that_raises_everywhere_costs_no_answer(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = engine()

    def broken(*_: object) -> None:
        raise OSError("gone")

    for name in ("lookup", "start_load", "start_store", "poll", "cancel", "reset"):
        monkeypatch.setattr(h.connector, name, broken)
    h.add("first", PROMPT, 5)
    h.finish("first")
    assert h.told["first"].tokens == h.expected("first", 5)
    result = h.core.reset_prefix_cache(reset_connector=True).result(0)
    assert (result.success, result.tiers, result.retryable) == (False, ("device",), True)
    h.turn()
    h.assert_nothing_is_held()


def everything_of(h: EngineHarness) -> tuple[object, ...]:
    """All that a plan could change, on the device and in the tier."""
    index = h.tier._index
    return (
        picture(h.core.lifecycle),
        [(key, entry.slot, entry.pins) for key, entry in index._entries.items()],
        index.free,
        h.tier.stats(),
        h.core.transfers.waiting_to_store,  # type: ignore[union-attr]
    )


def plans_change_nothing(h: EngineHarness) -> None:
    """Plans before each turn, with prefixes in the tier, loads under way and blocks short."""
    for first in (10, 30, 50):
        h.only_in_tier(f"first {first}", range(first, first + 12))
    for first in (10, 50, 30, 10, 200, 220):
        h.add(f"{len(h.told)}", [*range(first, first + 12), len(h.told)], 6)
    while h.core.lifecycle.live:
        while h.tier.stats().jobs:  # the tier's own thread changes what it has, too
            time.sleep(0.001)
        before = everything_of(h)
        h.core.scheduler.plan(64)
        assert everything_of(h) == before
        h.turn()
    assert h.core.stats().tier_loaded_bytes > 0


@pytest.mark.parametrize("depth", [1, 2])
def test_a_plan_changes_nothing_in_the_tier_either(engine: Engine, depth: int) -> None:
    plans_change_nothing(engine(blocks=12, steps_in_flight=depth))


def test_a_look_up_that_notes_its_use_shows(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup = HostTier.lookup

    def lookup_and_touch(tier: HostTier, keys: Sequence[bytes]) -> int:
        found = lookup(tier, keys)
        tier.touch(keys[:found])
        return found

    monkeypatch.setattr(HostTier, "lookup", lookup_and_touch)
    with pytest.raises(AssertionError):
        plans_change_nothing(engine(blocks=12))


def test_what_is_hit_on_the_device_outlives_other_things_in_the_tier(engine: Engine) -> None:
    h = engine(blocks=16, tier_blocks=6)
    for name, prompt in (("hot", PROMPT), ("cold", OTHER[:12])):
        h.add(name, prompt, 1)
        h.finish(name)
        h.settle()
    assert h.tier.stats().blocks == 6
    h.add("hits", LONGER, 1)  # by itself it stores nothing: its prefix is in the tier
    h.finish("hits")
    h.settle()
    h.add("new", range(200, 212), 1)  # three blocks, for which three others have to go
    h.finish("new")
    h.settle()
    assert h.core.reset_prefix_cache(reset_running_requests=True).result(0)
    before = h.core.stats().tier_loaded_bytes
    h.add("hot again", LONGER, 1)
    h.finish("hot again")
    assert h.core.stats().tier_loaded_bytes - before == 3 * h.runner.kv.bytes_per_block
