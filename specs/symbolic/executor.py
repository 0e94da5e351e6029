"""Runs plain Python functions on symbols and lists their paths.

A function is run once for each path. Where it asks for the truth of a symbolic condition and
both answers are possible, the run goes on with *true*, and the prefix of decisions that ends in
*false* is queued; later runs follow their prefix without asking the solver again. `feasibility`
says which answers are possible.

The list of paths is trusted only after three checks: every run is repeated from its decisions alone
and must ask, write and return the same; the path conditions cover the precondition; no two of them
hold at once.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from . import terms, whitelist
from .errors import (
    IncompletePathsError,
    NondeterministicError,
    OverlappingPathsError,
    SymbolicError,
    TooManyPathsError,
    UnexpectedExceptionError,
    Where,
)
from .feasibility import DEFAULT_BUDGET, Branches, satisfiable
from .paths import Decision, Path, PathSet, Result
from .records import LiveRecord, Record, values_of, writes_of
from .terms import BoolTerm, Term
from .values import SymBool, SymInt, bool_term, current_run, int_term, symbol

MAX_PATHS = 4096
MAX_DECISIONS = 512


def execute(
    function: Callable[..., object],
    arguments: Mapping[str, Record | Term | int],
    precondition: BoolTerm = terms.TRUE,
    *,
    budget: int = DEFAULT_BUDGET,
) -> PathSet:
    """Every path of a function under a precondition.

    `arguments` binds each parameter by name to a record, to a Z3 term of sort Int or Bool, or to
    an int. `budget` is the solver's resource limit for each question.

    Raises ForbiddenSyntaxError, before anything runs, for what symbols cannot intercept;
    UnsatisfiableError if nothing satisfies the precondition; UndecidedError if the solver gives
    up; and other SymbolicErrors where the run, or the check of its paths, fails.
    """
    checked = whitelist.check(function)
    arguments = _bound(function, arguments)
    records = [each for each in arguments.values() if isinstance(each, Record)]
    assumptions = [each for record in _unique(records).values() for each in record.assumptions]
    precondition = terms.conjunction([precondition, *assumptions])
    explorer = _Explorer(function, arguments, checked, Branches(precondition, budget))
    paths = tuple(explorer.explore())
    _check_paths(function, precondition, paths, budget)
    return PathSet(function, arguments, precondition, paths)


def _bound(
    function: Callable[..., object], arguments: Mapping[str, Record | Term | int]
) -> dict[str, Record | Term | int]:
    """The arguments in the order of the parameters; TypeError if they do not fit."""
    parameters = inspect.signature(function).parameters
    missing = [
        name
        for name, parameter in parameters.items()
        if name not in arguments and parameter.default is parameter.empty
    ]
    unknown = [name for name in arguments if name not in parameters]
    if missing or unknown:
        raise TypeError(
            f"{function.__qualname__} takes ({', '.join(parameters)}): "
            f"missing {missing}, unknown {unknown}"
        )
    for name, value in arguments.items():
        if not (isinstance(value, Record | int) or terms.is_term(value)):
            raise TypeError(f"{name}={value!r} is neither a record nor an int, nor a term of such")
    return {name: arguments[name] for name in parameters if name in arguments}


def _unique(records: Sequence[Record]) -> dict[str, Record]:
    unique: dict[str, Record] = {}
    for record in records:
        if unique.setdefault(record.name, record) is not record:
            raise ValueError(f"two records are named {record.name}")
    return unique


@dataclass(frozen=True)
class _Run:
    """One run of the function: follows a prefix, then decides by what is feasible."""

    prefix: Sequence[Decision]
    codes: frozenset[CodeType]
    decisions: list[Decision]
    fork: Callable[[_Run, BoolTerm], Decision]

    def decide(self, condition: BoolTerm) -> bool:
        position = len(self.decisions)
        if position >= MAX_DECISIONS:
            raise TooManyPathsError(f"{self.where()}: more than {MAX_DECISIONS} decisions")
        if position < len(self.prefix):
            decision = self.prefix[position]
            if not terms.same(decision.condition, condition):
                raise NondeterministicError(
                    f"{self.where()}: asks {condition} where it asked {decision.condition} before"
                )
        else:
            decision = self.fork(self, condition)
        self.decisions.append(decision)
        return decision.taken

    def where(self) -> Where:
        """The innermost line of an executed function."""
        frame = sys._getframe(1)
        while frame.f_code not in self.codes:
            if frame.f_back is None:
                return Where("?", 0, "?")
            frame = frame.f_back
        code = frame.f_code
        return Where(code.co_filename, frame.f_lineno, code.co_name)


@dataclass(frozen=True)
class _Outcome:
    writes: dict[str, dict[str, Term]]
    result: Result
    raised: type[Exception] | None

    def same_as(self, other: _Outcome) -> bool:
        return (
            self.raised is other.raised
            and _same_terms(_as_list(self.result), _as_list(other.result))
            and self.writes.keys() == other.writes.keys()
            and all(
                fields.keys() == other.writes[record].keys()
                and _same_terms(list(fields.values()), list(other.writes[record].values()))
                for record, fields in self.writes.items()
            )
        )


class _Explorer:
    """Depth-first search over one function's decisions, *true* first: always the same order."""

    def __init__(
        self,
        function: Callable[..., object],
        arguments: Mapping[str, Record | Term | int],
        checked: whitelist.Checked,
        branches: Branches,
    ) -> None:
        self._function = function
        self._arguments = arguments
        self._checked = checked
        self._branches = branches
        self._pending: list[list[Decision]] = [[]]
        self._records = _unique([each for each in arguments.values() if isinstance(each, Record)])
        self._initial = {name: values_of(record) for name, record in self._records.items()}

    def explore(self) -> list[Path]:
        paths: list[Path] = []
        while self._pending:
            if len(paths) >= MAX_PATHS:
                raise TooManyPathsError(f"{self._name} has more than {MAX_PATHS} paths")
            prefix = self._pending.pop()
            self._branches.go_to([each.literal for each in prefix if not each.forced])
            decisions, outcome = self._run(prefix, self._fork)
            again, same = self._run(decisions, self._no_fork)
            if len(again) != len(decisions) or not outcome.same_as(same):
                raise NondeterministicError(f"{self._name} does not repeat:\n{outcome}\n{same}")
            paths.append(
                Path(
                    terms.conjunction(each.literal for each in decisions if not each.forced),
                    outcome.writes,
                    outcome.result,
                    outcome.raised,
                    tuple(decisions),
                    self._records,
                )
            )
        return paths

    @property
    def _name(self) -> str:
        return self._function.__qualname__

    def _fork(self, run: _Run, condition: BoolTerm) -> Decision:
        where = run.where()
        possible = self._branches.possible(condition)
        if len(possible) == 1:
            return Decision(condition, possible[0], True, where)
        self._pending.append([*run.decisions, Decision(condition, False, False, where)])
        self._branches.take(condition)
        return Decision(condition, True, False, where)

    def _no_fork(self, run: _Run, condition: BoolTerm) -> Decision:
        raise NondeterministicError(f"{run.where()}: asks {condition}, which it did not before")

    def _run(
        self, prefix: Sequence[Decision], fork: Callable[[_Run, BoolTerm], Decision]
    ) -> tuple[list[Decision], _Outcome]:
        run = _Run(prefix, self._checked.codes, [], fork)
        records = {
            name: LiveRecord(record, self._initial[name]) for name, record in self._records.items()
        }
        values: dict[str, Any] = {
            parameter: records[each.name]
            if isinstance(each, Record)
            else symbol(each)
            if terms.is_term(each)
            else each
            for parameter, each in self._arguments.items()
        }
        token = current_run.set(run)
        result: object = None
        raised: type[Exception] | None = None
        try:
            result = self._function(**values)
        except SymbolicError:
            raise
        except self._checked.raises as error:
            raised = type(error)
        except Exception as error:
            raise UnexpectedExceptionError(
                f"{_line_of(error, run)}: {type(error).__name__}: {error}"
            ) from error
        finally:
            current_run.reset(token)
        writes = {name: writes_of(record) for name, record in records.items()}
        return run.decisions, _Outcome(writes, _result(result, self._name), raised)


