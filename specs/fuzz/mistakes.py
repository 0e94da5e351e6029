"""A target that does not keep to the protocol: that is its author's mistake, and no finding.

What the engine does wrong in a call is a finding. Here is what no engine can bring about: a method
that is missing, an answer of the wrong type, a state that the declaration does not know.
"""

from __future__ import annotations

import inspect
import traceback

from ...statemachine import RequestState
from .operations import Operation, Outcome
from .target import ResetAnswer, Settings, Snapshot, Target


class TargetError(Exception):
    """The target's own mistake; the text names the method and says what would be right."""


def lacking(kind: type[Target]) -> str:
    """The required methods that a target does not have, as words; "" when it has them all."""
    names = sorted(getattr(kind, "__abstractmethods__", ()))
    if not names:
        return ""
    methods = "the method" if len(names) == 1 else "the methods"
    return f"{kind.__name__} lacks {methods} {', '.join(names)}: every target has them"


def made(kind: type[Target], settings: Settings) -> Target:
    """A fresh instance. Raises TargetError when there can be none."""
    if missing := lacking(kind):
        raise TargetError(missing)
    try:
        return kind(settings)
    except Exception as error:
        raise TargetError(f"{kind.__name__}({settings}) raised {_told(error)}") from error


def looked(target: Target, when: str) -> Snapshot:
    """The target's snapshot, as it must be. `when` goes on a sentence: "after step()".

    Raises TargetError when it is none, or names a state that there is not; and whatever
    `snapshot` itself raises.
    """
    now: object = target.snapshot()
    method = f"{type(target).__name__}.snapshot()"
    if not isinstance(now, Snapshot):
        raise TargetError(f"{method} {when} returned {now!r}; it returns a Snapshot")
    for request in now.requests:
        if request.state not in RequestState.__members__:
            known = ", ".join(RequestState.__members__)
            raise TargetError(
                f"{method} {when} shows request {request.id} in the state {request.state!r}, "
                f"which the declaration does not know; the states are {known}"
            )
    return now


def first_look(target: Target) -> Snapshot:
    """The snapshot of a fresh engine. Raises TargetError, also for what `snapshot` raises."""
    try:
        return looked(target, "of a fresh engine")
    except TargetError:
        raise
    except Exception as error:
        method = f"{type(target).__name__}.snapshot()"
        raise TargetError(f"{method} of a fresh engine raised {_told(error)}") from error


def check_answer(target: Target, operation: Operation, outcome: Outcome) -> None:
    """Raise TargetError when a call did not answer what the fuzzer relies on."""
    if outcome.rejected is not None:
        return
    method, answer = f"{type(target).__name__}.{operation.name}()", outcome.answer
    if operation.name == "step" and answer is None:
        raise TargetError(f"{method} returned None; it returns whether a step was launched")
    if operation.name == "reset" and not isinstance(answer, ResetAnswer):
        raise TargetError(f"{method} returned {answer!r}; it returns a ResetAnswer")


def check_supported(target: Target, error: Exception) -> None:
    """Raise TargetError when the protocol's own stub was called: a feature without its method."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    if isinstance(error, NotImplementedError) and frame.filename == inspect.getfile(Target):
        name = type(target).__name__
        raise TargetError(
            f"{name} has no method {frame.name}, and its `features` name what needs it"
        ) from error


def unreadable(target: Target, operation: Operation, error: Exception) -> TargetError:
    """The rules could not read the snapshot: something in it is of the wrong type."""
    return TargetError(
        f"{type(target).__name__}.snapshot() after {operation} cannot be compared with the rules: "
        f"{_told(error)}"
    )


def _told(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    file = frame.filename.replace("\\", "/").rpartition("/")[2]
    return f"{type(error).__name__}: {error} ({file}:{frame.lineno} in {frame.name})"
