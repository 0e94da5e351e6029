"""The table of a reset says what its functions do; the three outcomes follow from who refuses."""

import itertools

import pytest
from kvproof.statemachine import (
    ENGINE,
    REQUEST,
    Answer,
    Ask,
    EndsBy,
    EngineAsk,
    EngineFacts,
    RequestEvent,
    RequestFacts,
    ResetOutcome,
    TransferState,
    answer_of,
    reset,
)
from kvproof.statemachine.states import (
    ACTIVE,
    FINISHED,
    LIVE,
    PREEMPT,
    RECLAIM,
    RUNNING,
    UNKNOWN,
    WAITING,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
)

from ..reference.driving import PROMPT, engine, run

OPEN = ("QUEUED", "IN_FLIGHT", "CANCELLING")


def written() -> dict[str, tuple[str, str]]:
    """The table of the module's docstring: holder -> (plain reset, forced reset)."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in str(reset.__doc__).splitlines()
        if line.startswith("|")
    ]
    assert rows[0] == ["holder", "plain reset", "forced reset"]
    return {holder: (plain, forced) for holder, plain, forced in rows[2:]}


def of_request(state: int, force: bool) -> str:
    """What the functions say of a resident request."""
    if reset.request_refuses(state, True, force):
        if force:
            return "named beside its transfer"
        return f"refuses: {EndsBy(reset.request_ends_by(state)).name.lower()}"
    return {PREEMPT: "preempted", RECLAIM: "reclaimed"}[reset.forced_event(state)]


def of_transfer(state: int) -> str:
    """What the functions say of a transfer, which no flag changes."""
    return "refuses: itself" if reset.transfer_refuses(state) else "passed over"


def of_a_launched_step(force: bool) -> str:
    """What an engine that runs the declaration does with the step, while its request is held."""
    e = engine()
    request = e.add("a", PROMPT)
    run(e, 1)
    e.step()
    before = len(request.delivered)
    assert e.launched
    answer = e.reset(force=force)
    # It neither refuses the reset nor is its output lost with the request's hold.
    assert answer.success == force
    assert all(holder.kind == "REQUEST" for holder in answer.holders)
    processed = not e.launched and len(request.delivered) == before + 1
    return "processed first" if processed else "left"


def test_the_table_in_the_docstring_is_what_the_functions_do() -> None:
    requests = {
        "running request": RUNNING,
        "resident waiting request": WAITING,
        "parked session": WAITING_FOR_STREAMING_REQ,
        "request that waits for one": WAITING_FOR_REMOTE_KVS,
    }
    by_functions = {
        holder: (of_request(state, False), of_request(state, True))
        for holder, state in requests.items()
    }
    for state in OPEN:
        said = of_transfer(TransferState[state])
        by_functions["transfer that has not ended"] = (said, said)
        assert said == "refuses: itself"
    said = of_transfer(TransferState.QUARANTINED)
    by_functions["quarantined block"] = (said, said)
    # The engine processes the launched steps before it looks: no function chooses here.
    by_functions["launched step"] = (of_a_launched_step(False), of_a_launched_step(True))
    assert written() == by_functions


def test_what_ended_refuses_nothing() -> None:
    for state in TransferState:
        assert reset.transfer_refuses(state) == (state.name in OPEN)
    for state in (UNKNOWN, *FINISHED):
        assert reset.request_ends_by(state) == EndsBy.NOTHING


def test_only_a_request_that_holds_blocks_refuses() -> None:
    for state, force in itertools.product(LIVE, (False, True)):
        assert not reset.request_refuses(state, False, force)
        assert force or reset.request_refuses(state, True, force)


def test_a_forced_reset_is_refused_by_no_request_but_one_that_loads() -> None:
    may_hold_blocks = (RUNNING, WAITING, WAITING_FOR_STREAMING_REQ, WAITING_FOR_REMOTE_KVS)
    refusing = [state for state in may_hold_blocks if reset.request_refuses(state, True, True)]
    assert refusing == [WAITING_FOR_REMOTE_KVS]


def test_the_event_of_a_forced_reset_goes_and_the_blocks_are_let_go() -> None:
    for state in (RUNNING, WAITING, WAITING_FOR_STREAMING_REQ):
        r = RequestFacts(state=state, covered=3, computed=9, written=9, hashed=2, delivered=4)
        code = REQUEST.fire(
            reset.forced_event(state), r, EngineFacts(mode=ACTIVE, block_size=4), Ask(forced=True)
        )
        assert answer_of(code) == Answer.GO
        assert (r.covered, r.computed, r.hashed, r.delivered) == (0, 0, 0, 4)


@pytest.mark.parametrize("refusing", [0, 1, 3])
@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("cleared", [False, True])
def test_the_outcome_follows_from_who_refuses_and_what_the_tier_says(
    refusing: int, asked: bool, cleared: bool
) -> None:
    outcome = ResetOutcome(reset.outcome(refusing, asked, cleared))
    if refusing:
        assert outcome is ResetOutcome.REFUSED
    else:
        partial = asked and not cleared
        assert outcome is (ResetOutcome.PARTIAL if partial else ResetOutcome.DONE)


def test_a_refused_reset_sends_nothing_to_anybody_and_drops_no_prefix() -> None:
    for state, resident in itertools.product(LIVE, (False, True)):
        assert reset.sent_event(1, state, resident) == reset.NO_EVENT
        sent = reset.forced_event(state) if resident else reset.NO_EVENT
        assert reset.sent_event(0, state, resident) == sent
    assert reset.drops_prefixes(refusing=0)
    assert not reset.drops_prefixes(refusing=1)


def test_a_refused_reset_does_not_touch_the_tier() -> None:
    assert reset.clears_tier(refusing=0, tier_asked=True)
    assert not reset.clears_tier(refusing=1, tier_asked=True)
    assert not reset.clears_tier(refusing=0, tier_asked=False)


def test_a_reset_waits_only_for_what_ends_by_itself() -> None:
    assert reset.may_wait(refusing=2, refusing_by_client=0, wait_asked=True)
    assert not reset.may_wait(refusing=2, refusing_by_client=1, wait_asked=True)
    assert not reset.may_wait(refusing=2, refusing_by_client=0, wait_asked=False)
    assert not reset.may_wait(refusing=0, refusing_by_client=0, wait_asked=True)


def test_while_a_reset_is_pending_nothing_starts_that_would_delay_it() -> None:
    e = EngineFacts(
        mode=ACTIVE, weights_resident=1, cache_resident=1, block_size=4, pool_blocks=9,
        model_length=99, loads_limit=3,
    )  # fmt: skip
    ENGINE.fire(ENGINE.table.events["RESET_PENDING"], e, EngineAsk())

    def answer(event: RequestEvent, **facts: int) -> Answer:
        ask = Ask(blocks=2, fresh=2, free=9, transfer=1, joinable=1, remote_tokens=40)
        code = REQUEST.fire(event, RequestFacts(state=WAITING, prompt=9, **facts), e, ask)
        return Answer(answer_of(code))

    assert answer(RequestEvent.ADMIT) is Answer.NOT_NOW
    assert answer(RequestEvent.ADMIT_REMOTE) is Answer.NOT_NOW
    assert answer(RequestEvent.ADMIT_REMOTE, covered=1) is Answer.NOT_NOW
    assert answer(RequestEvent.ADMIT, covered=1) is Answer.GO
    ENGINE.fire(ENGINE.table.events["RESET_DECIDED"], e, EngineAsk())
    assert answer(RequestEvent.ADMIT) is Answer.GO
    assert answer(RequestEvent.ADMIT_REMOTE) is Answer.GO
