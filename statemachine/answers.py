"""How an event is answered: one int that carries the answer, the hold commands and the row.

bits 0-1 the answer, bits 2-13 the hold commands, bits 16 and up the number of the table's row,
which names the reason. One int costs nothing to return; everything else is looked up from it.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag


class Answer(IntEnum):
    """What became of an event."""

    GO = 0
    NOT_NOW = 1
    IGNORE = 2
    REJECT = 3


#: It happened.
GO = 0
#: Legal, but blocks, tier or engine do not allow it yet: nothing changed, ask again later.
NOT_NOW = 1
#: A late or duplicate signal: named, counted, nothing changed.
IGNORE = 2
#: The caller is wrong: a typed error, nothing changed.
REJECT = 3


class Command(IntFlag):
    """What the engine has to do with holds and waits after an event that went."""

    TAKE = 1 << 2
    RELEASE = 1 << 3
    HAND_OVER = 1 << 4
    TRIM = 1 << 5
    MAKE_HITS = 1 << 6
    WAIT = 1 << 7
    STOP_WAITING = 1 << 8
    QUARANTINE = 1 << 9


#: The subject's hold covers the blocks named in the ask as well: each once, count + 1.
TAKE = 1 << 2
#: The subject's hold ends: each block that it covers, count - 1.
RELEASE = 1 << 3
#: The REQUEST hold becomes a STEP hold of the request's newest step: counts unchanged.
HAND_OVER = 1 << 4
#: The hold is cut to its first `covered` blocks: each block behind them, count - 1.
TRIM = 1 << 5
#: The blocks up to `hashed` become hits for others.
MAKE_HITS = 1 << 6
#: The request joins the transfer named in the ask: one waiter more.
WAIT = 1 << 7
#: The request leaves the transfer that it waited for: one waiter less.
STOP_WAITING = 1 << 8
#: The transfer's hold stays, and its blocks leave the pool and lose their hash.
QUARANTINE = 1 << 9

ANSWER_MASK = 3
COMMAND_MASK = 0x3FFC
ROW_SHIFT = 16


def answer_of(code: int) -> int:
    """The answer in a code returned by an event."""
    return code & ANSWER_MASK


def commands_of(code: int) -> int:
    """The hold commands in a code returned by an event."""
    return code & COMMAND_MASK


def row_of(code: int) -> int:
    """The number of the table's row that decided."""
    return code >> ROW_SHIFT
