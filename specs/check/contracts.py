"""What the proofs take for granted: the events are told the truth.

The declaration decides on what it is told: how many blocks are free, whether a transfer can be
joined, what a processed step has computed. Each contract says who tells it, and where the engine
or a test checks it while running. `kvproof check` prints them as assumptions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...statemachine.states import (
    ABSENT,
    ADMIT,
    ADMIT_REMOTE,
    CANCELLING,
    FAILED,
    GROW,
    IN_FLIGHT,
    LIVE,
    LOAD,
    PAUSE_REACHED,
    PREEMPTED,
    QUEUED,
    RUNNING,
    STORE,
    EngineEvent,
    RequestEvent,
    TransferEvent,
)
from ..symbolic.terms import BoolTerm
from .logic import among, both, either, implies, no, one, same
from .state import View

TAKING = (ADMIT, ADMIT_REMOTE, GROW)
OPEN = (QUEUED, IN_FLIGHT, CANCELLING)


@dataclass(frozen=True)
class Contract:
    """What is true of the things that some events are told."""

    name: str
    words: str
    owner: str
    checked: str
    machine: str
    events: tuple[int, ...]
    formula: Callable[[View], BoolTerm]


def takes_nothing(s: View) -> BoolTerm:
    """No other event names blocks."""
    return no(s.pick.named)


def blocks_exist(s: View) -> BoolTerm:
    """What an event takes is in the table, fresh, a hit, or a block of the load that it joins."""
    fresh = both(
        s.pick.fresh,
        s.declared("blocks", "may_hand_out"),
        s.pick.position >= s.ask.hits,
        implies(s.pick.loaded, s.t.state == ABSENT),
    )
    hit = both(
        no(s.pick.loaded),
        s.pick.position < s.ask.hits,
        s.declared("blocks", "may_hit"),
        s.b.hashed_as == s.pick.prefix,
        s.more.epoch == s.e.epoch,
    )
    joined = both(
        s.pick.loaded,
        s.ask.transfer == s.copy.number,
        s.held.by_transfer,
        s.copy.carried,
        s.t.kind == LOAD,
        among(s.t.state, (QUEUED, IN_FLIGHT)),
        s.copy.prefix == s.pick.prefix,
        s.pick.position >= s.ask.hits,
    )
    new = both(
        s.pick.position >= s.r.covered,
        s.pick.position < s.r.covered + s.ask.blocks,
        s.pick.prefix > 0,
        either(fresh, both(no(s.pick.fresh), either(hit, joined))),
    )
    in_table = s.place.position >= 0
    return implies(s.pick.named, either(both(in_table, no(s.pick.fresh)), both(no(in_table), new)))


def joins_no_load(s: View) -> BoolTerm:
    """Only admit_remote takes blocks of a load."""
    return both(s.ask.transfer == 0, no(s.pick.loaded))


def landed_is_complete(s: View) -> BoolTerm:
    """Landed: what the load carried for it is there, within its hold, behind what it had."""
    valid = either(
        both(s.copy.carried, s.copy.prefix == s.place.prefix),
        (s.place.position + 1) * s.e.block_size <= s.place.written,
    )
    in_table = s.place.position >= 0
    return both(
        s.ask.transfer == s.copy.number,
        s.ask.tokens >= s.r.computed,
        s.ask.tokens <= s.r.covered * s.e.block_size,
        s.ask.blocks >= s.r.hashed,
        s.ask.blocks * s.e.block_size <= s.ask.tokens,
        implies(both(in_table, (s.place.position + 1) * s.e.block_size <= s.ask.tokens), valid),
        implies(both(in_table, s.copy.carried), s.place.position < s.ask.blocks),
    )


def valid_prefix_is_valid(s: View) -> BoolTerm:
    """Not landed: only FAILED may name a valid prefix, and its blocks are complete."""
    valid = either(
        both(s.copy.carried, s.transfer_pick.valid, s.copy.prefix == s.place.prefix),
        both(no(s.copy.carried), (s.place.position + 1) * s.e.block_size <= s.place.written),
    )
    return both(
        s.ask.transfer == s.copy.number,
        s.ask.blocks >= 0,
        s.ask.blocks <= s.r.covered,
        implies(s.t.state != FAILED, s.ask.blocks == 0),
        implies(both(s.place.position >= 0, s.place.position < s.ask.blocks), valid),
    )


def names_its_transfer(s: View) -> BoolTerm:
    """The transfer that admit_remote names is a load that can be joined, or starts with it."""
    joinable = both(among(s.t.state, (QUEUED, IN_FLIGHT)), s.t.kind == LOAD)
    return both(
        s.ask.transfer == s.copy.number,
        implies(s.ask.joinable, either(s.t.state == ABSENT, joinable)),
    )


def starts_truthfully(s: View) -> BoolTerm:
    """A load names blocks that its waiter has just taken fresh; a store published ones."""
    load = both(
        s.transfer_ask.unshared,
        same(s.transfer_pick.named, both(s.pick.named, s.pick.loaded)),
        implies(
            s.transfer_pick.named, both(s.pick.fresh, s.transfer_pick.prefix == s.place.prefix)
        ),
    )
    store = both(
        s.transfer_ask.published,
        implies(s.transfer_pick.named, s.declared("blocks", "may_hit")),
    )
    return either(
        both(s.transfer_ask.kind == LOAD, load), both(s.transfer_ask.kind == STORE, store)
    )


def names_no_block(s: View) -> BoolTerm:
    """Only start names the blocks of a transfer."""
    return no(s.transfer_pick.named)


def nobody_works(s: View) -> BoolTerm:
    """The connector says landed, failed or fenced only when no worker touches the blocks."""
    return no(s.copy.working)


def valid_only_if_failed(s: View) -> BoolTerm:
    """Only a transfer that failed can say which of its blocks are complete."""
    return no(s.transfer_pick.valid)


def running_counted(s: View) -> BoolTerm:
    """`running` counts the requests in RUNNING or PREEMPTED."""
    return s.engine_ask.running == s.others.running + one(among(s.r.state, (RUNNING, PREEMPTED)))


def nothing_held(s: View) -> BoolTerm:
    """No hold outside quarantine is left, on this block or any other."""
    return both(
        s.r.covered == 0,
        no(s.held.by_request),
        no(s.held.by_step),
        no(among(s.t.state, OPEN)),
        implies(s.held.by_transfer, s.held.in_quarantine),
        s.others.request == 0,
        s.others.step == 0,
        s.others.load + s.others.store == s.others.quarantined,
    )


def holds_counted(s: View) -> BoolTerm:
    """`holds` counts the holds outside quarantine, `holders` the transfers that have not ended."""
    return both(
        s.engine_ask.holds >= 0,
        s.engine_ask.holders >= one(among(s.t.state, OPEN)),
        implies(s.engine_ask.holds == 0, nothing_held(s)),
    )


def live_counted(s: View) -> BoolTerm:
    """`live` counts the requests that are not finished."""
    return s.engine_ask.live == s.others.live + one(among(s.r.state, LIVE))


def _requests(*but: int) -> tuple[int, ...]:
    return tuple(int(event) for event in RequestEvent if event not in but)


R, T, E = RequestEvent, TransferEvent, EngineEvent

#: Table of the contracts, in the order in which they are printed.
CONTRACTS = (
    Contract(
        "the pool and the index tell the truth",
        "blocks taken are fresh from the free pool, hits published under the request's own prefix "
        "and the present weights, or blocks of the load that is joined; each once",
        "the engine",
        "Lifecycle.check recomputes pool and index from the holds",
        "request",
        TAKING,
        blocks_exist,
    ),
    Contract(
        "only admissions and growth take blocks",
        "no other event names blocks to take",
        "the engine",
        "by its interface: no other call has blocks to name",
        "request",
        _requests(*TAKING),
        takes_nothing,
    ),
    Contract(
        "only a remote admission joins a load",
        "admit and grow name no transfer",
        "the engine",
        "by its interface",
        "request",
        (ADMIT, GROW),
        joins_no_load,
    ),
    Contract(
        "a transfer that is named can be joined",
        "the transfer of a remote admission is a load that is QUEUED or IN_FLIGHT, or starts now",
        "the engine",
        "join goes in the same action",
        "request",
        (ADMIT_REMOTE,),
        names_its_transfer,
    ),
    Contract(
        "landed is landed",
        "what a landed load carried is complete, and lies in its waiter's table where it was told",
        "the connector",
        "the table rejects what does not fit the hold; the fake KV of the fuzzer compares content",
        "request",
        (R.TRANSFER_LANDED,),
        landed_is_complete,
    ),
    Contract(
        "a valid prefix is valid",
        "the blocks that are kept after a failed load are complete; fenced and quarantined loads "
        "keep none",
        "the connector",
        "the fake KV of the fuzzer compares content",
        "request",
        (R.TRANSFER_FAILED,),
        valid_prefix_is_valid,
    ),
    Contract(
        "a load writes fresh blocks, a store reads published ones",
        "a load starts on blocks that its waiter has just taken fresh, a store on blocks that are "
        "hits",
        "the engine",
        "the transfers' table rejects anything else",
        "transfer",
        (T.START,),
        starts_truthfully,
    ),
    Contract(
        "only a start names a transfer's blocks",
        "no other event of a transfer changes which blocks it carries",
        "the engine",
        "by its interface",
        "transfer",
        tuple(int(event) for event in T if event != T.START),
        names_no_block,
    ),
    Contract(
        "an end is an end",
        "a connector says landed, failed or fenced only when no worker can touch the blocks any "
        "more, and no worker begins before *begin*",
        "the connector",
        "the test connectors' workers assert it; CUDA events and joined threads carry it",
        "transfer",
        (T.LAND, T.FAIL, T.FENCE),
        nobody_works,
    ),
    Contract(
        "only a failed transfer names valid blocks",
        "cancelled, fenced and quarantined transfers say nothing about content",
        "the connector",
        "by the protocol",
        "transfer",
        tuple(int(event) for event in T if event != T.FAIL),
        valid_only_if_failed,
    ),
    Contract(
        "requests are counted",
        "`running` is the number of requests in RUNNING or PREEMPTED",
        "the engine",
        "Lifecycle.check recounts",
        "engine",
        (PAUSE_REACHED,),
        running_counted,
    ),
    Contract(
        "holds are counted",
        "`holds` is the number of holds outside quarantine, `holders` of transfers that have not "
        "ended",
        "the engine",
        "Lifecycle.check recounts",
        "engine",
        (E.SLEEP, E.WEIGHTS_CHANGED, E.DRAINED),
        holds_counted,
    ),
    Contract(
        "live requests are counted",
        "`live` is the number of requests that are not finished",
        "the engine",
        "Lifecycle.check recounts",
        "engine",
        (E.DRAINED,),
        live_counted,
    ),
)
