"""Builds the tables as `transitions.Machine` objects, for hooks, nesting and diagrams.

The engine runs the compiled dispatch instead; a test holds both equal for every state, event and
truth value of each guard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .answers import ROW_SHIFT
from .table import Row, Table


class Subject:
    """The model that a `transitions.Machine` is put on: it remembers what the last event gave.

    Call an event by its name in lower case with the table's records:
    `subject.admit(request, engine, ask)`; then `subject.code` is what the compiled cell returns.
    """

    def __init__(self) -> None:
        self.code = 0


def as_transitions_machine(table: Table, initial: int, **options: Any) -> tuple[Subject, Any]:
    """A `transitions.Machine` of the table on a new Subject in the state `initial`.

    Options go to the Machine (`machine_cls=` chooses another class, HierarchicalMachine for
    example). Rows become transitions in their order; refusals are internal transitions.
    """
    import transitions

    machine_class = options.pop("machine_cls", transitions.Machine)
    subject = Subject()
    rows = [
        {
            "trigger": row.trigger.name.lower(),
            "source": table.states(source).name,
            "dest": None if row.dest is None else table.states(row.dest).name,
            "conditions": list(row.conditions),
            "unless": list(row.unless),
            "before": _before(subject, table, number, row),
        }
        for number, row in enumerate(table.rows)
        for source in row.source
    ]
    machine = machine_class(
        model=subject,
        states=[state.name for state in table.states],
        initial=table.states(initial).name,
        transitions=rows,
        auto_transitions=False,
        **options,
    )
    return subject, machine


def _before(subject: Subject, table: Table, number: int, row: Row) -> Callable[..., None]:
    def carry_out(*records: Any) -> None:
        commands = 0
        for effect in row.before:
            commands |= effect(*records)
        if row.dest is not None:
            setattr(records[0], table.state_field, row.dest)
        subject.code = commands | row.answer | number << ROW_SHIFT

    return carry_out
