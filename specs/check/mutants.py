"""Mutants: the declaration broken everywhere, once at a time, by a fixed list of operators.

| operator | what it does |
|---|---|
| drop guard, negate guard | of a row: a condition is left out, or turned round |
| drop effect, double effect, misdirect effect | of a row: an effect is left out, doubled, another |
| wrong source, wrong destination | of a row: one source state less, another destination |
| wrong answer | of a row: go, not now, ignore and reject for each other |
| drop conjunct, turn comparison, off by one | in every function that tables or engine call |
| drop statement, wrong command | the same |

A mutant is a piece of text replaced at a place; the copy that is checked is real Python.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from .declaration import Edit

TABLES = ("request.py", "transfer.py", "engine.py")
FUNCTIONS = (
    "request_guards.py",
    "request_effects.py",
    "transfer.py",
    "engine.py",
    "gates.py",
    "lanes.py",
    "policy.py",
    "reset.py",
    "blocks.py",
    "request.py",
)
COMMANDS = ("TAKE", "RELEASE", "HAND_OVER", "TRIM", "MAKE_HITS", "WAIT", "STOP_WAITING",
            "QUARANTINE")  # fmt: skip
#: What a command is misdirected to, where that name is known in the file.
_OTHER_COMMAND = {"TAKE": "RELEASE", "RELEASE": "TAKE", "HAND_OVER": "RELEASE", "TRIM": "RELEASE",
                  "QUARANTINE": "RELEASE", "MAKE_HITS": "TRIM", "WAIT": "TAKE",
                  "STOP_WAITING": "RELEASE"}  # fmt: skip
#: Functions that are neither called by the engine nor by a table.
NOT_DECLARED = ("_not_in", "as_dict", "__init__")


@dataclass(frozen=True)
class Mutant:
    """One break: where, by which operator, in words."""

    operator: str
    words: str
    edit: Edit


def mutants(sources: Mapping[str, str]) -> list[Mutant]:
    """All mutants of the declaration, in a fixed order, no text twice."""
    found: dict[tuple[str, int, int, str], Mutant] = {}
    for file in TABLES:
        for mutant in _of_rows(file, sources[file]):
            found.setdefault(_key(mutant.edit), mutant)
    for file in FUNCTIONS:
        for mutant in _of_functions(file, sources[file]):
            found.setdefault(_key(mutant.edit), mutant)
    return list(found.values())


def _key(edit: Edit) -> tuple[str, int, int, str]:
    return edit.file, edit.start, edit.end, edit.new


class _Text:
    """A source with the offsets of its nodes."""

    def __init__(self, file: str, source: str) -> None:
        self.file = file
        self.source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        end_line, end_column = node.end_lineno, node.end_col_offset
        assert end_line is not None
        assert end_column is not None
        return (
            self._offset(node.lineno, node.col_offset),
            self._offset(end_line, end_column),
        )

    def _offset(self, line: int, column: int) -> int:
        start = self._lines[line - 1]
        text = self.source[start : self._lines[line]]
        return start + len(text.encode()[:column].decode())

    def of(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.source[start:end]

    def part(self, node: ast.expr) -> str:
        """The text of an operand, in parentheses where it might need them."""
        plain = isinstance(node, ast.Name | ast.Constant | ast.Attribute | ast.Call)
        return self.of(node) if plain else f"({self.of(node)})"

    def mutant(self, operator: str, words: str, node: ast.expr | ast.stmt, new: str) -> Mutant:
        start, end = self.span(node)
        return Mutant(operator, words, Edit(self.file, start, end, new))


# --- rows -----------------------------------------------------------------------------------------

ANSWERS = ("NOT_NOW", "IGNORE", "REJECT")
#: What an effect is misdirected to, by file: another effect of that table.
_OTHER_EFFECT = {"request.py": "drop_queue", "transfer.py": "end_hold", "engine.py": "end_pause"}
#: Destinations that are put in the place of others: the first that differs.
_INSTEAD = {
    "request.py": ("WAITING", "FINISHED_ERROR"),
    "transfer.py": ("FENCED", "LANDED"),
    "engine.py": ("PAUSED", "ACTIVE"),
}


@dataclass(frozen=True)
class _Row:
    """A row of a table: the texts of its parts, by the names of the parameters."""

    text: _Text
    node: ast.Call
    where: str

    @cached_property
    def parts(self) -> Mapping[str, str]:
        positional = zip(("trigger", "sources", "dest"), self.node.args, strict=False)
        named = {each.arg or "": each.value for each in self.node.keywords}
        return {name: self.text.of(each) for name, each in [*positional, *named.items()]}

    def members(self, part: str) -> list[str]:
        """The texts of a tuple's members; none if it is no tuple in writing."""
        nodes = {each.arg: each.value for each in self.node.keywords}
        node = self.node.args[1] if part == "sources" else nodes.get(part)
        return [self.text.of(each) for each in node.elts] if isinstance(node, ast.Tuple) else []

    def mutant(self, operator: str, words: str, **changed: str | None) -> Mutant:
        """The row with some parts replaced, or left out where they are None."""
        parts = {name: text for name, text in {**self.parts, **changed}.items() if text is not None}
        positional = [parts.pop(name) for name in ("trigger", "sources", "dest") if name in parts]
        named = [f"{name}={text}" for name, text in parts.items()]
        row = f"Row({', '.join([*positional, *named])})"
        return self.text.mutant(operator, f"{self.where}: {words}", self.node, row)


