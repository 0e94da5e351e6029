"""The guards of the request's table: truth values of the facts and of what an event is told.

`r` is the request's record, `e` the engine's, `x` what the event is told. A guard changes nothing.
"""

from __future__ import annotations

from .facts import Ask, EngineFacts, RequestFacts
from .gates import clocks_stand_still, finishes_work, starts_work
from .lanes import capacity, fresh_output, in_flight, length, must_grow
from .states import FINISHED_REPETITION, FINISHED_STOPPED, PREEMPTED


def resident(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """It has a REQUEST hold."""
    return r.covered > 0


def step_in_flight(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """A launched step may still touch its blocks."""
    return in_flight(r.newest_step, e.processed)


def engine_admits(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    return starts_work(e) or (r.state == PREEMPTED and finishes_work(e))


def engine_loads(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    return starts_work(e)


def engine_steps(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    return finishes_work(e)


def memory_resident(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """Waking may bring weights and cache back one by one: a step needs both."""
    return e.weights_resident and e.cache_resident


def reset_pending(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """A load that starts now would delay the reset that waits: it might then never be done."""
    return e.pending_reset


def held_back_by_reset(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """A waiting reset would see one holder more; what is resident already goes on."""
    return e.pending_reset and r.covered == 0


def old_step_in_flight(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """It let go, and its last step is not processed: old output must not meet a new life."""
    return r.covered == 0 and in_flight(r.newest_step, e.processed)


def room_exists(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    return x.fresh <= x.free


def room_to_grow_exists(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """A growing table has no hits: every block of it leaves the free pool."""
    return x.blocks <= x.free


def room_to_run_exists(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """Without room to run after the load, two loaded requests could wait for each other."""
    return x.fresh + x.reserve <= x.free


def asks_for_blocks(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    return x.blocks > 0


def grows_by_blocks(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """Hits are for a new hold only: here they would overwrite what is computed."""
    return x.blocks > 0 and x.hits == 0


def admission_fits(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """The blocks asked for are consistent: hits are among them, and only a new hold has any."""
    return (
        x.blocks >= 0
        and x.hits >= 0
        and x.hits <= x.blocks
        and x.fresh >= 0
        and x.fresh <= x.blocks
        and x.reserve >= 0
        and r.covered + x.blocks > 0
        and (r.covered == 0 or x.hits == 0)
    )


def takes_hits_and_fresh_only(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """Only a load that is joined has blocks of another kind: they must not slip past the room."""
    return x.blocks <= x.hits + x.fresh


def may_load_again(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """A load that keeps failing must not be tried for ever: at the limit the request recomputes."""
    return r.loads_failed < e.loads_limit


def tier_has_more(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """The tier's prefix is longer than what is computed or hit on the device."""
    return x.remote_tokens > r.computed and x.remote_tokens > x.hits * e.block_size


def transfer_joinable(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """A load that is being cancelled, or has ended, will not write what a new waiter needs."""
    return x.joinable


def names_a_transfer(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """0 stands for none: the request would wait for a signal that never comes."""
    return x.transfer > 0


def names_the_step(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """The step is the newest launched one, and new to this request."""
    return x.step == e.launched and x.step > r.newest_step and x.step > e.processed


def has_tokens(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    return x.tokens > 0


def hold_too_small(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """The step would write beyond its blocks."""
    return must_grow(r.computed, x.tokens, r.covered, e.block_size)


def cuts_only_spare_blocks(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """Blocks with computed tokens stay: their KV would be read after they were handed out."""
    return x.blocks > 0 and x.blocks < r.covered and r.computed <= capacity(x.blocks, e.block_size)


def step_counts(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """The step's output is newer than what was declared stale, and it is a step of this request."""
    return fresh_output(x.step, r.stale_step) and x.step <= r.newest_step


def step_processed(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """Before that nobody knows what the step has written."""
    return x.step <= e.processed


def publishes_what_is_written(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """A block that is a hit before it is full would serve another request unwritten KV."""
    return (
        x.tokens > 0
        and r.written + x.tokens <= r.computed
        and x.blocks >= r.hashed
        and x.blocks * e.block_size <= r.written + x.tokens
    )


def waits_for_it(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """A late signal of an earlier transfer must not end the wait for the present one."""
    return x.transfer > 0 and r.waits_for == x.transfer


def landing_fits(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """What landed for it lies within its hold."""
    return (
        x.tokens >= r.computed
        and x.tokens <= capacity(r.covered, e.block_size)
        and x.blocks >= r.hashed
        and x.blocks * e.block_size <= x.tokens
    )


def valid_prefix_fits(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    return x.blocks >= 0 and x.blocks <= r.covered


def failure_is_fatal(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    return x.fatal


def may_be_preempted(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    return x.allowed or x.forced


def ends_here(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """No further turn can come: not a session, input over, or no room for another token."""
    return not r.resumable or (not r.input_open and r.queued_chunks == 0) or x.at_limit


def by_stop(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    return x.reason == FINISHED_STOPPED


def by_repetition(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    return x.reason == FINISHED_REPETITION


def chunk_queued(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    return r.queued_chunks > 0


def names_the_queued_chunk(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """`tokens` is the length of the first queued chunk: what is left still fits the others."""
    return (
        x.tokens > 0
        and x.tokens + r.queued_chunks - 1 <= r.queued_tokens
        and (r.queued_chunks > 1 or x.tokens == r.queued_tokens)
    )


def merged_chunk_fits(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """The turn that just ended may have left less room than when the chunk was queued."""
    return length(r.prompt, r.delivered) + x.tokens < e.model_length and length(
        r.prompt, r.delivered
    ) + x.tokens <= capacity(e.pool_blocks - e.quarantined, e.block_size)


def chunk_fits(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """With all that is queued already: refused now rather than cut off later."""
    return length(r.prompt, r.delivered) + r.queued_tokens + x.tokens < e.model_length and length(
        r.prompt, r.delivered
    ) + r.queued_tokens + x.tokens <= capacity(e.pool_blocks - e.quarantined, e.block_size)


def prompt_fits(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """The prompt and one token more fit the model, the prompt's KV fits the pool when empty."""
    return x.tokens < e.model_length and x.tokens <= capacity(
        e.pool_blocks - e.quarantined, e.block_size
    )


def needs_grammar(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    return x.grammar


def is_session(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    return r.resumable


def input_is_open(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    return r.input_open


def time_is_over(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    return x.expired


def clock_stands_still(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """A client must not lose its session because the engine is paused."""
    return clocks_stand_still(e)


def nothing_is_left(r: RequestFacts, e: EngineFacts, x: Ask) -> bool:
    """No hold, transfer or step of it: its id can come back without meeting an old signal."""
    return x.idle
