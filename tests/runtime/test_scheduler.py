"""Who runs next: budget, order, room, victims, and what blocked requests cost."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from kvproof.runtime.api import FinishReason, InvalidRequestError
from kvproof.runtime.columns import BatchView
from kvproof.runtime.fake import expected_tokens
from kvproof.runtime.lifecycle import Lifecycle
from kvproof.runtime.plan import Admission
from kvproof.runtime.sampling_params import SamplingParams

from .harness import Bench


def picture(lifecycle: Lifecycle) -> tuple[Any, ...]:
    """All that a plan could have changed."""
    ledger = lifecycle._ledger
    return (
        lifecycle._columns.copy().tobytes(),
        lifecycle._tables.copy().tobytes(),
        ledger.counts.copy().tobytes(),
        list(ledger.pool.eviction_order()),
        bytes(ledger.pool._uncached),
        dict(ledger.index._block),
        list(lifecycle.running),
        list(lifecycle.waiting),
        dict(lifecycle.blocked),
        lifecycle.engine.as_dict(),
        copy.deepcopy(ledger.step_holds),
        lifecycle.reserved,
        lifecycle.moves,
    )


def test_a_plan_changes_nothing() -> None:
    bench = Bench(blocks=8, steps_in_flight=2, max_num_seqs=3)
    for name in "abcdef":
        bench.add(name, [1] * 5 + [ord(name)] * 4, 12)
    bench.core.launch_step()
    for _ in range(40):
        before = picture(bench.lifecycle)
        bench.core.scheduler.plan(64)
        assert picture(bench.lifecycle) == before
        bench.turn()
    bench.run()


def test_a_step_has_at_most_the_budget_and_long_prompts_are_computed_in_chunks() -> None:
    bench = Bench(max_batched_tokens=6)
    bench.add("a", 15)
    bench.add("b", 4)
    bench.run()
    counts = [batch.counts.tolist() for batch in bench.runner.launched]
    assert counts[:4] == [[6], [6], [3, 3], [1, 1]]
    assert all(sum(each) <= 6 for each in counts)
    for name, length in (("a", 15), ("b", 4)):
        bench.assert_undisturbed(name, [10 + "ab".index(name)] * length, 4)


def test_only_the_step_that_ends_the_prefill_samples() -> None:
    bench = Bench(max_batched_tokens=6)
    bench.add("a", 15)
    bench.run()
    samples = [batch.samples.tolist() for batch in bench.runner.launched]
    assert samples[:4] == [[False], [False], [True], [True]]


def test_first_come_first_served_whatever_the_priority() -> None:
    bench = Bench(max_num_seqs=1)
    bench.add("a", 4, 2, priority=5)
    bench.add("b", 4, 2, priority=0)
    bench.run()
    order = [name for name in "ab" if bench.clients[name].finish]
    first = bench.runner.launched[0].tokens.tolist()
    assert first == [10] * 4
    assert order == ["a", "b"]


def test_by_priority_the_lower_number_runs_first_and_equals_by_arrival() -> None:
    bench = Bench(max_num_seqs=1, policy="priority")
    for name, priority in (("a", 2), ("b", 0), ("c", 1), ("d", 0)):
        bench.add(name, 4, 2, priority=priority)
    bench.run()
    prefills = [batch.tokens[0] for batch in bench.runner.launched if batch.counts[0] == 4]
    assert [int(token) - 10 for token in prefills] == [1, 3, 2, 0]


def test_the_most_urgent_waiting_request_takes_the_blocks_of_a_less_urgent_one() -> None:
    bench = Bench(blocks=4, policy="priority")
    bench.add("late", 8, 8, priority=3)
    bench.turn()
    bench.add("urgent", 12, 3, priority=0)
    bench.turn()
    assert bench.state("late") == "PREEMPTED"
    bench.run()
    bench.assert_undisturbed("late", [10] * 8, 8)
    bench.assert_undisturbed("urgent", [11] * 12, 3)


def test_the_most_urgent_waiting_request_takes_the_place_of_a_less_urgent_one() -> None:
    bench = Bench(max_num_seqs=2, policy="priority")
    bench.add("a", 4, 8, priority=1)
    bench.add("b", 4, 8, priority=2)
    bench.turn()
    bench.add("urgent", 4, 2, priority=0)
    bench.turn()
    assert [bench.state(name) for name in ("a", "b", "urgent")] == [
        "RUNNING", "PREEMPTED", "RUNNING",
    ]  # fmt: skip
    bench.run()
    bench.assert_undisturbed("b", [11] * 4, 8)


def test_an_older_request_of_equal_priority_throws_nobody_out() -> None:
    """A session that comes back is older than those that run, and waits for them all the same."""
    bench = Bench(blocks=4, max_num_seqs=2)
    bench.add("session", 4, 2, resumable=True)
    bench.run(lambda: bench.state("session") == "WAITING_FOR_STREAMING_REQ")
    bench.add("young", 11, 4)
    bench.turn(2)
    bench.chunk("session", [5] * 4)
    bench.turn()
    assert bench.state("young") == "RUNNING"
    bench.core.close_input("session")
    bench.run()
    assert bench.core.stats().preemptions == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_one_short_block_costs_one_victim(depth: int) -> None:
    """Promised blocks count: no second victim while the first one's are on their way back."""
    bench = Bench(blocks=7, max_num_seqs=3, steps_in_flight=depth)
    for name, length in (("a", 7), ("b", 8), ("c", 8)):
        bench.add(name, length, 5)
    for _ in range(40):
        bench.turn()
        if bench.core.stats().preemptions:
            break
    assert [bench.state(name) for name in "abc"] == ["RUNNING", "RUNNING", "PREEMPTED"]
    bench.run()
    assert bench.core.stats().preemptions == 1
    for number, length in enumerate((7, 8, 8)):
        bench.assert_undisturbed("abc"[number], [10 + number] * length, 5)


