"""What no caller of the lifecycle may ask, in any state: refused before anything is written.

The declaration refuses what a state does not allow. It is never asked about what is none at all: a
row of no request, blocks that do not exist, tokens that are no numbers. A caller hears of both by
the same error.
"""

from __future__ import annotations

from array import array
from typing import SupportsInt, TypeGuard

import numpy as np
import numpy.typing as npt

from ..statemachine.compile import Machine
from ..statemachine.engine import ENGINE
from ..statemachine.errors import RefusedError
from ..statemachine.request import REQUEST
from ..statemachine.states import (
    ABSENT,
    FINISHED_LENGTH_CAPPED,
    FINISHED_REPETITION,
    FINISHED_STOPPED,
    START,
    UNKNOWN,
)
from ..statemachine.transfer import TRANSFER
from .columns import INT64, Int64Array, read_only

_LEAST32, _MOST32 = -(2**31), 2**31 - 1
_LEAST64, _MOST64 = -(2**63), 2**63 - 1
_NONE: Int64Array = read_only(np.zeros(0, dtype=np.int64))
_INT32 = np.dtype(np.int32)

#: How a turn can end by what a step sampled.
STOP_REASONS = (FINISHED_STOPPED, FINISHED_LENGTH_CAPPED, FINISHED_REPETITION)


def refused_request(subject: str, state: int, event: int | str, why: str) -> RefusedError:
    """The error for what may not be asked of a request in `state`."""
    return _refused(REQUEST, subject, state, event, why)


def refused_row(row: object, event: int | str) -> RefusedError:
    """The error for a row that is no request's."""
    return _refused(REQUEST, f"row {row}", UNKNOWN, event, "the row is no request's")


def refused_transfer(subject: str, event: int | str, why: str, state: int = ABSENT) -> RefusedError:
    """The error for what may not be asked of a transfer."""
    return _refused(TRANSFER, subject, state, event, why)


def refused_store(why: str) -> RefusedError:
    """The error for blocks that cannot be stored."""
    return refused_transfer("new", START, why)


def refused_engine(mode: int, event: int | str, why: str) -> RefusedError:
    """The error for what may not be asked of the engine as a whole."""
    return _refused(ENGINE, "engine", mode, event, why)


def _refused(
    machine: Machine, subject: str, state: int, event: int | str, why: str
) -> RefusedError:
    table = machine.table
    return RefusedError(
        machine=table.name,
        subject=subject,
        state=table.states(state).name,
        event=event if isinstance(event, str) else table.events(event).name.lower(),
        why=why,
        legal=table.legal_events(state),
    )


def integers(values: object) -> Int64Array | None:
    """The values as int64 [n]; None for what is no list of integers."""
    if type(values) is np.ndarray and values.dtype == INT64 and values.ndim == 1:
        return values
    if type(values) is list or type(values) is tuple:
        if not values:
            return _NONE
        try:  # a third of what it costs numpy to find out the type
            return np.frombuffer(array("q", values), dtype=np.int64)
        except (TypeError, OverflowError):
            return None
    try:
        found = np.asarray(values)
    except (TypeError, ValueError, OverflowError):
        return None
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        return None
    if found.dtype == np.uint64 and found.size and int(found.max()) > _MOST64:
        return None
    return found.astype(np.int64)


def as_token_ids(values: object) -> npt.NDArray[np.int32] | None:
    """The values as int32 [n]; None for what is no list of token ids."""
    if type(values) is np.ndarray and values.dtype == _INT32 and values.ndim == 1:
        return values
    found = integers(values)
    if found is None:
        return None
    if found.size and not _LEAST32 <= int(found.min()) <= int(found.max()) <= _MOST32:
        return None
    return found.astype(np.int32)


def is_count(value: object) -> bool:
    """Whether it is an integer of at least 0 that a column can hold; a truth value is none."""
    return is_int64(value) and int(value) >= 0


def is_int64(value: object) -> TypeGuard[SupportsInt]:
    """Whether it is an integer that a column can hold; a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        return False
    return _LEAST64 <= int(value) <= _MOST64
