"""The guarded commands of an instance as a Promela model, for Spin.

One process, one loop, one atomic option (`d_step`) for each command: the states that Spin stores
and the transitions that it counts are those of the explorer, exactly. The text is printed from
the same expressions that the array operations are compiled from.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from . import walking
from .compiled import Command, System
from .expressions import Expr, Value
from .structure import Slot


def promela(system: System, *, invariants: bool = True) -> str:
    """The model's text. With `invariants`, each command asserts them of the state it leaves."""
    names = {slot.name: _identifier(slot.name) for slot in system.slots}
    temporaries = 0
    options: list[str] = []
    for command in system.commands:
        lines, used = _option(command, names, system, invariants)
        temporaries = max(temporaries, used)
        options.append("\n".join(lines))
    values = dict(zip((slot.name for slot in system.slots), system.initial, strict=True))
    declared = [_declaration(slot, names[slot.name], values[slot.name]) for slot in system.slots]
    scratch = [f"hidden int v{number};" for number in range(temporaries)]
    asserted = ["", "inline invariants_hold() {", *_assertions(system, names), "}"]
    return "\n".join(
        [
            "/* kvproof: a finite instance of the request lifecycle.",
            *(f"   {line}" for line in textwrap.wrap(str(system.instance), 90)),
            "   Generated from the declaration: do not edit. */",
            "",
            *declared,
            "",
            *scratch,
            *(asserted if invariants else []),
            "",
            "active proctype lifecycle() {",
            "end:",
            "  do",
            *options,
            "  od",
            "}",
            "",
        ]
    )


def _identifier(name: str) -> str:
    return name.replace(".", "_")


def _declaration(slot: Slot, name: str, value: int) -> str:
    kind = "bool" if slot.boolean else "byte" if slot.low >= 0 and slot.high < 256 else "short"
    return f"{kind} {name} = {value};" if value else f"{kind} {name};"


def _assertions(system: System, names: Mapping[str, str]) -> Iterator[str]:
    printer = _Printer(names)
    for invariant, holds in system.invariants:
        yield f"  assert({printer.inline(holds)}); /* {invariant.name}: {invariant.subject} */"


def _option(
    command: Command, names: Mapping[str, str], system: System, invariants: bool
) -> tuple[list[str], int]:
    """The lines of one option, and how many temporaries it uses."""
    guard = _Printer(names).inline(command.guard)
    printer = _Printer(names, [*command.updates.values(), *(c.holds for c in command.checks)])
    lines = [f"  /* {command.action.label} */", f"  :: d_step {{ {guard} ->"]
    assigned: list[str] = []
    for name, value in command.updates.items():
        text = printer.named(value) if isinstance(value, Expr) else str(int(value))
        assigned.append(f"       {names[name]} = {text};")
    checks = [
        f"       assert({printer.named(check.holds)}); /* {check.name} */"
        for check in (command.checks if invariants else ())
    ]
    # Every value is over the state before: all are computed before the first is assigned.
    lines += [f"       {line}" for line in printer.lines]
    lines += checks + assigned
    if invariants:
        lines.append("       invariants_hold()")
    lines.append("     }")
    return lines, printer.temporaries


class _Printer:
    """Prints expressions: inline, or with shared and stateful parts in temporaries."""

    def __init__(self, names: Mapping[str, str], shared: Sequence[Value] = ()) -> None:
        self.lines: list[str] = []
        self.temporaries = 0
        self._names = names
        self._known: dict[int, str] = {}
        self._inline: dict[int, str] = {}
        self._uses: dict[int, int] = {}
        for node in walking.subterms(shared):
            if node.op != "var":
                for arg in node.args:
                    if isinstance(arg, Expr):
                        self._uses[arg.index] = self._uses.get(arg.index, 0) + 1

    def inline(self, value: Value) -> str:
        """One expression, everything written out."""
        if not isinstance(value, Expr):
            return str(int(value))
        text = self._inline.get(value.index)
        if text is None:
            text = self._inline[value.index] = self._print(value, self.inline)
        return text

    def named(self, value: Value) -> str:
        """A temporary that holds the value, so that it may be assigned after others."""
        if not isinstance(value, Expr):
            return str(int(value))
        for node in walking.subterms([value]):
            if node.index in self._known or node.op == "var":
                continue
            if node is value or self._uses.get(node.index, 0) > 1:
                self._store(node)
        if value.op == "var" and value.index not in self._known:
            self._store(value)
        return self._known[value.index]

    def _store(self, node: Expr) -> None:
        name = f"v{self.temporaries}"
        self.lines.append(f"{name} = {self._print(node, self._part)};")
        self._known[node.index] = name
        self.temporaries += 1

    def _part(self, value: Value) -> str:
        if not isinstance(value, Expr):
            return str(int(value))
        known = self._known.get(value.index)
        return known if known is not None else self._print(value, self._part)

    def _print(self, node: Expr, part: object) -> str:
        assert callable(part)
        if node.op == "var":
            return self._names[node.args[0]]
        args = [part(arg) for arg in node.args]
        match node.op:
            case "not":
                return f"!({args[0]})"
            case "ite":
                return f"({args[0]} -> {args[1]} : {args[2]})"
        return f"({f' {_OPERATORS[node.op]} '.join(args)})"


_OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "mod": "%",
    "eq": "==",
    "le": "<=",
    "and": "&&",
    "or": "||",
}