def test_one_short_block_costs_one_victim_whose_blocks_a_launched_step_still_touches() -> None:
    """With two steps in flight nothing is free yet when the victim lets go, and it is enough."""
    bench = Bench(blocks=6, max_num_seqs=3, steps_in_flight=2)
    for name, length, tokens in (("a", 7, 5), ("b", 5, 3), ("c", 5, 3)):
        bench.add(name, length, tokens)
    core = bench.core
    for _ in range(40):
        core.tick()
        launched = core.launch_step()
        if core.stats().preemptions:
            break
        if core.in_flight == 2 or not launched:
            core.finish_step()
    assert bench.free == 0, "what the victim held is still to come"
    assert core.stats().holds["STEP"] == 1
    bench.run()
    assert bench.core.stats().preemptions == 1
    for number, (length, tokens) in enumerate(((7, 5), (5, 3), (5, 3))):
        bench.assert_undisturbed("abc"[number], [10 + number] * length, tokens)


def test_the_last_in_order_is_the_victim_and_comes_back_with_its_output() -> None:
    bench = Bench(blocks=6, max_num_seqs=3)
    for name in "abc":
        bench.add(name, 7, 9)
    bench.run(lambda: bench.core.stats().preemptions > 0)
    assert bench.state("a") == "RUNNING"
    assert bench.state("c") == "PREEMPTED"
    told = len(bench.clients["c"].tokens)
    assert told > 0
    bench.run()
    for number, name in enumerate("abc"):
        bench.assert_undisturbed(name, [10 + number] * 7, 9)


def test_parked_sessions_make_room_before_anybody_is_preempted() -> None:
    bench = Bench(blocks=6)
    bench.add("session", 12, 2, resumable=True)
    bench.run(lambda: bench.state("session") == "WAITING_FOR_STREAMING_REQ")
    assert bench.free == 2
    bench.add("a", 8, 8)
    bench.run(lambda: bench.clients["a"].finish is not None)
    assert bench.core.stats().preemptions == 0
    assert bench.fact("session", "covered") == 0
    bench.chunk("session", [7, 7])
    bench.core.close_input("session")
    bench.run()
    turns = bench.clients["session"].turns
    assert turns[1] == expected_tokens([10] * 12 + turns[0] + [7, 7], 2)


def test_nobody_is_named_unless_it_is_enough() -> None:
    """A parked session keeps its blocks when they could not help anyway."""
    bench = Bench(blocks=8)
    bench.add("session", 4, 1, resumable=True)
    bench.run(lambda: bench.state("session") == "WAITING_FOR_STREAMING_REQ")
    bench.add("a", 16, 5)
    bench.turn()
    assert bench.state("a") == "RUNNING"
    bench.add("b", 24, 2)
    bench.turn()
    assert bench.state("b") == "WAITING"
    assert bench.fact("session", "covered") > 0
    bench.core.abort("session")
    bench.run()
    bench.assert_undisturbed("b", [12] * 24, 2)


def test_who_does_not_fit_holds_back_those_behind_it() -> None:
    bench = Bench(blocks=6)
    bench.add("a", 16, 6)
    bench.turn()
    bench.add("big", 20, 2)
    bench.add("small", 2, 2)
    bench.turn()
    assert bench.state("small") == "WAITING"
    bench.run()
    bench.assert_undisturbed("big", [11] * 20, 2)


