"""The request's table: every event in every state, with its guards and effects.

Read `ROWS` from top to bottom: it is the whole lifecycle. Rows of a cell are tried in order and
the first whose guards hold decides. Guards are in `request_guards`, effects in `request_effects`.
"""

from __future__ import annotations

from .answers import IGNORE, NOT_NOW, REJECT
from .compile import compile_table
from .request_effects import (
    begin,
    begin_residency,
    close_input,
    compute,
    cut_hold,
    deliver,
    drop_queue,
    erase,
    fall_back,
    give_up_loading,
    keep_what_is_written,
    land,
    let_go,
    make_stale,
    publish,
    queue_chunk,
    start_turn,
    stop_waiting,
    take_blocks,
    unqueue_chunk,
    use_reserved,
    wait_for_transfer,
)
from .request_guards import (
    admission_fits,
    asks_for_blocks,
    by_repetition,
    by_stop,
    chunk_fits,
    chunk_queued,
    clock_stands_still,
    cuts_only_spare_blocks,
    ends_here,
    engine_admits,
    engine_loads,
    engine_steps,
    failure_is_fatal,
    grows_by_blocks,
    has_tokens,
    held_back_by_reset,
    hold_too_small,
    input_is_open,
    is_session,
    landing_fits,
    may_be_preempted,
    may_load_again,
    memory_resident,
    merged_chunk_fits,
    names_a_transfer,
    names_the_queued_chunk,
    names_the_step,
    needs_grammar,
    nothing_is_left,
    old_step_in_flight,
    prompt_fits,
    publishes_what_is_written,
    reset_pending,
    resident,
    room_exists,
    room_to_grow_exists,
    room_to_run_exists,
    step_counts,
    step_in_flight,
    step_processed,
    takes_hits_and_fresh_only,
    tier_has_more,
    time_is_over,
    transfer_joinable,
    valid_prefix_fits,
    waits_for_it,
)
from .states import (
    FINISHED,
    FINISHED_ABORTED,
    FINISHED_ERROR,
    FINISHED_IGNORED,
    FINISHED_LENGTH_CAPPED,
    FINISHED_REPETITION,
    FINISHED_STOPPED,
    IN_BLOCKED,
    IN_RUNNING,
    IN_WAITING,
    LIVE,
    NOWHERE,
    PREEMPTED,
    RUNNING,
    UNKNOWN,
    WAITING,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
    RequestEvent,
    RequestState,
)
from .table import Row, Table, others

E = RequestEvent
ENDED = (UNKNOWN, *FINISHED)
ADMISSIBLE = (WAITING, PREEMPTED)
PARKED = WAITING_FOR_STREAMING_REQ
LOADING = WAITING_FOR_REMOTE_KVS
GRAMMAR = WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
FINISH = (let_go, stop_waiting, drop_queue)


def _not_in(*named: tuple[int, ...]) -> tuple[int, ...]:
    return others(RequestState, *named)


