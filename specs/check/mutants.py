"""Mutants: the declaration broken everywhere, once at a time, by a fixed list of operators.

| operator | what it does |
|---|---|
| drop guard, negate guard | of a row: a condition is left out, or turned round |
| drop effect, double effect, misdirect effect | of a row: an effect is left out, doubled, another |
| wrong source, wrong destination | of a row: one source state less, another destination |
| wrong answer | of a row: not now, ignore and reject for each other |
| drop conjunct, turn comparison, off by one | in every function that tables or engine call |
| drop statement, wrong command | the same |

A mutant is a piece of text replaced at a place; the copy that is checked is real Python.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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

    def mutant(self, operator: str, words: str, node: ast.expr | ast.stmt, new: str) -> Mutant:
        start, end = self.span(node)
        return Mutant(operator, words, Edit(self.file, start, end, new))


# --- rows -----------------------------------------------------------------------------------------


def _of_rows(file: str, source: str) -> Iterator[Mutant]:
    text = _Text(file, source)
    for number, row in enumerate(_rows(ast.parse(source))):
        trigger = ast.unparse(row.args[0]).removeprefix("E.").lower()
        yield from _of_row(text, f"row {number} ({trigger})", row)


def _rows(tree: ast.Module) -> Iterator[ast.Call]:
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "ROWS":
            assert isinstance(statement.value, ast.Tuple)
            for element in statement.value.elts:
                if isinstance(element, ast.Call):
                    yield element


def _of_row(text: _Text, where: str, row: ast.Call) -> Iterator[Mutant]:
    named = {keyword.arg: keyword.value for keyword in row.keywords}
    refusal = "answer" in named
    for kind, other in (("conditions", "unless"), ("unless", "conditions")):
        guards = named.get(kind)
        if not isinstance(guards, ast.Tuple):
            continue
        for guard in guards.elts:
            name = text.of(guard)
            yield text.mutant(
                "drop guard", f"{where}: {kind} without {name}", guards,
                _tuple([text.of(each) for each in guards.elts if each is not guard]),
            )  # fmt: skip
            if len(guards.elts) == 1 and other not in named:
                start = text.source.rindex(kind, 0, text.span(guards)[0])
                end = text.span(guards)[1]
                yield Mutant(
                    "negate guard", f"{where}: {other} {name} instead of {kind}",
                    Edit(text.file, start, end, f"{other}={text.of(guards)}"),
                )  # fmt: skip
    effects = named.get("before")
    if isinstance(effects, ast.Tuple):
        names = [text.of(each) for each in effects.elts]
        for index, name in enumerate(names):
            rest = names[:index] + names[index + 1 :]
            yield text.mutant("drop effect", f"{where}: without {name}", effects, _tuple(rest))
            if not name.startswith("*"):
                other = "drop_queue" if text.file == "request.py" else name
                if other != name:
                    changed = _tuple([*names[:index], other, *names[index + 1 :]])
                    words = f"{where}: {other} for {name}"
                    yield text.mutant("misdirect effect", words, effects, changed)
                twice = [*names[: index + 1], *names[index:]]
                yield text.mutant("double effect", f"{where}: {name} twice", effects, _tuple(twice))
    yield from _of_ends(text, where, row, refusal)
    answers = ("GO", "NOT_NOW", "IGNORE", "REJECT")
    if refusal:
        answer = named["answer"]
        for instead in answers[1:]:
            if instead != text.of(answer):
                yield text.mutant("wrong answer", f"{where}: {instead}", answer, instead)


def _of_ends(text: _Text, where: str, row: ast.Call, refusal: bool) -> Iterator[Mutant]:
    """Another destination, and one source less."""
    sources = row.args[1] if len(row.args) > 1 else None
    if isinstance(sources, ast.Tuple) and len(sources.elts) > 1 and not refusal:
        for source in sources.elts:
            rest = [text.of(each) for each in sources.elts if each is not source]
            yield text.mutant(
                "wrong source", f"{where}: not from {text.of(source)}", sources, _tuple(rest)
            )
    if len(row.args) > 2:
        dest = text.of(row.args[2])
        for instead in _INSTEAD.get(text.file, ()):
            if instead != dest:
                yield text.mutant(
                    "wrong destination", f"{where}: to {instead}", row.args[2], instead
                )
                break


#: Destinations that are put in the place of others: the first that differs.
_INSTEAD = {
    "request.py": ("WAITING", "FINISHED_ERROR"),
    "transfer.py": ("FENCED", "LANDED"),
    "engine.py": ("PAUSED", "ACTIVE"),
}


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
                rest = [text.of(other) for other in values if other is not each]
                yield text.mutant(
                    "drop conjunct", f"{name}: without {text.of(each)}", node, word.join(rest)
                )
                yield from _of_expression(text, name, each)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield text.mutant("negate guard", f"{name}: {text.of(operand)}", node, text.of(operand))
            yield from _of_expression(text, name, operand)
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            turned = f"{text.of(left)} {_TURNED[type(operator)]} {text.of(right)}"
            yield text.mutant("turn comparison", f"{name}: {turned}", node, turned)
            yield text.mutant(
                "off by one", f"{name}: {text.of(right)} + 1", right, f"{text.of(right)} + 1"
            )
            yield from _of_expression(text, name, left)
        case ast.BinOp(left=left, op=operator, right=right):
            if type(operator) in _SIGNS:
                turned = f"{text.of(left)} {_SIGNS[type(operator)]} {text.of(right)}"
                yield text.mutant("off by one", f"{name}: {turned}", node, turned)
            elif isinstance(operator, ast.BitAnd | ast.BitOr) and not _is_command(right):
                word = "|" if isinstance(operator, ast.BitAnd) else "&"
                turned = f"{text.of(left)} {word} {text.of(right)}"
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
