"""The effects of the request's table: each changes the record and returns hold commands.

`r` is the request's record, `e` the engine's, `x` what the event is told.
"""

from __future__ import annotations

from .answers import HAND_OVER, MAKE_HITS, RELEASE, STOP_WAITING, TAKE, TRIM, WAIT
from .facts import Ask, EngineFacts, RequestFacts
from .lanes import advance, in_flight


def begin(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    r.prompt = x.tokens
    r.resumable = x.resumable
    r.input_open = x.resumable
    r.priority = x.priority
    r.arrival = x.arrival
    return 0


def let_go(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    """The one way in which residency ends, the same in every row that ends it.

    The blocks are released, unless a launched step still touches them: then the hold is handed
    over to the newest such step, counts unchanged. Nothing computed is left.
    """
    r.computed = 0
    r.written = 0
    r.hashed = 0
    r.reserved = 0
    if r.covered == 0:
        return 0
    r.covered = 0
    if in_flight(r.newest_step, e.processed):
        return HAND_OVER
    return RELEASE


def stop_waiting(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    if r.waits_for == 0:
        return 0
    r.waits_for = 0
    return STOP_WAITING


def begin_residency(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    """A new hold: whatever still comes back from the last one must not meet it."""
    if r.covered == 0:
        r.stale_step = r.newest_step
    return 0


def take_blocks(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    """Cover the blocks asked for; a new hold starts behind its prefix hits."""
    if x.hits > 0:
        r.computed = x.hits * e.block_size
        r.written = x.hits * e.block_size
        r.hashed = x.hits
    r.covered = r.covered + x.blocks
    return TAKE


def use_reserved(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    r.reserved = 0
    return 0


def wait_for_transfer(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    r.waits_for = x.transfer
    r.reserved = x.reserve
    return WAIT


def cut_hold(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    r.covered = x.blocks
    return TRIM


def compute(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    r.newest_step = x.step
    r.computed = advance(r.computed, x.tokens)
    return 0


def publish(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    r.written = advance(r.written, x.tokens)
    r.hashed = x.blocks
    return MAKE_HITS


def land(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    r.computed = x.tokens
    r.written = x.tokens
    r.hashed = x.blocks
    return MAKE_HITS


def fall_back(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    """Keep the valid prefix only: nobody may recompute into a block that is still written.

    Two waiters of one load would otherwise recompute into the same block.
    """
    r.loads_failed = r.loads_failed + 1
    r.reserved = 0
    r.computed = x.blocks * e.block_size
    r.written = x.blocks * e.block_size
    r.hashed = x.blocks
    if x.blocks == 0:
        return let_go(r, e, x)
    if x.blocks < r.covered:
        r.covered = x.blocks
        return TRIM | MAKE_HITS
    return MAKE_HITS


def deliver(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    r.delivered = advance(r.delivered, x.tokens)
    return 0


def make_stale(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    """What is in flight for the turn that ended must never be delivered."""
    r.stale_step = r.newest_step
    return 0


def keep_what_is_written(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    """A turn's end keeps table and tokens, but not what a stale step is still computing."""
    r.computed = r.written
    return 0


def start_turn(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    r.prompt = r.prompt + x.tokens
    r.turn_start = r.delivered
    return 0


def queue_chunk(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    r.queued_chunks = r.queued_chunks + 1
    r.queued_tokens = r.queued_tokens + x.tokens
    return 0


def unqueue_chunk(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    r.queued_chunks = r.queued_chunks - 1
    r.queued_tokens = r.queued_tokens - x.tokens
    return 0


def close_input(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    r.input_open = False
    return 0


def drop_queue(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    """A finished request takes no chunk and starts no turn."""
    r.input_open = False
    r.queued_chunks = 0
    r.queued_tokens = 0
    return 0


def give_up_loading(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    """A load that was too slow once is not tried again, or the request might wait for ever."""
    r.loads_failed = e.loads_limit
    return 0


def erase(r: RequestFacts, e: EngineFacts, x: Ask) -> int:
    """Back to the record of an id that was never seen."""
    r.newest_step = 0
    r.stale_step = 0
    r.prompt = 0
    r.delivered = 0
    r.turn_start = 0
    r.loads_failed = 0
    r.resumable = False
    r.priority = 0
    r.arrival = 0
    return 0