# One line or two a row: the table is to be read as a table.
# fmt: off
ROWS = (
    # add
    Row(E.ADD, (UNKNOWN,), unless=(has_tokens,), answer=REJECT, why="the prompt is empty"),
    Row(E.ADD, (UNKNOWN,), FINISHED_IGNORED, unless=(prompt_fits,), before=(begin, drop_queue),
        why="longer than the model or the pool can ever take"),
    Row(E.ADD, (UNKNOWN,), GRAMMAR, conditions=(needs_grammar,), before=(begin,),
        why="waits for its grammar"),
    Row(E.ADD, (UNKNOWN,), WAITING, before=(begin,), why="waits to be admitted"),
    Row(E.ADD, _not_in((UNKNOWN,)), answer=REJECT,
        why="the id is live, or a step or transfer of its last life is left"),
    # grammar
    Row(E.GRAMMAR_READY, (GRAMMAR,), WAITING, why="the grammar is compiled"),
    Row(E.GRAMMAR_READY, _not_in((GRAMMAR,)), answer=IGNORE, why="it waits for no grammar"),
    Row(E.GRAMMAR_FAILED, (GRAMMAR,), FINISHED_ERROR, before=FINISH, why="no grammar, no output"),
    Row(E.GRAMMAR_FAILED, _not_in((GRAMMAR,)), answer=IGNORE, why="it waits for no grammar"),
    # admit
    Row(E.ADMIT, ADMISSIBLE, unless=(admission_fits,), answer=REJECT,
        why="the blocks asked for contradict each other"),
    Row(E.ADMIT, ADMISSIBLE, unless=(takes_hits_and_fresh_only,), answer=REJECT,
        why="blocks that are neither hits nor fresh belong to a load"),
    Row(E.ADMIT, ADMISSIBLE, unless=(engine_admits,), answer=NOT_NOW,
        why="the engine admits nothing in this mode"),
    Row(E.ADMIT, ADMISSIBLE, unless=(memory_resident,), answer=NOT_NOW,
        why="weights or cache are asleep"),
    Row(E.ADMIT, ADMISSIBLE, conditions=(held_back_by_reset,), answer=NOT_NOW,
        why="a reset is pending"),
    Row(E.ADMIT, ADMISSIBLE, conditions=(old_step_in_flight,), answer=NOT_NOW,
        why="its last step is not processed"),
    Row(E.ADMIT, ADMISSIBLE, unless=(room_exists,), answer=NOT_NOW, why="too few blocks are free"),
    Row(E.ADMIT, ADMISSIBLE, RUNNING, before=(begin_residency, take_blocks, use_reserved),
        why="it runs"),
    Row(E.ADMIT, _not_in(ADMISSIBLE), answer=REJECT, why="it does not wait for admission"),
    # admit_remote
    Row(E.ADMIT_REMOTE, ADMISSIBLE, unless=(admission_fits,), answer=REJECT,
        why="the blocks asked for contradict each other"),
    Row(E.ADMIT_REMOTE, ADMISSIBLE, unless=(asks_for_blocks,), answer=REJECT,
        why="no block is asked for"),
    Row(E.ADMIT_REMOTE, ADMISSIBLE, unless=(names_a_transfer,), answer=REJECT,
        why="no transfer is named"),
    Row(E.ADMIT_REMOTE, ADMISSIBLE, unless=(engine_loads,), answer=NOT_NOW,
        why="the engine admits nothing in this mode"),
    Row(E.ADMIT_REMOTE, ADMISSIBLE, unless=(memory_resident,), answer=NOT_NOW,
        why="weights or cache are asleep"),
    Row(E.ADMIT_REMOTE, ADMISSIBLE, conditions=(reset_pending,), answer=NOT_NOW,
        why="a reset is pending"),
    Row(E.ADMIT_REMOTE, ADMISSIBLE, conditions=(step_in_flight,), answer=NOT_NOW,
        why="its last step is not processed"),
    Row(E.ADMIT_REMOTE, ADMISSIBLE, unless=(may_load_again,), answer=NOT_NOW,
        why="too many loads failed for it: recompute"),
    Row(E.ADMIT_REMOTE, ADMISSIBLE, unless=(tier_has_more,), answer=NOT_NOW,
        why="the tier has no longer prefix"),
    Row(E.ADMIT_REMOTE, ADMISSIBLE, unless=(transfer_joinable,), answer=NOT_NOW,
        why="the transfer can no longer be joined"),
    Row(E.ADMIT_REMOTE, ADMISSIBLE, unless=(room_to_run_exists,), answer=NOT_NOW,
        why="too few blocks are free to load and to run afterwards"),
    Row(E.ADMIT_REMOTE, ADMISSIBLE, LOADING,
        before=(begin_residency, take_blocks, wait_for_transfer), why="its prefix is loaded"),
    Row(E.ADMIT_REMOTE, _not_in(ADMISSIBLE), answer=REJECT, why="it does not wait for admission"),
    # grow, trim
    Row(E.GROW, (RUNNING,), unless=(grows_by_blocks,), answer=REJECT,
        why="no block is asked for, or hits for a hold that has begun"),
    Row(E.GROW, (RUNNING,), unless=(engine_steps,), answer=NOT_NOW,
        why="no step starts in this mode"),
    Row(E.GROW, (RUNNING,), unless=(room_to_grow_exists,), answer=NOT_NOW,
        why="too few blocks are free"),
    Row(E.GROW, (RUNNING,), before=(take_blocks,), why="its table grows"),
    Row(E.GROW, _not_in((RUNNING,)), answer=REJECT, why="it does not run"),
    Row(E.TRIM, (RUNNING,), unless=(cuts_only_spare_blocks,), answer=REJECT,
        why="only blocks beyond the computed tokens can be cut"),
    Row(E.TRIM, (RUNNING,), conditions=(step_in_flight,), answer=NOT_NOW,
        why="its last step is not processed"),
    Row(E.TRIM, (RUNNING,), before=(cut_hold,), why="its table shrinks"),
    Row(E.TRIM, _not_in((RUNNING,)), answer=REJECT, why="it does not run"),
    # launch, publish
    Row(E.LAUNCH, (RUNNING,), unless=(names_the_step,), answer=REJECT,
        why="not the step that is being launched"),
    Row(E.LAUNCH, (RUNNING,), unless=(has_tokens,), answer=REJECT, why="nothing to compute"),
    Row(E.LAUNCH, (RUNNING,), unless=(memory_resident,), answer=NOT_NOW,
        why="weights or cache are asleep"),
    Row(E.LAUNCH, (RUNNING,), conditions=(hold_too_small,), answer=NOT_NOW,
        why="its hold does not cover the tokens"),
    Row(E.LAUNCH, (RUNNING,), before=(compute,), why="a step computes it"),
    Row(E.LAUNCH, _not_in((RUNNING,)), answer=REJECT, why="it does not run"),
    Row(E.PUBLISH, LIVE, unless=(resident,), answer=IGNORE, why="it has let go"),
    Row(E.PUBLISH, LIVE, unless=(step_counts,), answer=IGNORE, why="the step is stale"),
    Row(E.PUBLISH, LIVE, unless=(step_processed,), answer=REJECT, why="the step is not processed"),
    Row(E.PUBLISH, LIVE, unless=(publishes_what_is_written,), answer=REJECT,
        why="more than its steps have written"),
    Row(E.PUBLISH, LIVE, before=(publish,), why="the blocks that the step filled become hits"),
    Row(E.PUBLISH, ENDED, answer=IGNORE, why="it is finished or unknown"),
    # transfer signals
    Row(E.TRANSFER_LANDED, (LOADING,), unless=(waits_for_it,), answer=IGNORE,
        why="it waits for another transfer"),
    Row(E.TRANSFER_LANDED, (LOADING,), unless=(landing_fits,), answer=REJECT,
        why="more than its hold covers"),
    Row(E.TRANSFER_LANDED, (LOADING,), WAITING, before=(land, stop_waiting),
        why="its prefix is there"),
    Row(E.TRANSFER_LANDED, _not_in((LOADING,)), answer=IGNORE, why="it waits for no transfer"),
    Row(E.TRANSFER_FAILED, (LOADING,), unless=(waits_for_it,), answer=IGNORE,
        why="it waits for another transfer"),
    Row(E.TRANSFER_FAILED, (LOADING,), FINISHED_ERROR, conditions=(failure_is_fatal,),
        before=FINISH, why="the policy is to fail"),
    Row(E.TRANSFER_FAILED, (LOADING,), unless=(valid_prefix_fits,), answer=REJECT,
        why="more than its hold covers"),
    Row(E.TRANSFER_FAILED, (LOADING,), WAITING, before=(fall_back, stop_waiting),
        why="it tries again with what is valid, or recomputes"),
    Row(E.TRANSFER_FAILED, _not_in((LOADING,)), answer=IGNORE, why="it waits for no transfer"),
    # output
    Row(E.OUTPUT, (RUNNING, PREEMPTED), unless=(step_counts,), answer=IGNORE,
        why="the step is stale"),
    Row(E.OUTPUT, (RUNNING, PREEMPTED), unless=(has_tokens,), answer=REJECT,
        why="output without tokens"),
    Row(E.OUTPUT, (RUNNING, PREEMPTED), before=(deliver,), why="delivered, also when preempted"),
    Row(E.OUTPUT, _not_in((RUNNING, PREEMPTED)), answer=IGNORE, why="its turn or life is over"),
    # preempt
    Row(E.PREEMPT, (RUNNING,), unless=(may_be_preempted,), answer=NOT_NOW,
        why="the policy protects it"),
    Row(E.PREEMPT, (RUNNING,), PREEMPTED, before=(let_go,), why="it makes room and recomputes"),
    Row(E.PREEMPT, _not_in((RUNNING,)), answer=REJECT, why="it does not run"),
    # stop
    Row(E.STOP, (RUNNING, PREEMPTED), unless=(step_counts,), answer=IGNORE,
        why="the step is stale"),
    Row(E.STOP, (RUNNING, PREEMPTED), FINISHED_STOPPED, conditions=(ends_here, by_stop),
        before=(make_stale, *FINISH), why="a stop token or string"),
    Row(E.STOP, (RUNNING, PREEMPTED), FINISHED_REPETITION, conditions=(ends_here, by_repetition),
        before=(make_stale, *FINISH), why="it repeats itself"),
    Row(E.STOP, (RUNNING, PREEMPTED), FINISHED_LENGTH_CAPPED, conditions=(ends_here,),
        before=(make_stale, *FINISH), why="as long as it may get"),
    Row(E.STOP, (RUNNING, PREEMPTED), WAITING_FOR_STREAMING_REQ, unless=(chunk_queued,),
        before=(make_stale, keep_what_is_written), why="the turn is over, the session parks"),
    Row(E.STOP, (RUNNING, PREEMPTED), unless=(names_the_queued_chunk,), answer=REJECT,
        why="not the chunk that is queued first"),
    Row(E.STOP, (RUNNING, PREEMPTED), FINISHED_LENGTH_CAPPED, unless=(merged_chunk_fits,),
        before=(make_stale, *FINISH), why="the queued chunk no longer fits"),
    Row(E.STOP, (RUNNING, PREEMPTED), WAITING,
        before=(make_stale, keep_what_is_written, unqueue_chunk, start_turn),
        why="the turn is over, the queued chunk starts the next"),
    Row(E.STOP, _not_in((RUNNING, PREEMPTED)), answer=IGNORE, why="its turn or life is over"),
    # chunk, close_input
    Row(E.CHUNK, LIVE, unless=(is_session,), answer=REJECT, why="it is not a session"),
    Row(E.CHUNK, LIVE, unless=(input_is_open,), answer=REJECT, why="its input is closed"),
    Row(E.CHUNK, LIVE, unless=(has_tokens,), answer=REJECT, why="the chunk is empty"),
    Row(E.CHUNK, LIVE, unless=(chunk_fits,), answer=REJECT,
        why="longer than the model or the pool can ever take"),
    Row(E.CHUNK, (PARKED,), WAITING, before=(start_turn,), why="it starts the next turn"),
    Row(E.CHUNK, others(RequestState, ENDED, (PARKED,)), before=(queue_chunk,),
        why="it waits for the turn's end"),
    Row(E.CHUNK, ENDED, answer=REJECT, why="it is finished or unknown"),
    Row(E.CLOSE_INPUT, LIVE, unless=(is_session,), answer=REJECT, why="it is not a session"),
    Row(E.CLOSE_INPUT, LIVE, unless=(input_is_open,), answer=IGNORE, why="its input is closed"),
    Row(E.CLOSE_INPUT, (PARKED,), FINISHED_STOPPED, before=FINISH, why="nothing more can come"),
    Row(E.CLOSE_INPUT, others(RequestState, ENDED, (PARKED,)), before=(close_input,),
        why="it finishes what it has"),
    Row(E.CLOSE_INPUT, ENDED, answer=IGNORE, why="it is finished or unknown"),
    # reclaim
    Row(E.RECLAIM, (PARKED, WAITING), unless=(resident,), answer=IGNORE, why="it holds nothing"),
    Row(E.RECLAIM, (PARKED, WAITING), before=(let_go,), why="its blocks serve others meanwhile"),
    Row(E.RECLAIM, _not_in((PARKED, WAITING)), answer=REJECT,
        why="only what is parked or waits resident can be reclaimed"),
    # abort, error
    Row(E.ABORT, LIVE, FINISHED_ABORTED, before=FINISH, why="the client gave up"),
    Row(E.ABORT, ENDED, answer=IGNORE, why="it is finished or unknown"),
    Row(E.ERROR, LIVE, FINISHED_ERROR, before=FINISH, why="it cannot go on"),
    Row(E.ERROR, ENDED, answer=IGNORE, why="it is finished or unknown"),
    # deadline
    Row(E.DEADLINE, (GRAMMAR, PARKED), conditions=(clock_stands_still,), answer=NOT_NOW,
        why="the clock stands still while paused"),
    Row(E.DEADLINE, (GRAMMAR, LOADING, PARKED), unless=(time_is_over,), answer=NOT_NOW,
        why="its time is not over"),
    Row(E.DEADLINE, (GRAMMAR,), FINISHED_ERROR, before=FINISH, why="no grammar in time"),
    Row(E.DEADLINE, (LOADING,), WAITING, before=(let_go, stop_waiting, give_up_loading),
        why="no load in time: recompute"),
    Row(E.DEADLINE, (PARKED,), FINISHED_ABORTED, before=FINISH, why="no chunk in time"),
    Row(E.DEADLINE, _not_in((GRAMMAR, LOADING, PARKED)), answer=IGNORE,
        why="it waits for no outside party"),
    # forget
    Row(E.FORGET, FINISHED, unless=(nothing_is_left,), answer=NOT_NOW,
        why="a hold or transfer of it is left"),
    Row(E.FORGET, FINISHED, conditions=(step_in_flight,), answer=NOT_NOW,
        why="its last step is not processed"),
    Row(E.FORGET, FINISHED, UNKNOWN, before=(erase,), why="the id may be used again"),
    Row(E.FORGET, LIVE, answer=REJECT, why="it is live"),
    Row(E.FORGET, (UNKNOWN,), answer=IGNORE, why="nobody knows it"),
)
# fmt: on

REQUEST_TABLE = Table("request", ("r", "e", "x"), "state", RequestState, RequestEvent, ROWS)
REQUEST = compile_table(REQUEST_TABLE)


def container(state: int) -> int:
    """The container that a request of this state is in. There is no second writer."""
    if state == WAITING or state == PREEMPTED:
        return IN_WAITING
    if state == RUNNING:
        return IN_RUNNING
    if state == GRAMMAR or state == LOADING or state == PARKED:
        return IN_BLOCKED
    return NOWHERE
