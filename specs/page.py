"""docs/lifecycle.md: the whole declaration as one page, written by `kvproof table --page`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..statemachine.answers import Answer
from .diagrams import mermaid
from .listing import (
    MACHINES,
    NumberedRow,
    effects_in_words,
    forced_reset,
    guards_in_words,
    reset_table,
    rows,
    states_in_words,
)

INTRODUCTION = """\
# The lifecycle

<!-- Written by `kvproof table --page docs/lifecycle.md` from the declaration: do not edit. -->

Three machines say what may happen to a request, to a transfer and to the engine. Every event has
an answer in every state: **go**; **not now**, which changes nothing and is asked again; **ignore**,
for late and duplicate signals; **reject**, a typed error that changes nothing. Of the rows of an
event that speak of a state, the first whose condition holds decides.
"""

RESET = """\
## What a reset does

Launched steps are processed first. Then every holder is looked at, and only if none of them
refuses is any of them let go: all or nothing.
"""

FORCED = """\
A forced reset, run on one holder of each kind:
"""

WORDS = {
    "request": "A request, from its arrival until its id is forgotten.",
    "transfer": "A copy between device blocks and a tier. It owns its hold itself.",
    "engine": "What pause, sleep, wake, reset and shutdown do to the engine as a whole.",
}


def page() -> str:
    """The page, ending in a line end."""
    head, *body = reset_table()
    parts = [
        INTRODUCTION,
        RESET,
        markdown(head, body),
        '"refuses: itself" ends without anyone\'s help; "refuses: client" when its client acts.\n',
        FORCED,
        markdown(
            ["holder", "its state", "is sent", "its state then", "its hold", ""],
            [
                [f.holder, f.before, f.event or "nothing", f.after, f.commands, f.said]
                for f in forced_reset()
            ],
        ),
    ]
    for name in MACHINES:
        parts += [
            f"## The {name}\n",
            f"{WORDS[name]}\n",
            f"```mermaid\n{mermaid(name)}```\n",
            markdown(
                ["event", "from", "if", "answer", "to", "effects", "why"],
                [cells(listed) for listed in rows(name)],
            ),
        ]
    return "\n".join(parts)


def cells(listed: NumberedRow) -> list[str]:
    """A row of a machine as the cells of a table."""
    row = listed.row
    states = MACHINES[listed.machine].table.states
    return [
        row.trigger.name.lower(),
        states_in_words(listed.machine, row.source),
        guards_in_words(row),
        Answer(row.answer).name.lower().replace("_", " "),
        "" if row.dest is None else states(row.dest).name,
        effects_in_words(row),
        row.why,
    ]


def markdown(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
