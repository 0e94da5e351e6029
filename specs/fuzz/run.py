"""One run: operations on a fresh engine until a rule breaks, or until they are used up."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .generation import Generator
from .operations import SKIPPED, Operation, Outcome, applicable, perform
from .oracle import PARKED, Oracle, Violation, holders_of
from .target import Promise, Settings, Snapshot, Target


@dataclass(frozen=True, slots=True)
class Failure:
    """A rule that broke, and how: the settings and the operations, the last of which broke it."""

    target: type[Target]
    settings: Settings
    operations: tuple[Operation, ...]
    violation: Violation
    place: str = ""  # for exceptions: file, line and function in the engine
    trace: str = ""

    def key(self) -> tuple[str, ...]:
        """What would have to be mended, as far as it can be told: one key, one finding."""
        last = self.operations[-1].name
        violation = self.violation
        if violation.rule == "no-exception":
            return (violation.rule, self.place, violation.detail)
        if violation.rule in STANDING:
            return (violation.rule, violation.detail)
        return (violation.rule, last, violation.detail)


#: Rules over the state, whichever operation it was that made it visible.
STANDING = frozenset({"hash-is-content", "hash-is-content-tier", "attended", "delivered"})


class Session:
    """An engine with its oracle: performs operations and checks every rule after each."""

    def __init__(self, target: type[Target], settings: Settings) -> None:
        self.kind = target
        self.target = target(settings)
        self.settings = settings
        self.oracle = Oracle(self.target)
        self.now: Snapshot = self.target.snapshot()
        self.done: list[Operation] = []

    def apply(self, operation: Operation) -> Failure | None:
        """Perform one operation; the failure that it brought, if any."""
        target, before = self.target, self.now
        if not applicable(target, before, self.oracle.clients, operation):
            return None
        self.done.append(operation)
        try:
            outcome = perform(target, operation)
            self.oracle.hear(operation, outcome)
            self.now = target.snapshot()
        except Exception as error:
            return self._escaped(operation, error, before)
        if operation.name == "drain":
            # The drain is itself many calls: only what it leaves is compared.
            before = self.now
        found = self.oracle.check(before, operation, outcome, self.now)
        return self._failure(found[0]) if found else None

    def _failure(self, violation: Violation, place: str = "", trace: str = "") -> Failure:
        return Failure(
            self.kind, self.settings, tuple(self.done), violation, place, trace
        )

    def _escaped(self, operation: Operation, error: Exception, before: Snapshot) -> Failure:
        place = engine_place(error)
        detail = type(error).__name__
        if operation.name in ("reset", "sleep", "pause"):
            detail += ": " + ",".join(sorted(self._holders_after(operation, before)))
        message = f"{operation} raised {type(error).__name__}: {str(error)[:200] or '(no text)'}"
        trace = "".join(traceback.format_exception(error))
        violation = Violation("no-exception", operation.name, message, "", detail)
        return self._failure(violation, place, trace)

    def _holders_after(self, operation: Operation, before: Snapshot) -> set[str]:
        try:
            return holders_of(self.target.snapshot())
        except Exception:
            return holders_of(before)


def engine_place(error: BaseException) -> str:
    """Where an exception was raised: the innermost frame outside kvproof's fuzzer."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if "/specs/fuzz/" not in frame.filename and "/kvproof/" not in frame.filename:
            parts = frame.filename.replace("\\", "/").split("/site-packages/")
            return f"{parts[-1]}:{frame.lineno} in {frame.name}"
    frame = frames[-1]
    return f"{frame.filename.rpartition('/')[2]}:{frame.lineno} in {frame.name}"


def replay(
    target: type[Target], settings: Settings, operations: Sequence[Operation]
) -> Failure | None:
    """Perform recorded operations on a fresh engine; those that make no sense are left out."""
    session = Session(target, settings)
    try:
        for operation in operations:
            failure = session.apply(operation)
            if failure is not None:
                return failure
        return None
    finally:
        session.target.close()


def explore(
    target: type[Target], generator: Generator, operations: int
) -> Iterator[tuple[int, Failure | None]]:
    """Perform drawn operations; yields after each how many were made, and the failure if any."""
    session = Session(target, generator.plan.settings)
    try:
        for count in range(1, operations + 1):
            operation = generator.next(session.target, session.now)
            failure = session.apply(operation)
            yield count, failure
            if failure is not None:
                return
        yield operations, session.apply(Operation("drain"))
    finally:
        session.target.close()
