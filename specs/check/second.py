"""A second solver: every condition as SMT-LIB 2, decided again by cvc5 in a process of its own.

One file holds the conditions with the same hypotheses: what is assumed once, then each condition
between a push and a pop. The process can be killed; what it did not answer is *unknown*, and an
answer that is not Z3's is a disagreement, which is worse than a refutation.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ..symbolic import terms
from .conditions import Condition, Decided, Verdict

#: cvc5's resource units for one condition.
BUDGET = 500_000
#: Seconds of silence after which the process is killed: a guard against a hang, not a budget.
PATIENCE = 600.0


@dataclass(frozen=True)
class Second:
    """What the second solver says of conditions that the first has decided."""

    agreed: int
    unknown: tuple[Condition, ...]
    disagreed: tuple[Condition, ...]


def groups(asked: Iterable[Condition]) -> list[list[Condition]]:
    """The conditions with the same hypotheses, in the order of their first."""
    found: dict[int, list[Condition]] = {}
    for condition in asked:
        found.setdefault(id(condition.hypotheses), []).append(condition)
    return list(found.values())


def script(group: Sequence[Condition]) -> str:
    """One group as an SMT-LIB 2 script: a `check-sat` for each condition, in order."""
    hypotheses = group[0].hypotheses.formulas
    formulas = [condition.formula for condition in group]
    lines = ["(set-logic ALL)"]
    for name, kind in terms.variables([*hypotheses, *formulas]).items():
        lines.append(f"(declare-const |{name}| {'Bool' if kind == 'bool' else 'Int'})")
    lines += [f"(assert {formula.sexpr()})" for formula in hypotheses]
    for condition, formula in zip(group, formulas, strict=True):
        expected = "sat" if condition.possible else "unsat"
        words = " ".join((condition.obligation, condition.part, condition.words, condition.about))
        lines += [
            f"; {words.strip()}: proved if {expected}".replace("\n", " "),
            "(push 1)",
            f"(assert {formula.sexpr()})",
            "(check-sat)",
            "(pop 1)",
        ]
    return "\n".join([*lines, ""])


def write(folder: Path, asked: Iterable[Condition]) -> list[Path]:
    """Write all conditions, a file for each set of hypotheses."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number, group in enumerate(groups(asked)):
        first = group[0]
        name = first.transition.action if first.transition is not None else first.part or "hold"
        path = folder / f"{number:04}-{name.replace(' ', '-')}.smt2"
        path.write_text(script(group))
        files.append(path)
    return files


def second(
    decided: Sequence[Decided],
    *,
    budget: int = BUDGET,
    tell: Callable[[int, int], None] | None = None,
) -> Second:
    """Ask cvc5 for everything that was decided."""
    verdicts = {id(each.condition): each.verdict for each in decided}
    asked = groups(each.condition for each in decided)
    agreed = 0
    unknown: list[Condition] = []
    disagreed: list[Condition] = []
    with TemporaryDirectory() as folder:
        files = write(Path(folder), (condition for group in asked for condition in group))
        for number, (group, answers) in enumerate(zip(asked, _answers(files, budget), strict=True)):
            for condition, answer in zip(group, _filled(answers, len(group)), strict=True):
                verdict = _verdict(condition, answer)
                if verdict is Verdict.UNKNOWN:
                    unknown.append(condition)
                elif verdict is verdicts[id(condition)]:
                    agreed += 1
                elif verdicts[id(condition)] is not Verdict.UNKNOWN:
                    disagreed.append(condition)
            if tell is not None:
                tell(number + 1, len(asked))
    return Second(agreed, tuple(unknown), tuple(disagreed))


def _verdict(condition: Condition, answer: str) -> Verdict:
    if answer not in ("sat", "unsat"):
        return Verdict.UNKNOWN
    return Verdict.PROVED if (answer == "sat") == condition.possible else Verdict.REFUTED


def _filled(answers: Sequence[str], size: int) -> list[str]:
    """What the solver did not come to answer is unknown."""
    return [*answers, *["unknown"] * (size - len(answers))][:size]


def _answers(files: Sequence[Path], budget: int) -> Iterator[list[str]]:
    """The answers for each file, by a process that reads them one after the other."""
    command = [sys.executable, "-c", _SOLVE, str(budget), *map(str, files)]
    answers: dict[str, list[str]] = {}
    for line in _lines(command):
        path, _, answer = line.rpartition(" ")
        answers.setdefault(path, []).append(answer)
    for file in files:
        yield answers.get(str(file), [])


def _lines(command: Sequence[str]) -> Iterator[str]:
    """What a process prints, line by line, until it ends; killed if it is silent for too long."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    rest = b""
    with process, selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(PATIENCE) and (some := os.read(process.stdout.fileno(), 1 << 16)):
            *lines, rest = (rest + some).split(b"\n")
            yield from (line.decode() for line in lines)
        process.kill()


#: What the other process runs: it needs cvc5 alone.
_SOLVE = """
import sys
import cvc5

for path in sys.argv[2:]:
    solver = cvc5.Solver()
    solver.setOption("incremental", "true")
    solver.setOption("rlimit-per", sys.argv[1])
    parser = cvc5.InputParser(solver)
    parser.setFileInput(cvc5.InputLanguage.SMT_LIB_2_6, path)
    symbols = parser.getSymbolManager()
    while True:
        command = parser.nextCommand()
        if command.isNull():
            break
        answer = command.invoke(solver, symbols)
        if command.getCommandName() == "check-sat":
            print(path, str(answer).strip() or "unknown", flush=True)
"""
