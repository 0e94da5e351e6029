"""Traces with one line dropped, doubled, swapped with the next or altered, and how that is judged.

A mutant is *caught* when the replay departs, *equivalent* when the mutated line leaves exactly the
records that the true one leaves (so that no line after it can tell), and *missed* otherwise.
"""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

from kvproof.specs.conform import conform
from kvproof.specs.conform.replay import Replay

#: Every field of a line.
FIELDS = (
    "v", "n", "t", "machine", "id", "event", "from", "to", "answer", "why", "commands", "facts",
    "engine", "ask", "trace",
)  # fmt: skip


def departs(replay: Replay, lines: list[str]) -> bool:
    """Move a replay on; whether one of the lines departs."""
    numbered = ((Path("trace.jsonl"), number, line) for number, line in enumerate(lines, 1))
    return conform(numbered, replay).departure is not None


def altered(line: str, others: list[dict[str, Any]], chance: random.Random) -> tuple[str, str]:
    """The line with one field changed to another value that could stand there; the field.

    What is a name becomes one that earlier lines have: a subject that no line has named is taken
    for one whose life began before the trace.
    """
    raw = json.loads(line)
    name = chance.choice(FIELDS)
    old = raw[name]
    if name in ("facts", "engine", "ask"):
        inner = chance.choice(list(old) or ["tokens"])
        raw[name] = {**old, inner: old.get(inner, 0) + chance.choice((1, 2, -1))}
    elif name == "commands":
        raw[name] = old[1:] if old and chance.random() < 0.5 else [*old, "trim"]
        if "trim" in old:
            raw[name] = [command for command in old if command != "trim"]
    elif name in ("v", "n"):
        raw[name] = old + 1
    elif name == "t":
        raw[name] = old + chance.choice((-1e6, 1e6))
    else:
        alike = {o[name] for o in others if o["machine"] == raw["machine"]} - {old}
        raw[name] = chance.choice(sorted(alike)) if alike else old + "x"
    return json.dumps(raw), name


def state(replay: Replay) -> Any:
    """All that later lines are compared with."""
    records = {key: record.as_dict() for key, record in replay.records.items()}
    return records, replay.engines, replay.sequences, set(replay.gone)


def judge(lines: list[str], count: int, seed: int) -> Counter[tuple[str, str]]:
    """Mutate that many lines, each in a trace of its own; (kind of mutant, verdict) counted."""
    chance = random.Random(seed)
    others = [json.loads(line) for line in lines]
    places = sorted(chance.randrange(1, len(lines) - 2) for _ in range(count))
    found: Counter[tuple[str, str]] = Counter()
    replay, done = Replay(), 0
    for at in places:
        assert not departs(replay, lines[done:at])
        done = at
        kind = chance.choice(("drop", "double", "swap", "alter", "alter", "alter"))
        mutated = copy.deepcopy(replay)
        if kind == "alter":
            text, name = altered(lines[at], others[:at], chance)
            kind = f"alter {name}"
            found[kind, _of_altered(replay, mutated, lines, at, text)] += 1
            continue
        line, after = lines[at], lines[at + 1]
        instead = {"drop": [after], "double": [line, line, after], "swap": [after, line]}[kind]
        caught = departs(mutated, [*instead, *lines[at + 2 :]])
        found[kind, "caught" if caught else "missed"] += 1
    return found


def _of_altered(replay: Replay, mutated: Replay, lines: list[str], at: int, text: str) -> str:
    if departs(mutated, [text]):
        return "caught"
    true = copy.deepcopy(replay)
    assert not departs(true, [lines[at]])
    # A time that is altered shows in what may come after it, never in a record.
    if state(true) == state(mutated) and true.times == mutated.times:
        return "equivalent"
    return "caught" if departs(mutated, lines[at + 1 :]) else "missed"
