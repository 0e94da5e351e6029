"""The transfer's table: a copy into device blocks (LOAD) or out of them (STORE).

A transfer owns its hold itself, from its start to its end: no request's abort, preemption or
finish touches it. Signals come from another thread or machine, so late, duplicate and unknown
ones are ignored in every state.
"""

from __future__ import annotations

from .answers import IGNORE, NOT_NOW, QUARANTINE, REJECT, RELEASE, TAKE
from .compile import compile_table
from .facts import EngineFacts, TransferAsk, TransferFacts
from .gates import starts_work
from .states import (
    ABSENT,
    CANCELLING,
    FAILED,
    FENCED,
    IN_FLIGHT,
    LANDED,
    LOAD,
    QUARANTINED,
    QUEUED,
    STORE,
    TransferEvent,
    TransferState,
)
from .table import Row, Table, others

# --- guards -------------------------------------------------------------------------------------


def kind_is_known(t: TransferFacts, e: EngineFacts, x: TransferAsk) -> bool:
    return x.kind == LOAD or x.kind == STORE


def engine_starts(t: TransferFacts, e: EngineFacts, x: TransferAsk) -> bool:
    return starts_work(e)


def cache_resident(t: TransferFacts, e: EngineFacts, x: TransferAsk) -> bool:
    return e.cache_resident


def reset_pending(t: TransferFacts, e: EngineFacts, x: TransferAsk) -> bool:
    """A transfer that starts now would delay the reset: it might then never be done."""
    return e.pending_reset


def writes_shared_blocks(t: TransferFacts, e: EngineFacts, x: TransferAsk) -> bool:
    return x.kind == LOAD and not x.unshared


def reads_unpublished_blocks(t: TransferFacts, e: EngineFacts, x: TransferAsk) -> bool:
    return x.kind == STORE and not x.published


def is_load(t: TransferFacts, e: EngineFacts, x: TransferAsk) -> bool:
    return t.kind == LOAD


def has_waiters(t: TransferFacts, e: EngineFacts, x: TransferAsk) -> bool:
    return t.waiters > 0


def lease_is_over(t: TransferFacts, e: EngineFacts, x: TransferAsk) -> bool:
    return x.expired


# --- effects ------------------------------------------------------------------------------------


def start(t: TransferFacts, e: EngineFacts, x: TransferAsk) -> int:
    t.kind = x.kind
    t.waiters = 0
    return TAKE


def end_hold(t: TransferFacts, e: EngineFacts, x: TransferAsk) -> int:
    return RELEASE


def keep_hold(t: TransferFacts, e: EngineFacts, x: TransferAsk) -> int:
    """Nobody can say whether its blocks are still touched: they must not be handed out."""
    return QUARANTINE


def join(t: TransferFacts, e: EngineFacts, x: TransferAsk) -> int:
    t.waiters = t.waiters + 1
    return 0


def leave(t: TransferFacts, e: EngineFacts, x: TransferAsk) -> int:
    t.waiters = t.waiters - 1
    return 0


def erase(t: TransferFacts, e: EngineFacts, x: TransferAsk) -> int:
    t.kind = 0
    return 0


# --- the table ----------------------------------------------------------------------------------

E = TransferEvent
#: Its hold has not ended, and neither has it.
OPEN = (QUEUED, IN_FLIGHT, CANCELLING)
ENDED = (LANDED, FAILED, FENCED)
WORKING = (IN_FLIGHT, CANCELLING)


def _not_in(*named: tuple[int, ...]) -> tuple[int, ...]:
    return others(TransferState, *named)


