"""The facts of all requests as columns: one int64 array [fact, row], and its read-only views.

Steady decoding works on whole columns; an event loads one row into a slot record, lets the
declaration decide on it, and stores it back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..statemachine.facts import RequestFacts

Int64Array = npt.NDArray[np.int64]
#: Block ids, in order.
Blocks = Sequence[int] | npt.NDArray[np.integer[Any]]

#: The facts in the order of the first axis.
FACTS: tuple[str, ...] = tuple(RequestFacts.KINDS)
(
    STATE, COVERED, NEWEST_STEP, STALE_STEP, COMPUTED, WRITTEN, HASHED, PROMPT, DELIVERED, RESERVED,
) = (
    FACTS.index(name)
    for name in (
        "state", "covered", "newest_step", "stale_step", "computed", "written", "hashed",
        "prompt", "delivered", "reserved",
    )
)  # fmt: skip


#: Two columns more that no event decides by: the length of the sequence once all launched steps
#: have delivered, and the one at which the present turn ends.
TARGET, LIMIT = len(FACTS), len(FACTS) + 1
COLUMNS = len(FACTS) + 2


def make_loader(names: Sequence[str]) -> Callable[[Any, Sequence[int]], None]:
    """`record.a, record.b, … = values`, written out for the fields of a record.

    A loop of setattr costs ten times as much, and events are loaded by the ten thousand.
    """
    scope: dict[str, Any] = {}
    targets = ", ".join(f"r.{name}" for name in names)
    exec(f"def load(r, values):\n    {targets} = values\n", scope)
    loader: Callable[[Any, Sequence[int]], None] = scope["load"]
    return loader


#: Set every fact of a record from a sequence in the order of FACTS.
load_facts = make_loader(FACTS)
#: Every fact of a record, in the order of FACTS.
facts_of: Callable[[Any], tuple[int, ...]] = attrgetter(*FACTS)


class ReadOnly:
    """Base of what is shown to others: to set or delete an attribute raises AttributeError."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name} is read-only: the lifecycle writes it")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name} is read-only: the lifecycle writes it")

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


class BatchView(ReadOnly):
    """The facts of all rows as read-only columns, int64 [rows]: a write raises ValueError.

    A row is a request's index; rows of no request have state UNKNOWN and zeros. The arrays are
    replaced when the engine makes room for more requests: read them from here each time.
    """

    __slots__ = (*FACTS, "counts", "limit", "tables", "target", "tokens")

    state: Int64Array
    covered: Int64Array
    newest_step: Int64Array
    stale_step: Int64Array
    computed: Int64Array
    written: Int64Array
    hashed: Int64Array
    prompt: Int64Array
    delivered: Int64Array
    turn_start: Int64Array
    waits_for: Int64Array
    reserved: Int64Array
    loads_failed: Int64Array
    queued_chunks: Int64Array
    queued_tokens: Int64Array
    input_open: Int64Array
    resumable: Int64Array
    priority: Int64Array
    arrival: Int64Array
    target: Int64Array  # length of the sequence once all launched steps have delivered
    limit: Int64Array  # length of the sequence at which the present turn ends
    tables: npt.NDArray[np.int32]  # [rows, w] block ids; -1 beyond `covered`
    tokens: npt.NDArray[np.int32]  # [rows, model length] prompt, output and chunks in order
    counts: Int64Array  # [blocks] holds on each block

    def facts(self, row: int) -> dict[str, int]:
        """A row's facts by name, zeros left out."""
        values = ((name, int(getattr(self, name)[row])) for name in FACTS)
        return {name: value for name, value in values if value}


#: Comparing an array's dtype with it costs a tenth of comparing it with the type.
INT64 = np.dtype(np.int64)


def every(truths: npt.NDArray[np.bool_]) -> bool:
    """Whether all are true. `all()` of a short array costs five times as much."""
    return b"\0" not in truths.tobytes()


def some(truths: npt.NDArray[np.bool_]) -> bool:
    """Whether any is true."""
    return b"\1" in truths.tobytes()


def read_only(array: npt.NDArray[Any]) -> Any:
    """A view of the array through which nothing can be written."""
    # A mere view could be made writable again, because the array that it looks at is.
    buffer: Any = array
    return np.asarray(memoryview(buffer).toreadonly())
