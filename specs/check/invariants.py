"""The specification: what is always true, in words and as formulas.

Each line belongs to the obligation that needs it most; together they are one inductive invariant.
`about` says of whom a line speaks: "r" of a request, "t" of a transfer, "rt" of a request and a
transfer, "" of the block, the engine and everybody. A line holds for the one who acts and for the
one who looks on. Lines about contents are in `contents`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from ...statemachine.states import (
    ABSENT,
    ACTIVE,
    CANCELLING,
    FINISHED,
    IN_FLIGHT,
    LIVE,
    LOAD,
    PAUSED,
    PAUSING,
    PREEMPTED,
    QUARANTINED,
    QUEUED,
    RUNNING,
    SLEEPING,
    STOPPED,
    STORE,
    UNKNOWN,
    WAITING,
    WAITING_FOR_REMOTE_KVS,
    WAITING_FOR_STREAMING_REQ,
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
    WAKING,
    EngineMode,
    PauseMode,
    RequestState,
    TransferState,
)
from ..symbolic.terms import BoolTerm
from .logic import among, both, either, implies, no, one, same, total
from .state import View

OPEN = (QUEUED, IN_FLIGHT, CANCELLING)

About = Literal["", "r", "t", "rt"]

#: The line that is known before anything has happened.
CONFIGURED = "the configuration is sensible"


@dataclass(frozen=True)
class Invariant:
    """One line of the specification."""

    of: str
    words: str
    about: About
    formula: Callable[[View], BoolTerm]

    def everywhere(self, state: View) -> Iterator[tuple[str, BoolTerm]]:
        """The line for each of those that it speaks of, with the names that these have."""
        requests = ("", "2") if "r" in self.about else ("",)
        transfers = ("", "2") if "t" in self.about else ("",)
        for request in requests:
            for transfer in transfers:
                names = (f"r{request}" if "r" in self.about else "") + (
                    f" t{transfer}" if "t" in self.about else ""
                )
                yield names.strip(), self.formula(state.at(request=request, transfer=transfer))


def _of(of: str, *lines: tuple[About, str, Callable[[View], BoolTerm]]) -> tuple[Invariant, ...]:
    return tuple(Invariant(of, words, about, formula) for about, words, formula in lines)


# fmt: off
ENGINE = _of(
    "S8",
    ("", CONFIGURED,
     lambda s: both(s.e.block_size >= 1, s.e.pool_blocks >= 1, s.e.steps_ahead >= 1,
                    s.e.model_length >= 1, s.e.loads_limit >= 0)),
    ("", "modes, pauses and levels are known ones",
     lambda s: both(among(s.e.mode, EngineMode), among(s.e.pausing, (0, *PauseMode)),
                    among(s.e.sleep_level, (0, 1, 2)))),
    ("", "0 ≤ processed ≤ launched ≤ processed + steps ahead",
     lambda s: both(s.e.processed >= 0, s.e.processed <= s.e.launched,
                    s.e.launched <= s.e.processed + s.e.steps_ahead)),
    ("", "ACTIVE is awake and has no pause",
     lambda s: implies(s.e.mode == ACTIVE, both(
         s.e.weights_resident, s.e.cache_resident, s.e.pausing == 0, no(s.e.sleep_paused),
         s.e.sleep_level == 0))),
    ("", "PAUSING and PAUSED are awake, by a pause of a known mode",
     lambda s: implies(among(s.e.mode, (PAUSING, PAUSED)), both(
         s.e.weights_resident, s.e.cache_resident, s.e.pausing > 0, s.e.sleep_level == 0))),
    ("", "SLEEPING and WAKING lack memory, by a sleep of a known level",
     lambda s: implies(among(s.e.mode, (SLEEPING, WAKING)), both(
         no(both(s.e.weights_resident, s.e.cache_resident)), s.e.sleep_level > 0,
         s.e.pausing > 0))),
    ("", "in PAUSED, SLEEPING, WAKING and STOPPED every launched step is processed",
     lambda s: implies(among(s.e.mode, (PAUSED, SLEEPING, WAKING, STOPPED)),
                       s.e.launched == s.e.processed)),
    ("", "a step is in flight only with weights and cache resident",
     lambda s: implies(s.e.launched > s.e.processed,
                       both(s.e.weights_resident, s.e.cache_resident))),
    ("r", "without the cache no request holds a block",
     lambda s: implies(no(s.e.cache_resident), s.r.covered == 0)),
    ("t", "without the cache no transfer is open, and none is in quarantine",
     lambda s: implies(no(s.e.cache_resident),
                       both(no(among(s.t.state, OPEN)), no(s.held.by_transfer)))),
    ("", "without the cache nobody else holds the block",
     lambda s: implies(no(s.e.cache_resident),
                       both(s.others.request == 0, s.others.step == 0, s.others.load == 0,
                            s.others.store == 0))),
    ("", "quarantine is counted: with this block in it the count is above 0",
     lambda s: implies(s.b.quarantined > 0, s.e.quarantined > 0)),
)

RECORDS = _of(
    "S4",
    ("r", "the state is a known one", lambda s: among(s.r.state, RequestState)),
    ("r", "RUNNING ⇒ resident", lambda s: implies(s.r.state == RUNNING, s.r.covered > 0)),
    ("r", "WAITING_FOR_REMOTE_KVS ⇒ resident",
     lambda s: implies(s.r.state == WAITING_FOR_REMOTE_KVS, s.r.covered > 0)),
    ("r", "PREEMPTED, FINISHED_*, UNKNOWN and grammar ⇒ not resident",
     lambda s: implies(among(s.r.state, (PREEMPTED, UNKNOWN, WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
                                         *FINISHED)), s.r.covered == 0)),
    ("r", "not resident ⇒ computed tokens, written tokens, hashes and promised blocks are 0",
     lambda s: implies(s.r.covered == 0, both(s.r.computed == 0, s.r.written == 0,
                                              s.r.hashed == 0, s.r.reserved == 0))),
    ("r", "0 ≤ hashed (in tokens) ≤ written ≤ computed ≤ what its hold covers",
     lambda s: both(s.r.covered >= 0, s.r.hashed >= 0, s.r.reserved >= 0,
                    s.r.hashed * s.e.block_size <= s.r.written, s.r.written <= s.r.computed,
                    s.r.computed <= s.r.covered * s.e.block_size)),
    ("r", "hashed ≤ covered", lambda s: s.r.hashed <= s.r.covered),
    ("r", "it waits for a transfer exactly in WAITING_FOR_REMOTE_KVS",
     lambda s: both(same(s.r.waits_for > 0, s.r.state == WAITING_FOR_REMOTE_KVS),
                    s.r.waits_for >= 0)),
    ("rt", "the transfer that a request waits for is an open load",
     lambda s: implies(s.r.waits_for == s.copy.number,
                       both(among(s.t.state, OPEN), s.t.kind == LOAD))),
    ("r", "blocks are promised only to what loads, or has loaded and waits to run",
     lambda s: implies(s.r.reserved > 0,
                       among(s.r.state, (WAITING_FOR_REMOTE_KVS, WAITING)))),
    ("r", "0 ≤ stale step ≤ newest step ≤ launched",
     lambda s: both(s.r.stale_step >= 0, s.r.stale_step <= s.r.newest_step,
                    s.r.newest_step <= s.e.launched)),
    ("r", "only what runs computes, and only what runs or was preempted has output to come",
     lambda s: both(implies(s.r.state != RUNNING, s.r.computed == s.r.written),
                    implies(among(s.r.state, (UNKNOWN, WAITING, WAITING_FOR_REMOTE_KVS,
                                              WAITING_FOR_STREAMING_REQ,
                                              WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR)),
                            s.r.stale_step == s.r.newest_step))),
    ("r", "what loads has no step in flight",
     lambda s: implies(s.r.state == WAITING_FOR_REMOTE_KVS, s.r.newest_step <= s.e.processed)),
    ("r", "an unknown request has a blank record",
     lambda s: implies(s.r.state == UNKNOWN, both(
         s.r.newest_step == 0, s.r.stale_step == 0, s.r.prompt == 0, s.r.delivered == 0,
         s.r.turn_start == 0, s.r.loads_failed == 0, s.r.queued_chunks == 0,
         s.r.queued_tokens == 0, no(s.r.input_open), no(s.r.resumable)))),
    ("t", "the state and the kind are known ones",
     lambda s: both(among(s.t.state, TransferState),
                    implies(s.t.state != ABSENT, among(s.t.kind, (LOAD, STORE))))),
    ("", "transfers have numbers of their own",
     lambda s: both(s.at().copy.number > 0, s.at(transfer="2").copy.number > 0,
                    s.at().copy.number != s.at(transfer="2").copy.number)),
)

COUNTING = _of(
    "S1",
    ("", "the block's count is the number of holds that cover it",
     lambda s: s.b.count == total(
         [one(s.at(request=i, transfer=i).held.by_request) for i in ("", "2")]
         + [one(s.at(request=i, transfer=i).held.by_step) for i in ("", "2")]
         + [one(s.at(request=i, transfer=i).held.by_transfer) for i in ("", "2")]
         + [s.others.request, s.others.step, s.others.load, s.others.store])),
    ("", "no number of holds is below 0",
     lambda s: both(s.others.request >= 0, s.others.step >= 0, s.others.load >= 0,
                    s.others.store >= 0)),
    ("r", "a request's hold covers exactly the blocks of its table",
     lambda s: same(s.held.by_request, s.place.position >= 0)),
    ("r", "a table has as many blocks as the record says",
     lambda s: both(s.place.position < s.r.covered, s.place.position >= -1)),
    ("", "the block's quarantine is the number of holds in quarantine that cover it",
     lambda s: s.b.quarantined == total(
         [one(s.at(transfer=i).held.in_quarantine) for i in ("", "2")] + [s.others.quarantined])),
    ("", "holds in quarantine are holds of transfers",
     lambda s: both(s.others.quarantined >= 0,
                    s.others.quarantined <= s.others.load + s.others.store)),
)

TOUCHING = _of(
    "S2",
    ("r", "what a launched step may touch has a hold: the request's, or that step's or a newer one",
     lambda s: implies(s.place.touching > s.e.processed,
                       either(s.held.by_request,
                              both(s.held.by_step, s.held.step >= s.place.touching)))),
    ("r", "a request knows its newest step",
     lambda s: both(s.place.touching <= s.e.launched,
                    either(s.place.touching <= s.r.newest_step,
                           s.place.touching <= s.e.processed))),
    ("t", "what a worker may touch has the transfer's hold, and the transfer has begun",
     lambda s: implies(s.copy.working, both(
         s.held.by_transfer, among(s.t.state, (IN_FLIGHT, CANCELLING, QUARANTINED))))),
    ("", "a block in quarantine is no hit", lambda s: implies(s.b.quarantined > 0, no(s.b.cached))),
)

HANDED_OVER = _of(
    "S3",
    ("r", "a STEP hold is of the request's newest step, is not processed, and replaces its hold",
     lambda s: implies(s.held.by_step, both(
         s.held.step == s.r.newest_step, s.held.step > s.e.processed, s.r.covered == 0))),
    ("", "when every launched step is processed nobody has a STEP hold",
     lambda s: implies(s.e.launched == s.e.processed, s.others.step == 0)),
    ("t", "a transfer's hold covers what it carries, until it has ended outside of quarantine",
     lambda s: same(s.held.by_transfer,
                    both(s.copy.carried, among(s.t.state, (*OPEN, QUARANTINED))))),
    ("t", "a hold is in quarantine exactly as long as its transfer",
     lambda s: same(s.held.in_quarantine,
                    both(s.held.by_transfer, s.t.state == QUARANTINED))),
)

CONTAINERS = _of(
    "S5",
    ("t", "a transfer's waiters are the requests that wait for it",
     lambda s: s.t.waiters == total(
         [one(s.at(request=i, transfer=s.transfer).r.waits_for == s.copy.number)
          for i in ("", "2")] + [s.copy.others_waiting])),
    ("t", "others that wait are not fewer than none, and wait for an open load only",
     lambda s: both(s.copy.others_waiting >= 0,
                    implies(s.copy.others_waiting > 0,
                            both(among(s.t.state, OPEN), s.t.kind == LOAD)))),
    ("r", "queued chunks are counted with their tokens, and only a session has some",
     lambda s: both(s.r.queued_chunks >= 0, s.r.queued_tokens >= s.r.queued_chunks,
                    implies(s.r.queued_chunks == 0, s.r.queued_tokens == 0),
                    implies(s.r.queued_chunks > 0, s.r.resumable))),
    ("r", "input is open only for a session, and never for what is finished",
     lambda s: implies(s.r.input_open, both(s.r.resumable, among(s.r.state, LIVE)))),
    ("r", "a parked session waits for input that may come, and has none queued",
     lambda s: implies(s.r.state == WAITING_FOR_STREAMING_REQ,
                       both(s.r.input_open, s.r.queued_chunks == 0))),
    ("r", "what is finished has nothing queued",
     lambda s: implies(among(s.r.state, FINISHED), s.r.queued_chunks == 0)),
    ("r", "delivered tokens are counted from the turn's start",
     lambda s: both(s.r.turn_start >= 0, s.r.turn_start <= s.r.delivered, s.r.prompt >= 0)),
    ("", "no number of other requests is below 0",
     lambda s: both(s.others.running >= 0, s.others.live >= 0)),
)
# fmt: on

INVARIANTS = (*ENGINE, *RECORDS, *COUNTING, *TOUCHING, *HANDED_OVER, *CONTAINERS)