def _of_rows(file: str, source: str) -> Iterator[Mutant]:
    text = _Text(file, source)
    for number, node in enumerate(_rows(ast.parse(source))):
        trigger = ast.unparse(node.args[0]).removeprefix("E.").lower()
        row = _Row(text, node, f"row {number} ({trigger})")
        yield from _of_guards(row)
        yield from _of_effects(row)
        yield from _of_ends(row)
        yield from _of_answers(row)


def _rows(tree: ast.Module) -> Iterator[ast.Call]:
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "ROWS":
            assert isinstance(statement.value, ast.Tuple)
            for element in statement.value.elts:
                if isinstance(element, ast.Call):
                    yield element


def _of_guards(row: _Row) -> Iterator[Mutant]:
    for kind, other in (("conditions", "unless"), ("unless", "conditions")):
        guards = row.members(kind)
        for guard in guards:
            rest = [each for each in guards if each != guard]
            kept = _tuple(rest) if rest else None
            yield row.mutant("drop guard", f"without {guard}", **{kind: kept})
            turned = _tuple([*row.members(other), guard])
            yield row.mutant(
                "negate guard", f"{other} {guard} instead of {kind}", **{kind: kept, other: turned}
            )


def _of_effects(row: _Row) -> Iterator[Mutant]:
    names = row.members("before")
    for index, name in enumerate(names):
        before, after = names[:index], names[index + 1 :]
        rest = [*before, *after]
        yield row.mutant("drop effect", f"without {name}", before=_tuple(rest) if rest else None)
        other = _OTHER_EFFECT[row.text.file]
        if name.startswith("*"):
            continue
        if other != name:
            changed = _tuple([*before, other, *after])
            yield row.mutant("misdirect effect", f"{other} for {name}", before=changed)
        twice = _tuple([*before, name, name, *after])
        yield row.mutant("double effect", f"{name} twice", before=twice)


def _of_ends(row: _Row) -> Iterator[Mutant]:
    """Another destination, and one source less."""
    if "answer" not in row.parts:
        sources = row.members("sources")
        for source in sources if len(sources) > 1 else ():
            rest = [each for each in sources if each != source]
            yield row.mutant("wrong source", f"not from {source}", sources=_tuple(rest))
        if not sources:
            named = row.parts["sources"]
            words = f"not from the first of {named}"
            yield row.mutant("wrong source", words, sources=f"{named}[1:]")
    dest = row.parts.get("dest")
    if dest is not None:
        instead = next(each for each in _INSTEAD[row.text.file] if each != dest)
        yield row.mutant("wrong destination", f"to {instead}", dest=instead)


def _of_answers(row: _Row) -> Iterator[Mutant]:
    """Go, not now, ignore and reject for each other; what does not go has no effect."""
    answer = row.parts.get("answer")
    for instead in ANSWERS:
        if answer is None and instead != "NOT_NOW":
            yield row.mutant("wrong answer", instead, answer=instead, dest=None, before=None)
        elif answer is not None and instead != answer:
            yield row.mutant("wrong answer", instead, answer=instead)
    if answer is not None:
        yield row.mutant("wrong answer", "it goes", answer=None)