def _line_of(error: Exception, run: _Run) -> Where | str:
    found: Where | str = "?"
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code in run.codes:
            found = Where(code.co_filename, trace.tb_lineno, code.co_name)
        trace = trace.tb_next
    return found


def _result(value: object, name: str) -> Result:
    if isinstance(value, tuple) and not any(isinstance(each, tuple) for each in value):
        return tuple(_result(each, name) for each in value)
    if isinstance(value, SymInt):
        return int_term(value)
    if isinstance(value, SymBool):
        return bool_term(value)
    if value is None or isinstance(value, int):
        return value
    raise UnexpectedExceptionError(f"{name} returns {value!r}, which is no int or bool")


def _as_list(result: Result) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


def _same_terms(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(
        terms.same(one, other)
        if terms.is_term(one) and terms.is_term(other)
        else type(one) is type(other) and not terms.is_term(one) and one == other
        for one, other in zip(left, right, strict=True)
    )


def _check_paths(
    function: Callable[..., object],
    precondition: BoolTerm,
    paths: Sequence[Path],
    budget: int,
) -> None:
    """Check, with a fresh solver, that the paths cover the precondition and exclude each other."""
    conditions = [path.condition for path in paths]
    # For the cover, with the forced decisions: one that was not forced would leave a gap.
    whole = [terms.conjunction(each.literal for each in path.decisions) for path in paths]
    gap = satisfiable([precondition, terms.negated(terms.disjunction(whole))], budget)
    if gap is not None:
        raise IncompletePathsError(f"no path of {function.__qualname__} is taken at {gap}")
    # Linear in the paths: each against the disjunction of those before it.
    earlier, overlaps = terms.FALSE, []
    for condition in conditions:
        overlaps.append(terms.conjunction([condition, earlier]))
        earlier = terms.disjunction([earlier, condition])
    both = satisfiable([precondition, terms.disjunction(overlaps)], budget)
    if both is not None:
        raise OverlappingPathsError(f"two paths of {function.__qualname__} are taken at {both}")
