"""Compiles a table to a dispatch: one generated function for each (state, event) cell.

The engine calls these functions and the symbolic executor reads them: what runs is what is
proved. A `transitions` trigger costs as much as a whole engine's per-request step; a look-up in a
flat list and a few calls of small functions cost a fraction of a microsecond.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .answers import ANSWER_MASK, REJECT, ROW_SHIFT
from .errors import RefusedError
from .table import Row, Table

#: A compiled cell: called with the machine's parameters, returns one int (see `answers`).
Cell = Callable[..., int]


@dataclass(frozen=True)
class Machine:
    """A table with its compiled cells.

    `dispatch[state * len(events) + event]` is the cell's function: the engine's hot path indexes
    it directly, everybody else calls `fire`.
    """

    table: Table
    dispatch: tuple[Cell, ...]

    @property
    def width(self) -> int:
        """How many events a state has: the stride of `dispatch`."""
        return len(self.table.events)

    def cell(self, state: int, event: int) -> Cell:
        """The compiled function that decides about an event in a state."""
        return self.dispatch[state * self.width + event]

    def fire(self, event: int, *records: Any) -> int:
        """Run an event on the records; the first is the subject. Returns the code.

        A REJECT is returned, not raised: `refusal` makes the error for it.
        """
        state = getattr(records[0], self.table.state_field)
        return self.dispatch[state * self.width + event](*records)

    def row(self, code: int) -> Row:
        """The row that decided, from the code that an event returned."""
        return self.table.rows[code >> ROW_SHIFT]

    def refusal(self, code: int, subject: str, state: int, event: int) -> RefusedError:
        """The typed error for a code whose answer is REJECT."""
        assert code & ANSWER_MASK == REJECT
        return RefusedError(
            machine=self.table.name,
            subject=subject,
            state=self.table.states(state).name,
            event=self.table.events(event).name.lower(),
            why=self.row(code).why,
            legal=self.table.legal_events(state),
        )


def compile_table(table: Table) -> Machine:
    """Generate the cells. States are dense from `min(states)`; gaps below it get no cell."""
    top = max(int(state) for state in table.states)
    known = {int(state) for state in table.states}
    dispatch = [
        _compile_cell(table, state, int(event)) if state in known else _no_such_state
        for state in range(top + 1)
        for event in table.events
    ]
    return Machine(table, tuple(dispatch))


def _no_such_state(*records: Any) -> int:
    raise AssertionError(f"no such state: {records[0]!r}")


def _compile_cell(table: Table, state: int, event: int) -> Cell:
    """One function: its rows as a chain of `if`, each row returning its code."""
    name = f"{table.events(event).name}__{table.states(state).name}".lower()
    arguments = ", ".join(table.parameters)
    subject = table.parameters[0]
    scope: dict[str, Any] = {"__name__": __name__}
    lines = [f"def {name}({arguments}):"]
    for number, row in table.cell(state, event):
        tests = [_bind(scope, guard) + f"({arguments})" for guard in row.conditions]
        tests += ["not " + _bind(scope, guard) + f"({arguments})" for guard in row.unless]
        indent = "    "
        if tests:
            lines.append(f"    if {' and '.join(tests)}:")
            indent = "        "
        code = row.answer | number << ROW_SHIFT
        if row.before:
            calls = [_bind(scope, effect) + f"({arguments})" for effect in row.before]
            lines.append(f"{indent}commands = {' | '.join(calls)}")
            result = f"commands | {code}"
        else:
            result = str(code)
        if row.dest is not None and row.dest != state:
            lines.append(f"{indent}{subject}.{table.state_field} = {row.dest}")
        lines.append(f"{indent}return {result}")
    source = "\n".join(lines) + "\n"
    filename = f"<kvproof {table.name} {name}>"
    text = source.splitlines(keepends=True)
    # A changed copy of a table must not take the source of the original away.
    while linecache.getlines(filename) not in ([], text):
        filename = filename[:-1] + "'>"
    # `inspect.getsource` and tracebacks read it from here.
    linecache.cache[filename] = (len(source), None, text, filename)
    exec(compile(source, filename, "exec"), scope)
    cell: Cell = scope[name]
    return cell


def _bind(scope: dict[str, Any], function: Callable[..., Any]) -> str:
    """Make a function known to the generated source under its own name."""
    name = function.__name__
    while scope.setdefault(name, function) is not function:
        name += "_"
    return name