def _tuple(parts: list[str]) -> str:
    return f"({', '.join(parts)}{',' * (len(parts) == 1)})"


# --- functions ------------------------------------------------------------------------------------

_TURNED: Mapping[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
}
_SIGNS: Mapping[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+"}


def _of_functions(file: str, source: str) -> Iterator[Mutant]:
    text = _Text(file, source)
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name not in NOT_DECLARED:
            for statement in node.body:
                yield from _of_statement(text, node.name, statement)


def _of_statement(text: _Text, name: str, node: ast.stmt) -> Iterator[Mutant]:
    match node:
        case ast.Expr(value=ast.Constant()):
            return
        case ast.If(test=test, body=body, orelse=orelse):
            yield from _of_expression(text, name, test)
            for each in [*body, *orelse]:
                yield from _of_statement(text, name, each)
        case ast.Return(value=ast.expr() as value):
            yield from _of_expression(text, name, value)
        case ast.Assign(value=value):
            yield text.mutant("drop statement", f"{name}: without {text.of(node)}", node, "pass")
            yield from _of_expression(text, name, value)
        case ast.Expr(value=value):
            yield text.mutant("drop statement", f"{name}: without {text.of(node)}", node, "pass")
            yield from _of_expression(text, name, value)


def _of_expression(text: _Text, name: str, node: ast.expr) -> Iterator[Mutant]:
    match node:
        case ast.BoolOp(values=values, op=operator):
            word = " and " if isinstance(operator, ast.And) else " or "
            for each in values:
                rest = [text.part(other) for other in values if other is not each]
                yield text.mutant(
                    "drop conjunct", f"{name}: without {text.of(each)}", node, word.join(rest)
                )
                yield from _of_expression(text, name, each)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield text.mutant(
                "negate guard", f"{name}: {text.of(operand)}", node, text.part(operand)
            )
            yield from _of_expression(text, name, operand)
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            turned = f"{text.part(left)} {_TURNED[type(operator)]} {text.part(right)}"
            yield text.mutant("turn comparison", f"{name}: {turned}", node, turned)
            yield text.mutant(
                "off by one", f"{name}: {text.of(right)} + 1", right, f"{text.part(right)} + 1"
            )
            yield from _of_expression(text, name, left)
        case ast.BinOp(left=left, op=operator, right=right):
            if type(operator) in _SIGNS:
                turned = f"{text.part(left)} {_SIGNS[type(operator)]} {text.part(right)}"
                yield text.mutant("off by one", f"{name}: {turned}", node, turned)
            elif isinstance(operator, ast.BitAnd | ast.BitOr) and not _is_command(right):
                word = "|" if isinstance(operator, ast.BitAnd) else "&"
                turned = f"{text.part(left)} {word} {text.part(right)}"
                yield text.mutant("turn comparison", f"{name}: {turned}", node, turned)
            yield from _of_expression(text, name, left)
            yield from _of_expression(text, name, right)
        case ast.Name(id=word) if word in COMMANDS:
            for instead in ("0", _OTHER_COMMAND.get(word, "TAKE")):
                yield text.mutant("wrong command", f"{name}: {instead} for {word}", node, instead)
        case ast.Constant(value=bool() as value):
            yield text.mutant("off by one", f"{name}: {not value}", node, str(not value))
        case ast.Constant(value=int() as value):
            yield text.mutant(
                "off by one", f"{name}: {value + 1} for {value}", node, str(value + 1)
            )
        case ast.Attribute():
            yield from _of_attribute(text, name, node)
        case ast.Call(args=arguments):
            for each in arguments:
                yield from _of_expression(text, name, each)


def _is_command(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in COMMANDS


def _of_attribute(text: _Text, name: str, node: ast.Attribute) -> Iterator[Mutant]:
    """A truth value is asked the other way round; a number is off by one."""
    field = node.attr
    if field in _TRUTHS:
        yield text.mutant(
            "negate guard", f"{name}: not {text.of(node)}", node, f"(not {text.of(node)})"
        )


#: Facts that are truth values and are returned or tested as such.
_TRUTHS = frozenset(
    {
        "weights_resident", "cache_resident", "pending_reset", "sleep_paused", "resumable",
        "input_open", "joinable", "allowed", "forced", "fatal", "expired", "idle", "grammar",
        "at_limit", "unshared", "published", "cached", "being_written",
    }
)  # fmt: skip
