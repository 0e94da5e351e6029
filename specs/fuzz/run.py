"""One run: operations on a fresh engine until a rule breaks, or until they are used up."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from .generation import Generator
from .mistakes import (
    TargetError,
    check_answer,
    check_supported,
    first_look,
    looked,
    made,
    unreadable,
)
from .operations import Operation, applicable, perform
from .oracle import Oracle, first_holder
from .rules import Violation
from .target import Settings, Snapshot, Target


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
STANDING = frozenset(
    {
        "hash-is-content",
        "hash-is-content-tier",
        "attended",
        "delivered",
        "own-tokens",
        "covered",
        "within-length",
        "one-container",
        "counters",
        "not-forgotten",
    }
)


class Session:
    """An engine with its oracle: performs operations and checks every rule after each.

    Raises TargetError, here and in `apply`, for a mistake that is the target's and not the
    engine's.
    """

    def __init__(self, target: type[Target], settings: Settings) -> None:
        self.kind = target
        self.target = made(target, settings)
        self.settings = settings
        self.oracle = Oracle(self.target)
        self.now: Snapshot = first_look(self.target)
        self.done: list[Operation] = []
        self.broken = False

    def apply(self, operation: Operation) -> Failure | None:
        """Perform one operation; the failure that it brought, if any."""
        target, before = self.target, self.now
        if not applicable(target, before, operation) or not self.oracle.may_send(operation):
            return None
        self.done.append(operation)
        try:
            outcome = perform(target, operation)
            check_answer(target, operation, outcome)
            self.oracle.hear(operation, outcome)
        except TargetError:
            self.broken = True
            raise
        except Exception as error:
            check_supported(target, error)
            return self._escaped(operation, error, before)
        try:
            self.now = looked(target, f"after {operation}")
        except TargetError:
            self.broken = True
            raise
        except Exception as error:  # what the engine has come to cannot even be looked at
            name, kind = operation.name, type(error).__name__
            trace = "".join(traceback.format_exception(error))
            message = f"after {operation} a look at the engine raised {kind}: {_short(error)}"
            # The assertion makes a written test look as well.
            violation = Violation("no-exception", name, message, "now is not None", kind)
            return self._failure(violation, engine_place(error), trace)
        if operation.name == "drain":
            # The drain is itself many calls: only what it leaves is compared.
            before = self.now
        try:
            found = self.oracle.check(before, operation, outcome, self.now)
        except Exception as error:
            self.broken = True
            raise unreadable(target, operation, error) from error
        return self._failure(found[0]) if found else None

    def _failure(self, violation: Violation, place: str = "", trace: str = "") -> Failure:
        self.broken = True
        return Failure(self.kind, self.settings, tuple(self.done), violation, place, trace)

    def _escaped(self, operation: Operation, error: Exception, before: Snapshot) -> Failure:
        place = engine_place(error)
        trace = "".join(traceback.format_exception(error))
        name, kind = operation.name, type(error).__name__
        message = f"{operation} raised {kind}: {_short(error)}"
        after = self._look() or before
        if name in ("pause", "sleep", "wake") and after.mode != before.mode:
            violation = Violation(
                "failed-call-changes-nothing",
                name,
                f"{message}, and the mode went from {before.mode} to {after.mode}",
                f"now.mode == {before.mode!r}",
            )
            return self._failure(violation, place, trace)
        detail = kind
        if "in reset_prefix_cache" in place:
            # What a reset trips over is what would have to be mended.
            detail += f" over {first_holder(after)}"
        return self._failure(Violation("no-exception", name, message, "", detail), place, trace)

    def _look(self) -> Snapshot | None:
        try:
            return self.target.snapshot()
        except Exception:
            return None


def _short(error: BaseException) -> str:
    text = str(error).partition("\n")[0]
    return (text if len(text) <= 90 else f"{text[:87].rstrip()}...") or "(no text)"


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
) -> tuple[tuple[Operation, ...], Failure | None]:
    """Perform drawn operations and then a drain, on a fresh engine, until a rule breaks.

    Returns the operations that were performed, and the failure if there was one.
    """
    session = Session(target, generator.plan.settings)
    try:
        for _ in range(operations):
            failure = session.apply(generator.next(session.target, session.now))
            if failure is not None:
                break
        else:
            failure = session.apply(Operation("drain"))
        return tuple(session.done), failure
    finally:
        session.target.close()
