"""The state that the proofs speak of: one block, and who may have to do with it.

One arbitrary block `b`; one arbitrary request `r` and transfer `t`, who act; a second request and
transfer, who only look on; and everybody else as counts. Every name in a formula is a field of
one of these records.

| record | what it is |
|---|---|
| `r`, `t`, `e`, `b` | the facts of the request, the transfer, the engine and the block |
| `held` | which holds of `r` and `t` cover the block |
| `place`, `copy`, `more` | ghosts: what device and workers really do (see `joined`) |
| `others` | how many holds of everybody else cover the block, by kind |
| `ask`, `pick`, … | what an event is told |
| `reset`, `bulk` | what a reset is asked; what everybody else does in the same action |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import z3

from ..symbolic import terms
from ..symbolic.terms import Kind, Term
from .running import RECORDS, Running

Values = Mapping[str, Term]

#: Records that exist twice: for the one who acts, and with a 2 for the one who looks on.
OF_REQUEST = ("r", "place")
OF_TRANSFER = ("t", "copy")
_HELD_BY_REQUEST = ("by_request", "by_step", "step")

_OTHERS: Mapping[str, Kind] = {
    "request": "int",  # REQUEST holds of other requests that cover the block
    "step": "int",  # STEP holds that other requests handed over
    "load": "int",  # LOAD holds of other transfers
    "store": "int",  # STORE holds of other transfers
    "quarantined": "int",  # those of the last two that are in quarantine
    "running": "int",  # other requests in RUNNING or PREEMPTED
    "live": "int",  # other live requests
}
_RESET: Mapping[str, Kind] = {
    "force": "bool",
    "refusing": "int",  # holders that refuse
    "tier_asked": "bool",
    "tier_cleared": "bool",  # the tier's own answer
}
_BULK: Mapping[str, Kind] = {
    "left": "int",  # holds of other requests on the block that end in this action
    "ended": "int",  # STEP holds of others on the block that end with the step
    "published": "bool",  # another waiter publishes the block
    "quarantined": "int",  # other blocks in quarantine after this action
}

#: Records that are never written: what an event is told.
INPUTS = ("ask", "pick", "transfer_ask", "transfer_pick", "engine_ask", "reset", "bulk")


class Variables:
    """The variables of the state of one declaration, by name `record.field`."""

    def __init__(self, running: Running) -> None:
        self.running = running
        #: Formulas are for people: declared functions are named instead of executed.
        self.readable = False
        kinds: dict[str, Kind] = {}
        for record in RECORDS:
            fields = running.records[record].kinds
            kinds |= {f"{record}.{field}": kind for field, kind in fields.items()}
            if record in (*OF_REQUEST, *OF_TRANSFER, "held"):
                kinds |= {f"{record}2.{field}": kind for field, kind in fields.items()}
        for record, fields in {"others": _OTHERS, "reset": _RESET, "bulk": _BULK}.items():
            kinds |= {f"{record}.{field}": kind for field, kind in fields.items()}
        self.kinds: Mapping[str, Kind] = kinds
        self.terms: Values = {name: terms.variable(name, kind) for name, kind in kinds.items()}
        self.state: tuple[str, ...] = tuple(
            name for name in kinds if name.partition(".")[0] not in INPUTS
        )

    def view(self, values: Values | None = None) -> View:
        """The state in which variables have the given values, all others their own."""
        return View(self, values or {})

    def blank(self, *records: str) -> dict[str, Term]:
        """The values of records of which nothing is known yet."""
        values = {
            name: terms.constant(0, kind)
            for name, kind in self.kinds.items()
            if name.partition(".")[0] in records
        }
        for name in ("place.position", "place2.position"):
            if name in values:
                values[name] = terms.number(self.nowhere)
        for name in ("copy.number", "copy2.number"):
            values.pop(name, None)
        return values

    @property
    def nowhere(self) -> int:
        """The position of a block in a table that it is not in."""
        found: int = self.running.declaration.modules["joined"].NOT_IN_TABLE
        return found

    def second_request(self) -> dict[str, Term]:
        """Values that say: no second request is looked at."""
        values = self.blank("r2", "place2", "held2")
        return {
            name: value
            for name, value in values.items()
            if not name.startswith("held2.") or name.partition(".")[2] in _HELD_BY_REQUEST
        }

    def second_transfer(self) -> dict[str, Term]:
        """Values that say: no second transfer is looked at."""
        values = self.blank("t2", "copy2", "held2")
        return {
            name: value
            for name, value in values.items()
            if not name.startswith("held2.") or name.partition(".")[2] not in _HELD_BY_REQUEST
        }


class View:
    """A state as formulas read it: `s.r.covered`, `s.held.by_request`.

    A view may look at the second request or the second transfer instead of the first.
    """

    def __init__(
        self, variables: Variables, values: Values, request: str = "", transfer: str = ""
    ) -> None:
        self.variables = variables
        self.values = values
        self.request = request
        self.transfer = transfer

    def at(self, *, request: str = "", transfer: str = "") -> View:
        """The same state, with an eye on the second ("2") or first ("") request and transfer."""
        return View(self.variables, self.values, request, transfer)

    def value(self, record: str, field: str) -> Term:
        """What a variable is worth in this state."""
        if record in OF_REQUEST or (record == "held" and field in _HELD_BY_REQUEST):
            record += self.request
        elif record in OF_TRANSFER or record == "held":
            record += self.transfer
        name = f"{record}.{field}"
        found = self.values.get(name)
        return self.variables.terms[name] if found is None else found

    def __getattr__(self, record: str) -> Any:
        if record.startswith("_"):
            raise AttributeError(record)
        return _Fields(self, record)

    def declared(self, module: str, name: str, **arguments: Any) -> Term:
        """The result of a declared function in this state: a guard, a lane, a policy.

        Parameters that are records of the state are bound by name; others are given as terms.
        """
        running = self.variables.running
        given = {
            each: terms.variable(f"given.{each}", terms.kind_of(value))
            if terms.is_term(value)
            else value
            for each, value in arguments.items()
        }
        result = running.effect(module, name, **given).result
        if result is None:
            raise TypeError(f"{module}.{name} returns nothing")
        if self.variables.readable:
            return _named(name, terms.is_term(result) and terms.kind_of(result), arguments)
        if not terms.is_term(result):
            return terms.constant(int(result), "bool" if isinstance(result, bool) else "int")
        pairs = [(given[each], value) for each, value in arguments.items() if terms.is_term(value)]
        for variable, kind in terms.variables([result]).items():
            record, _, field = variable.partition(".")
            if record != "given":
                pairs.append((terms.variable(variable, kind), self.value(record, field)))
        return z3.simplify(z3.substitute(result, *pairs)) if pairs else result


def _named(name: str, kind: object, arguments: Mapping[str, Any]) -> Term:
    """A declared function's result as a call, for people."""
    given = [value for value in arguments.values() if terms.is_term(value)]
    result = z3.IntSort() if kind == "int" else z3.BoolSort()
    return z3.Function(name, *(value.sort() for value in given), result)(*given)


class _Fields:
    def __init__(self, view: View, record: str) -> None:
        self._view = view
        self._record = record

    def __getattr__(self, field: str) -> Term:
        if field.startswith("_"):
            raise AttributeError(field)
        return self._view.value(self._record, field)
