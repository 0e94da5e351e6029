"""The choices on which progress rests."""

import itertools

import numpy as np
from kvproof.statemachine import Ask, EngineFacts, RequestFacts, policy
from kvproof.statemachine.request_guards import may_load_again, prompt_fits

#: (priority, arrival) of requests; arrivals differ.
REQUESTS = [(p, a) for a, p in enumerate((0, 1, 0, 2, 1, -1))]
PAIRS = list(itertools.permutations(REQUESTS, 2))


def test_of_two_requests_exactly_one_is_ahead() -> None:
    assert all(policy.ahead(*a, *b) != policy.ahead(*b, *a) for a, b in PAIRS)


def test_who_is_ahead_of_one_ahead_is_ahead() -> None:
    for a, b, c in itertools.permutations(REQUESTS, 3):
        if policy.ahead(*a, *b) and policy.ahead(*b, *c):
            assert policy.ahead(*a, *c)


def test_a_lower_priority_value_is_ahead_and_among_equals_the_older() -> None:
    assert policy.ahead(0, 9, 1, 2)
    assert policy.ahead(1, 2, 1, 9)


def test_two_requests_are_never_each_others_victims() -> None:
    for a, b in PAIRS:
        assert not (policy.may_be_victim(*a, *b) and policy.may_be_victim(*b, *a))


def test_no_request_is_its_own_victim() -> None:
    assert not any(policy.may_be_victim(*a, *a) for a in REQUESTS)


def test_the_first_request_of_all_is_nobodys_victim_and_may_take_every_other() -> None:
    first = min(REQUESTS)
    others = [r for r in REQUESTS if r != first]
    assert not any(policy.may_be_victim(*first, *other) for other in others)
    assert all(policy.may_be_victim(*other, *first) for other in others)


def test_a_parked_session_gives_way_to_any_request_that_lacks_blocks() -> None:
    assert policy.must_reclaim_parked(free=1, needed=2)
    assert not policy.must_reclaim_parked(free=2, needed=2)


def test_a_waiting_request_gives_way_only_to_one_ahead_of_it() -> None:
    for a, b in PAIRS:
        assert policy.must_reclaim_waiting(0, 1, *a, *b) == policy.ahead(*b, *a)
        assert not policy.must_reclaim_waiting(1, 1, *a, *b)


def test_a_waiting_request_that_the_mode_holds_back_gives_way_to_any() -> None:
    assert policy.must_reclaim_held_back(free=1, needed=2)
    assert not policy.must_reclaim_held_back(free=2, needed=2)


def test_a_running_request_makes_way_for_a_waiting_one_that_is_ahead_and_more_urgent() -> None:
    for a, b in PAIRS:
        more_urgent = b[0] < a[0]
        assert policy.makes_way_for_waiting(*a, False, *b) == more_urgent
        assert more_urgent <= policy.may_be_victim(*a, *b)


def test_among_equals_only_a_stalled_request_makes_way_for_an_older_one_that_waits() -> None:
    for a, b in PAIRS:
        assert policy.makes_way_for_waiting(*a, True, *b) == policy.may_be_victim(*a, *b)


def test_a_load_leaves_a_block_to_each_request_that_runs() -> None:
    assert policy.leaves_room_to_grow(free=5, needed=3, running=2)
    assert not policy.leaves_room_to_grow(free=5, needed=3, running=3)
    assert not policy.leaves_room_to_grow(free=2, needed=3, running=0)


def test_blocks_promised_by_launched_steps_spare_a_second_victim() -> None:
    assert not policy.enough(free=1, promised=0, needed=3)
    assert policy.enough(free=1, promised=2, needed=3)


def test_a_load_is_tried_as_often_as_the_declaration_allows_it() -> None:
    for failed, limit in itertools.product(range(5), range(1, 5)):
        guard = may_load_again(
            RequestFacts(loads_failed=failed), EngineFacts(loads_limit=limit), Ask()
        )
        assert policy.may_load(failed, limit) == guard


def test_what_was_taken_in_never_fits_only_after_quarantine_took_blocks() -> None:
    for tokens, quarantined in itertools.product(range(1, 40), range(8)):
        e = EngineFacts(pool_blocks=8, block_size=4, model_length=99)
        assert prompt_fits(RequestFacts(), e, Ask(tokens=tokens)) != policy.never_fits(
            tokens, 8, 0, 4
        )
        if not policy.never_fits(tokens, 8, quarantined, 4):
            assert not policy.never_fits(tokens, 8, 0, 4)


def test_a_load_that_nobody_waits_for_is_cancelled_and_a_store_is_not() -> None:
    assert policy.cancel_unwaited(kind_is_load=True, waiters=0)
    assert not policy.cancel_unwaited(kind_is_load=True, waiters=1)
    assert not policy.cancel_unwaited(kind_is_load=False, waiters=0)


def test_the_choices_are_the_same_for_arrays_as_for_numbers() -> None:
    columns = np.array([(*a, *b) for a, b in PAIRS], dtype=np.int64).T
    assert policy.ahead(*columns).tolist() == [policy.ahead(*a, *b) for a, b in PAIRS]
    assert policy.may_be_victim(*columns).tolist() == [
        policy.may_be_victim(*a, *b) for a, b in PAIRS
    ]
    assert policy.must_reclaim_waiting(0, 1, *columns).tolist() == [
        policy.must_reclaim_waiting(0, 1, *a, *b) for a, b in PAIRS
    ]
    stalled = np.arange(len(PAIRS)) % 2 == 0
    assert policy.makes_way_for_waiting(*columns[:2], stalled, *columns[2:]).tolist() == [
        policy.makes_way_for_waiting(*a, bool(s), *b)
        for (a, b), s in zip(PAIRS, stalled, strict=True)
    ]
    free = np.arange(6)
    assert policy.leaves_room_to_grow(free, 2, 1).tolist() == [n >= 3 for n in range(6)]
    assert policy.enough(free, 1, 3).tolist() == [policy.enough(n, 1, 3) for n in range(6)]
    assert policy.never_fits(free, 2, 1, 3).tolist() == [n > 3 for n in range(6)]
