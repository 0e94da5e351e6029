"""How the lifecycle answers an event, and tells whoever writes a trace of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..statemachine.answers import ANSWER_MASK, GO, NOT_NOW, ROW_SHIFT, Answer


class Fired(NamedTuple):
    """One event and what became of it, by numbers, as a trace needs it."""

    machine: str  # "request", "transfer" or "engine"
    subject: str  # the request's id, the transfer's number, "" for the engine
    event: int
    facts: dict[str, int]  # the subject's, before the event
    engine: dict[str, int]  # the engine's, before it; empty when the engine is the subject
    ask: dict[str, int]
    code: int  # what the declaration returned
    source: int
    dest: int


#: Told of each event when a trace is written.
Witness = Callable[[Fired], None]


class Outcome(int):
    """What became of an event: the code that the declaration returned, to be asked by name."""

    @property
    def answer(self) -> Answer:
        """GO, NOT_NOW, IGNORE or REJECT."""
        return Answer(self & ANSWER_MASK)

    @property
    def went(self) -> bool:
        """Whether it happened."""
        return self & ANSWER_MASK == GO

    @property
    def not_now(self) -> bool:
        """Legal, but blocks, tier or engine do not allow it yet."""
        return self & ANSWER_MASK == NOT_NOW

    @property
    def row(self) -> int:
        """The number of the table's row that decided."""
        return self >> ROW_SHIFT


def make_blank(kind: type[Any]) -> Callable[[Any], None]:
    """`x.a = x.b = … = 0`, written out: what the last event was told must not be left."""
    scope: dict[str, Any] = {}
    targets = " = ".join(f"x.{name}" for name in kind.KINDS)
    exec(f"def blank(x):\n    {targets} = 0\n", scope)
    blank: Callable[[Any], None] = scope["blank"]
    return blank
