"""What the engine makes of equal hashes, and where it puts the blocks of a growing table."""

from __future__ import annotations

import pytest
from kvproof.runtime import prefix
from kvproof.runtime.fake import expected_tokens
from kvproof.runtime.pool import BlockPool

from .harness import SIZE, Bench


class Constant:
    """A hash for which everything is the same."""

    def __init__(self, data: bytes = b"") -> None:
        pass

    def update(self, data: bytes) -> None:
        pass

    def digest(self) -> bytes:
        return b"the same for all"


@pytest.fixture
def colliding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(prefix.HASHES, "xxh3_128", Constant)


def outputs_that_differ(bench: Bench) -> list[str]:
    """Requests one after the other, whose prompts differ and whose hashes do not."""
    wrong = []
    for number, name in enumerate("abc"):
        heard = bench.add(name, [number + 1] * (SIZE + 2), 4)
        while bench.lifecycle.live or bench.core.in_flight:
            bench.core.tick()
            bench.core.launch_step()
            bench.core.finish_step()
        if heard.tokens != expected_tokens([number + 1] * (SIZE + 2), 4):
            wrong.append(name)
    return wrong


@pytest.mark.usefixtures("colliding")
def test_a_block_with_the_same_hash_and_other_tokens_is_no_hit() -> None:
    bench = Bench()
    assert outputs_that_differ(bench) == []
    assert bench.runner.corruptions == []
    assert bench.core.stats().prefix_hits == 0


@pytest.mark.usefixtures("colliding")
def test_without_the_comparison_of_tokens_it_would_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    make = prefix.PrefixIndex.__init__
    monkeypatch.setattr(prefix.PrefixIndex, "__init__", lambda self, n, _: make(self, n, False))
    bench = Bench()
    outputs_that_differ(bench)
    assert bench.runner.corruptions != []
    assert bench.core.stats().prefix_hits == 2 * SIZE


def test_a_table_grows_into_the_blocks_next_to_its_last_one() -> None:
    bench = Bench()
    bench.add("short", 2, 1)
    bench.add("long", 3, 20)
    bench.turn(12)
    table = bench.lifecycle.table(bench.row("long")).tolist()
    assert len(table) > 2
    assert table == list(range(table[0], table[0] + len(table)))
    assert table[0] > 0, "the blocks before it were taken first, and are free again"


def test_without_a_hint_it_would_take_the_first_free_block(monkeypatch: pytest.MonkeyPatch) -> None:
    take = BlockPool.take
    monkeypatch.setattr(BlockPool, "take", lambda pool, wanted, after=-1: take(pool, wanted))
    with pytest.raises(AssertionError):
        test_a_table_grows_into_the_blocks_next_to_its_last_one()