def test_a_prompt_that_can_never_fit_is_refused_at_once_and_leaves_nothing() -> None:
    bench = Bench(blocks=4, max_model_len=30)
    with pytest.raises(InvalidRequestError, match=r"17 tokens.*the pool 16 at most"):
        bench.add("a", 17)
    with pytest.raises(InvalidRequestError, match="30 tokens"):
        Bench(blocks=30, max_model_len=30).add("b", 30)
    bench.add("a", 16, 5)
    bench.run()
    assert bench.clients["a"].finish is FinishReason.LENGTH
    assert len(bench.clients["a"].tokens) == 1, "the pool is full"


def test_blocked_requests_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many wait for an outside party, a plan reads nothing of them."""
    bench = Bench(blocks=64, max_num_seqs=2)
    for number in range(20):
        bench.add(f"s{number}", 3, 1, resumable=True)
    bench.run(lambda: len(bench.lifecycle.parked) == 20)
    bench.add("a", 4, 6)
    bench.turn()

    def refuse(lifecycle: Lifecycle) -> None:
        raise AssertionError("a plan looked at the blocked requests")

    for name in ("blocked", "parked", "known_rows", "resident_rows"):
        monkeypatch.setattr(type(bench.lifecycle), name, property(refuse))
    read: list[object] = []

    class Column:
        def __init__(self, column: Any) -> None:
            self.column = column

        def __getitem__(self, rows: Any) -> Any:
            read.append(rows.tolist())
            return self.column[rows]

    view, watched = bench.lifecycle.view, BatchView()
    watched._set(**{name: getattr(view, name) for name in BatchView.__slots__})
    for name in ("target", "limit", "computed", "covered"):
        watched._set(**{name: Column(getattr(view, name))})
    monkeypatch.setattr(bench.lifecycle, "_view", watched)
    plan = bench.core.scheduler.plan(64)
    row = bench.lifecycle.row_of("a")
    assert plan.rows.tolist() == [row]
    assert read == [[row]] * 4


def test_a_request_is_not_computed_beyond_its_last_token() -> None:
    """With two steps in flight the end is known before the last token is."""
    bench = Bench(steps_in_flight=2)
    bench.add("a", 5, 3)
    bench.run()
    assert [batch.counts.tolist() for batch in bench.runner.launched] == [[5], [1], [1]]


def test_the_next_token_of_a_step_in_flight_is_named_as_such() -> None:
    bench = Bench(steps_in_flight=2)
    bench.add("a", 5, 3)
    bench.run()
    assert [batch.tokens.tolist()[-1] for batch in bench.runner.launched] == [10, -1, -1]


def test_what_an_earlier_admission_evicts_no_later_one_of_the_plan_hits() -> None:
    bench = Bench(blocks=10)
    bench.add("x", [1] * 13, 1)
    bench.run()
    bench.add("y", [2] * 21, 1)
    bench.run()
    bench.add("b", 12, 1)  # two blocks were never cached; the third is the last one of x's prefix
    bench.add("c", [1] * 13, 1)
    plan = bench.core.scheduler.plan(64)
    starts = [start for start in plan.starts if isinstance(start, Admission)]
    assert [(len(start.hits), start.new) for start in starts] == [(0, 3), (2, 2)]
    bench.run()
    bench.assert_undisturbed("c", [1] * 13, 1)


def test_a_table_of_a_batch_ends_where_the_step_ends() -> None:
    bench = Bench(max_batched_tokens=6)
    bench.add("a", 15)
    bench.turn()
    batch = bench.runner.launched[0]
    assert batch.tables.shape == (1, 2)
    bench.add("b", 12)
    bench.run()
    for batch in bench.runner.launched:
        needed = -(-(batch.starts + batch.counts) // 4)
        for table, used in zip(batch.tables, needed.tolist(), strict=True):
            assert (table[:used] >= 0).all()
            assert (table[used:] == -1).all()
        assert batch.tables.dtype == batch.tokens.dtype == np.int32


def test_a_session_may_go_on_while_its_old_blocks_are_full_of_hits() -> None:
    bench = Bench(blocks=8)
    params = SamplingParams(max_tokens=3, temperature=0.0)
    bench.add("a", [1] * 9, 3, params=params)
    bench.run()
    bench.add("b", [1] * 9, 3)
    bench.run()
    assert bench.clients["b"].outputs[0].cached_tokens == 8
    assert bench.core.stats().prefix_hits == 8
