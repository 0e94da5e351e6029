"""Shrinking: the fewest and plainest operations that still break the same rule the same way.

Hypothesis does it. What it chooses from are the ways to make the failure plainer: first which
operations to leave out, then smaller arguments and plain settings, and so on until nothing helps.
It starts from the failure as it was met, because those choices are what its database gives it.
"""

from __future__ import annotations

import unittest
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import compress
from typing import Protocol

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, given, seed
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase, choices_to_bytes

from .operations import Operation
from .run import Failure, replay
from .target import NewRequest, Settings

#: Replays that one failure may cost.
BUDGET = 1500

#: Settings that go back to their default where the failure does not need them.
PLAIN = (
    "priority",
    "connector",
    "fail_policy",
    "depth",
    "token_budget",
    "max_running",
    "tier_blocks",
    "max_length",
    "block_size",
)

#: Flags in a group, or groups in one that is larger.
FANOUT = 4

#: Flags in groups of groups.
Nested = bool | tuple["Nested", ...]

#: A run as it is replayed.
Run = tuple[Settings, tuple[Operation, ...]]


class Shrinker:
    """Shrinks one failure: what it finds has the same key. Replays at most so many runs."""

    def __init__(self, failure: Failure, replays: int = BUDGET) -> None:
        self.best = failure
        self.key = failure.key()
        self.budget = replays
        self._seen: dict[Run, Failure | None] = {}

    def shrink(self) -> Failure:
        """The smallest failure that was found. The same failure shrinks the same way each time."""
        before = None
        while before != self.best and self.budget > 0:
            before = self.best
            self._search(*_fewer(before))
            self._search(*_plainer(self.best))
        self._rename()
        return self.best

    def _search(self, runs: st.SearchStrategy[Run], start: Sequence[bool | int]) -> None:
        """Let Hypothesis look for a smaller run; the choices to start from make the best so far."""
        self._seen[self.best.settings, self.best.operations] = self.best

        @hypothesis.settings(
            database=_Start(start),
            phases=(Phase.reuse, Phase.shrink),
            deadline=None,
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
            report_multiple_bugs=False,
        )
        @seed(0)
        @given(runs)
        def does_not_fail(run: Run) -> None:
            failure = self._fails_alike(run)
            if failure is not None:
                if len(failure.operations) <= len(self.best.operations):
                    self.best = failure
                raise _StillFailsError

        try:
            does_not_fail()
        except (_StillFailsError, _Spent):
            return  # the last run that Hypothesis tries is the smallest
        except unittest.SkipTest as error:
            raise RuntimeError("Hypothesis reads no database under --hypothesis-seed") from error
        raise AssertionError("Hypothesis did not start from the failure")

    def _fails_alike(self, run: Run) -> Failure | None:
        """The failure of a run when it is the one that is shrunk."""
        if run not in self._seen:
            if self.budget <= 0:
                raise _Spent
            self.budget -= 1
            try:
                failure = replay(self.best.target, *run)
            except Exception:  # the settings do not fit the engine
                failure = None
            self._seen[run] = failure if failure and failure.key() == self.key else None
        return self._seen[run]

    def _rename(self) -> None:
        """Number the requests in the order in which they come."""
        operations = self.best.operations
        added = [o.arguments[0].id for o in operations if o.name == "add"]
        names = {old: f"r{number}" for number, old in enumerate(added, 1)}
        self.budget = max(self.budget, 1)
        renamed = tuple(_renamed(operation, names) for operation in operations)
        self.best = self._fails_alike((self.best.settings, renamed)) or self.best


def _renamed(operation: Operation, names: dict[str, str]) -> Operation:
    """The operation with its request's name, and that in a transfer's id, replaced."""
    arguments: list[object] = []
    for argument in operation.arguments:
        if isinstance(argument, NewRequest):
            argument = replace(argument, id=names[argument.id])
        elif isinstance(argument, str):
            kind, slash, rest = argument.partition("/")
            request, _, ordinal = rest.partition("/")
            if slash:
                argument = f"{kind}/{names.get(request, request)}/{ordinal}"
            else:
                argument = names.get(argument, argument)
        arguments.append(argument)
    return Operation(operation.name, tuple(arguments))


class _StillFailsError(Exception):
    """The run fails as the first one did."""


class _Spent(BaseException):
    """No replay is left. Not an Exception: Hypothesis would take that for another way to fail."""


