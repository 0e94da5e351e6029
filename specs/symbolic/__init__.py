"""Symbolic execution: plain Python functions become finite lists of paths.

    paths = execute(function, {"r": Record.of(RequestFacts, "r"), "tokens": z3.Int("tokens")})

A path has a condition, the fields that it writes, and what it returns or raises; paths cover the
precondition and exclude each other, which is checked each time. `agree` holds them against the
function itself on concrete states. The order to read in: values, records, whitelist, executor.
"""

from .agree import Agreement, agree, agree_at, agree_on_arrays, witness
from .errors import (
    DisagreementError,
    ForbiddenSyntaxError,
    IncompletePathsError,
    NondeterministicError,
    OutsidePreconditionError,
    OverlappingPathsError,
    SymbolicError,
    TooManyPathsError,
    UndecidedError,
    UnexpectedExceptionError,
    UnknownFieldError,
    UnsatisfiableError,
    UnsupportedOperationError,
    Where,
)
from .executor import execute
from .paths import Decision, Evaluated, Path, PathSet
from .records import Record

__all__ = [
    "Agreement",
    "Decision",
    "DisagreementError",
    "Evaluated",
    "ForbiddenSyntaxError",
    "IncompletePathsError",
    "NondeterministicError",
    "OutsidePreconditionError",
    "OverlappingPathsError",
    "Path",
    "PathSet",
    "Record",
    "SymbolicError",
    "TooManyPathsError",
    "UndecidedError",
    "UnexpectedExceptionError",
    "UnknownFieldError",
    "UnsatisfiableError",
    "UnsupportedOperationError",
    "Where",
    "agree",
    "agree_at",
    "agree_on_arrays",
    "execute",
    "witness",
]
