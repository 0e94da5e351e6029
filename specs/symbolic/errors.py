"""What can go wrong when a function is run on symbols; each case has its own type.

None of these becomes a verdict: a caller that sees one has no list of paths.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Where:
    """A line of the source that was executed."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


class SymbolicError(Exception):
    """Any failure of symbolic execution."""


class ForbiddenSyntaxError(SymbolicError):
    """A function holds a construct that symbolic values cannot intercept, or may not.

    Raised before anything runs: the construct might otherwise take a branch unnoticed.
    """

    def __init__(self, where: Where, construct: str) -> None:
        super().__init__(f"{where}: {construct}")
        self.where = where
        self.construct = construct


class UnsupportedOperationError(SymbolicError):
    """A symbolic value was asked for something that has no exact symbolic answer."""


class UnknownFieldError(SymbolicError):
    """A record was read or written at a field that its facts do not declare."""


class UnexpectedExceptionError(SymbolicError):
    """The function raised an exception that none of its `raise` statements names."""


class UndecidedError(SymbolicError):
    """The solver gave up within its budget. Unknown is never a pass."""


class UnsatisfiableError(SymbolicError):
    """Nothing satisfies the precondition, so whatever followed would be vacuously true."""


class IncompletePathsError(SymbolicError):
    """Some state satisfies the precondition and no path condition."""


class OverlappingPathsError(SymbolicError):
    """Some state satisfies the precondition and two path conditions."""


class NondeterministicError(SymbolicError):
    """The same decisions led the function to another question, write or result."""


class TooManyPathsError(SymbolicError):
    """The function has more paths, or longer ones, than it was allowed."""


class OutsidePreconditionError(SymbolicError):
    """A concrete state was evaluated that the precondition excludes."""


class DisagreementError(SymbolicError):
    """The function and its symbolic paths differ on a concrete state."""