class _Start(ExampleDatabase):
    """Gives Hypothesis the choices to start from, and stores nothing."""

    def __init__(self, choices: Iterable[bool | int]) -> None:
        # One too many: an example that fits exactly is taken to be shrunk already.
        self._example = choices_to_bytes([*choices, False])

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return [self._example]

    def save(self, key: bytes, value: bytes) -> None:
        pass

    def delete(self, key: bytes, value: bytes) -> None:
        pass


class _Choices(Protocol):
    """What is kept of a failure. Simpler, for Hypothesis, is what keeps less."""

    def keep(self, there: bool) -> bool:
        """Whether something stays; what is not there is not asked for."""

    def up_to(self, value: int) -> int:
        """An int from 0 to the value."""


class _Recorded:
    """Keeps all, and notes the choices."""

    def __init__(self) -> None:
        self.choices: list[bool | int] = []

    def keep(self, there: bool) -> bool:
        if there:
            self.choices.append(True)
        return there

    def up_to(self, value: int) -> int:
        if value:
            self.choices.append(value)
        return value


class _Drawn:
    """Hypothesis chooses."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def keep(self, there: bool) -> bool:
        return there and self._draw(st.booleans())

    def up_to(self, value: int) -> int:
        return self._draw(st.integers(0, value)) if value else 0


def _fewer(start: Failure) -> tuple[st.SearchStrategy[Run], Sequence[bool | int]]:
    """Runs with some of the operations, and the choices that keep them all."""
    operations = start.operations

    def run(kept: Nested) -> Run:
        return start.settings, tuple(compress(operations, _flat(kept)))

    return _flags(len(operations)).map(run), [True] * len(operations)


def _flags(number: int) -> st.SearchStrategy[Nested]:
    """So many flags, in groups of groups: Hypothesis also tries a whole group at its simplest."""
    if number == 1:
        return st.booleans()
    parts = min(number, FANOUT)
    return st.tuples(*(_flags((number + part) // parts) for part in range(parts)))


def _flat(kept: Nested) -> Iterator[bool]:
    if isinstance(kept, bool):
        yield kept
    else:
        for part in kept:
            yield from _flat(part)


def _plainer(start: Failure) -> tuple[st.SearchStrategy[Run], Sequence[bool | int]]:
    """Runs of the same operations with smaller arguments, and the choices that keep them."""
    recorded = _Recorded()
    _simplified(start, recorded)
    return _simpler_runs(start), recorded.choices


@st.composite
def _simpler_runs(draw: st.DrawFn, start: Failure) -> Run:
    return _simplified(start, _Drawn(draw))


def _simplified(start: Failure, choices: _Choices) -> Run:
    operations = tuple(
        Operation(operation.name, tuple(_value(value, choices) for value in operation.arguments))
        for operation in start.operations
    )
    return _settings(start.settings, choices), operations


def _value(value: object, choices: _Choices) -> object:
    """An argument of an operation, or a plainer one."""
    if isinstance(value, NewRequest):
        prompt = _tokens(value.prompt, choices)
        return replace(
            value,
            prompt=prompt,
            max_tokens=1 + choices.up_to(value.max_tokens - 1),
            session=choices.keep(value.session),
            send=choices.keep(value.send),
            priority=choices.up_to(value.priority),
            remote_tokens=min(value.remote_tokens, len(prompt))
            if choices.keep(value.remote_tokens > 0)
            else 0,
            stop_every=value.stop_every if choices.keep(value.stop_every > 0) else 0,
        )
    if isinstance(value, tuple):
        return _tokens(value, choices)
    if isinstance(value, bool):
        return choices.keep(value)
    return choices.up_to(value) if isinstance(value, int) else value


def _tokens(tokens: tuple[int, ...], choices: _Choices) -> tuple[int, ...]:
    length = 1 + choices.up_to(len(tokens) - 1)
    counted = tuple(range(1, len(tokens) + 1))
    return (tokens if choices.keep(tokens != counted) else counted)[:length]


def _settings(settings: Settings, choices: _Choices) -> Settings:
    """The settings, with some at their default and perhaps fewer blocks."""
    plain = Settings()
    chosen = {
        name: value if choices.keep(value != getattr(plain, name)) else getattr(plain, name)
        for name, value in ((name, getattr(settings, name)) for name in PLAIN)
    }
    blocks = 2 + choices.up_to(settings.blocks - 2)
    chosen["max_length"] = min(chosen["max_length"], blocks * chosen["block_size"])
    return replace(settings, blocks=blocks, **chosen)