# One line or two a row: the table is to be read as a table.
# fmt: off
ROWS = (
    Row(E.START, (ABSENT,), unless=(kind_is_known,), answer=REJECT, why="neither load nor store"),
    Row(E.START, (ABSENT,), unless=(engine_starts,), answer=NOT_NOW,
        why="the engine starts nothing in this mode"),
    Row(E.START, (ABSENT,), unless=(cache_resident,), answer=NOT_NOW, why="the cache is asleep"),
    Row(E.START, (ABSENT,), conditions=(reset_pending,), answer=NOT_NOW, why="a reset is pending"),
    Row(E.START, (ABSENT,), conditions=(writes_shared_blocks,), answer=REJECT,
        why="a load writes only fresh blocks that nobody but its waiters holds"),
    Row(E.START, (ABSENT,), conditions=(reads_unpublished_blocks,), answer=REJECT,
        why="a store reads only published blocks"),
    Row(E.START, (ABSENT,), QUEUED, before=(start,), why="its blocks are held"),
    Row(E.START, _not_in((ABSENT,)), answer=REJECT, why="the number is in use"),
    Row(E.BEGIN, (QUEUED,), IN_FLIGHT, why="a worker has it"),
    Row(E.BEGIN, _not_in((QUEUED,)), answer=IGNORE, why="it does not wait to begin"),
    Row(E.JOIN, (QUEUED, IN_FLIGHT), unless=(is_load,), answer=REJECT,
        why="nobody waits for a store"),
    Row(E.JOIN, (QUEUED, IN_FLIGHT), before=(join,), why="one request more waits for it"),
    Row(E.JOIN, _not_in((QUEUED, IN_FLIGHT)), answer=NOT_NOW, why="it can no longer be joined"),
    Row(E.LEAVE, _not_in((ABSENT,)), unless=(has_waiters,), answer=IGNORE,
        why="nobody waits for it"),
    Row(E.LEAVE, _not_in((ABSENT,)), before=(leave,), why="one request less waits for it"),
    Row(E.LEAVE, (ABSENT,), answer=IGNORE, why="nobody knows it"),
    Row(E.LAND, WORKING, LANDED, before=(end_hold,), why="the copy is complete"),
    Row(E.LAND, _not_in(WORKING), answer=IGNORE, why="no worker has it"),
    Row(E.FAIL, WORKING, FAILED, before=(end_hold,), why="the copy failed"),
    Row(E.FAIL, _not_in(WORKING), answer=IGNORE, why="no worker has it"),
    Row(E.CANCEL, (QUEUED,), FENCED, before=(end_hold,), why="it never began"),
    Row(E.CANCEL, (IN_FLIGHT,), CANCELLING, why="its worker is asked to stop"),
    Row(E.CANCEL, _not_in((QUEUED, IN_FLIGHT)), answer=IGNORE, why="it is ending or has ended"),
    Row(E.FENCE, (CANCELLING,), FENCED, before=(end_hold,), why="nobody can touch its blocks now"),
    Row(E.FENCE, (QUARANTINED,), FENCED, before=(end_hold,),
        why="the confirmation came after all"),
    Row(E.FENCE, _not_in((CANCELLING, QUARANTINED)), answer=IGNORE, why="it was not cancelled"),
    Row(E.GIVE_UP, (CANCELLING,), QUARANTINED, before=(keep_hold,),
        why="nobody can say whether its blocks are touched"),
    Row(E.GIVE_UP, _not_in((CANCELLING,)), answer=IGNORE, why="it is not being cancelled"),
    Row(E.LEASE_OVER, (QUEUED, IN_FLIGHT), unless=(lease_is_over,), answer=NOT_NOW,
        why="its lease is not over"),
    Row(E.LEASE_OVER, (QUEUED,), FENCED, before=(end_hold,), why="it never began"),
    Row(E.LEASE_OVER, (IN_FLIGHT,), CANCELLING, why="its worker is asked to stop"),
    Row(E.LEASE_OVER, _not_in((QUEUED, IN_FLIGHT)), answer=IGNORE,
        why="it is ending or has ended"),
    Row(E.RETIRE, ENDED, conditions=(has_waiters,), answer=NOT_NOW, why="a request waits for it"),
    Row(E.RETIRE, ENDED, ABSENT, before=(erase,), why="its record is no longer needed"),
    Row(E.RETIRE, (ABSENT,), answer=IGNORE, why="nobody knows it"),
    Row(E.RETIRE, others(TransferState, ENDED, (ABSENT,)), answer=NOT_NOW, why="its hold is left"),
)
# fmt: on

TRANSFER_TABLE = Table("transfer", ("t", "e", "x"), "state", TransferState, TransferEvent, ROWS)
TRANSFER = compile_table(TRANSFER_TABLE)
