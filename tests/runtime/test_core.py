"""Requests from their prompt to their last token, and what can be seen of them."""

from __future__ import annotations

import pytest
from kvproof.runtime.api import DuplicateRequestError, FinishReason
from kvproof.runtime.fake import expected_tokens

from .harness import Bench


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("blocks", [6, 40])
def test_every_request_gets_the_tokens_of_an_undisturbed_run(depth: int, blocks: int) -> None:
    bench = Bench(blocks=blocks, steps_in_flight=depth, max_batched_tokens=10)
    for number in range(8):
        bench.add(f"r{number}", [1] * number + [number + 2], 9)
    bench.run()
    for number in range(8):
        bench.assert_undisturbed(f"r{number}", [1] * number + [number + 2], 9)
        assert bench.clients[f"r{number}"].finish is FinishReason.LENGTH
    assert bench.free == blocks
    assert bench.core.holds() == []


def test_a_rows_next_tenant_never_gets_its_predecessors_token() -> None:
    bench = Bench(steps_in_flight=2)
    bench.add("a", 5, 9)
    bench.core.launch_step()
    row = bench.row("a")
    bench.core.abort("a")
    heard = bench.add("b", 5, 3)
    assert bench.row("b") != row
    bench.core.finish_step()
    bench.core.tick()
    assert bench.lifecycle.row_of("a") is None
    bench.run()
    bench.add("c", 5, 3)
    bench.run()
    assert heard.tokens == expected_tokens([11] * 5, 3)
    bench.assert_undisturbed("c", [12] * 5, 3)


def test_an_id_is_free_again_when_nothing_of_its_last_life_is_left() -> None:
    bench = Bench()
    bench.add("a", 5)
    bench.core.launch_step()
    bench.core.abort("a")
    with pytest.raises(DuplicateRequestError, match="last life"):
        bench.add("a", 5)
    bench.core.finish_step()
    bench.core.tick()
    bench.add("a", [3] * 5)
    bench.run()
    bench.assert_undisturbed("a", [3] * 5, 4)


def test_request_info_has_facts_and_transitions_and_no_tokens() -> None:
    bench = Bench()
    bench.add("a", [424242] * 5)
    bench.turn()
    info = bench.core.request_info("a")
    assert info is not None
    assert (info.state, info.container) == ("RUNNING", "running")
    assert info.facts["computed"] == 5
    assert [entry["event"] for entry in info.transitions] == ["add", "admit"]
    assert "424242" not in str(info)


def test_a_finished_request_is_remembered_for_a_while() -> None:
    bench = Bench()
    bench.add("a", 5)
    bench.run()
    bench.core.tick()
    assert bench.lifecycle.row_of("a") is None
    info = bench.core.request_info("a")
    assert info is not None
    assert info.state == "FINISHED_LENGTH_CAPPED"
    assert bench.core.request_info("z") is None


def test_usage_is_counted_in_tokens() -> None:
    bench = Bench()
    bench.add("a", [1] * 9)
    bench.run()
    bench.add("b", [1] * 9)
    bench.run()
    last = bench.clients["b"].outputs[-1]
    assert (last.prompt_tokens, last.output_tokens, last.cached_tokens) == (9, 4, 8)
    stats = bench.core.stats()
    assert (stats.prompt_tokens, stats.generation_tokens) == (18, 8)
    assert (stats.prefix_queries, stats.prefix_hits) == (18, 8)
    assert stats.blocks_free == stats.blocks_total == 16


def test_prefixes_are_shared_within_a_salt_only() -> None:
    bench = Bench()
    for name, salt in (("a", b""), ("b", b"tenant"), ("c", b"tenant")):
        bench.add(name, [1] * 9, salt=salt)
        bench.run()
    cached = [bench.clients[name].outputs[0].cached_tokens for name in "abc"]
    assert cached == [0, 0, 8]


@pytest.mark.parametrize("algorithm", ["xxh3_128", "blake3", "sha256"])
def test_prefixes_are_hit_with_every_hash(algorithm: str) -> None:
    bench = Bench(hash_algorithm=algorithm)
    for name in "ab":
        bench.add(name, [1] * 9)
        bench.run()
    assert bench.clients["b"].outputs[0].cached_tokens == 8
