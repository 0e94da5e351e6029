"""Shrinking: the fewest and plainest operations that still break the same rule the same way.

Operations are plain data and replay on a fresh engine, so this is delta debugging: leave out
ever smaller pieces, then make arguments and settings plainer, until nothing helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from .operations import Operation
from .run import Failure, replay
from .target import NewRequest, Settings

#: Replays that one failure may cost.
BUDGET = 1500


class Shrinker:
    """Shrinks one failure: what it finds has the same key."""

    def __init__(self, failure: Failure, replays: int = BUDGET) -> None:
        self.best = failure
        self.key = failure.key()
        self.budget = replays

    def shrink(self) -> Failure:
        """The smallest failure that was found."""
        before = None
        while before != self._size() and self.budget > 0:
            before = self._size()
            self._remove()
            self._simplify_operations()
            self._simplify_settings()
        self._rename()
        return self.best

    def _size(self) -> tuple[int, int, int]:
        operations = self.best.operations
        plain = sum(_weight(operation) for operation in operations)
        return len(operations), plain, _settings_weight(self.best.settings)

    def _try(self, operations: Sequence[Operation], settings: Settings | None = None) -> bool:
        if self.budget <= 0:
            return False
        self.budget -= 1
        try:
            failure = replay(self.best.target, settings or self.best.settings, operations)
        except Exception:  # the settings do not fit the engine
            return False
        if failure is None or failure.key() != self.key:
            return False
        before = self.best
        self.best = failure
        return failure.operations != before.operations or failure.settings != before.settings

    def _rename(self) -> None:
        """Number the requests in the order in which they come."""
        operations = self.best.operations
        added = [o.arguments[0].id for o in operations if o.name == "add"]
        names = {old: f"r{number}" for number, old in enumerate(added, 1)}
        self.budget = max(self.budget, 1)
        self._try([_renamed(operation, names) for operation in operations])

    def _remove(self) -> None:
        size = max(1, len(self.best.operations) // 2)
        while size:
            at = 0
            while at < len(self.best.operations):
                operations = self.best.operations
                rest = operations[:at] + operations[at + size :]
                if not (len(rest) < len(operations) and self._try(rest)):
                    at += size
            size //= 2

    def _simplify_operations(self) -> None:
        for at in range(len(self.best.operations)):
            again = True
            while again and at < len(self.best.operations):
                again = False
                operations = self.best.operations
                for plainer in _plainer(operations[at]):
                    changed = (*operations[:at], plainer, *operations[at + 1 :])
                    if self._try(changed):
                        again = True
                        break

    def _simplify_settings(self) -> None:
        again = True
        while again:
            again = False
            for settings in _plainer_settings(self.best.settings):
                if self._try(self.best.operations, settings):
                    again = True
                    break


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


def _weight(operation: Operation) -> int:
    weight: int = 0
    for argument in operation.arguments:
        if isinstance(argument, NewRequest):
            weight += len(argument.prompt) + sum(argument.prompt) + argument.max_tokens
            weight += 5 * bool(argument.session) + 5 * bool(argument.send)
            weight += argument.priority + argument.remote_tokens + bool(argument.stop_every) * 9
        elif isinstance(argument, tuple):
            weight += len(argument) + int(sum(argument))
        elif isinstance(argument, int):
            weight += int(argument)
    return int(weight)


def _settings_weight(settings: Settings) -> int:
    plain = Settings()
    names = ("priority", "depth", "connector", "fail_policy", "token_budget")
    other = sum(bool(getattr(settings, name) != getattr(plain, name)) for name in names)
    return settings.blocks + 100 * other


def _plainer(operation: Operation) -> Iterator[Operation]:
    """The operation with one argument made plainer, the boldest change first."""
    for i, argument in enumerate(operation.arguments):
        for plainer in _plainer_value(argument):
            arguments = (*operation.arguments[:i], plainer, *operation.arguments[i + 1 :])
            yield Operation(operation.name, arguments)


def _plainer_value(value: object) -> Iterator[object]:
    if isinstance(value, NewRequest):
        if value.session:
            yield replace(value, session=False)
        if value.send:
            yield replace(value, send=False)
        if value.priority:
            yield replace(value, priority=0)
        if value.remote_tokens:
            yield replace(value, remote_tokens=0)
        if value.stop_every:
            yield replace(value, stop_every=0)
        if value.max_tokens > 1:
            yield replace(value, max_tokens=1)
            yield replace(value, max_tokens=value.max_tokens - 1)
        counted = tuple(range(1, len(value.prompt) + 1))
        if value.prompt != counted:
            yield replace(value, prompt=counted)
        for prompt in _plainer_tokens(value.prompt):
            yield replace(value, prompt=prompt, remote_tokens=min(value.remote_tokens, len(prompt)))
    elif isinstance(value, tuple):
        yield from _plainer_tokens(value)
    elif value is True:
        yield False
    elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
        yield 1 if value > 1 else 0
        yield value - 1


def _plainer_tokens(tokens: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if len(tokens) > 1:
        yield tokens[: len(tokens) // 2]
        yield tokens[:-1]


def _plainer_settings(settings: Settings) -> Iterator[Settings]:
    plain = Settings()
    for name in (
        "priority",
        "connector",
        "fail_policy",
        "depth",
        "token_budget",
        "max_running",
        "tier_blocks",
        "max_length",
        "block_size",
    ):
        value = getattr(plain, name)
        room = settings.blocks * settings.block_size
        if name == "max_length":
            value = min(value, room)
        if name == "block_size" and settings.max_length > settings.blocks * value:
            continue
        if getattr(settings, name) != value:
            yield replace(settings, **{name: value})
    if settings.blocks > 2:
        fewer = settings.blocks - 1
        yield replace(
            settings,
            blocks=fewer,
            max_length=min(settings.max_length, fewer * settings.block_size),
        )
