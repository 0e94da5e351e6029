"""What a caller hands over by mistake is refused before anything is changed."""

from __future__ import annotations

from .api import EngineError


def required(
    error: type[EngineError], what: str, value: object, *kinds: type, none: bool = False
) -> None:
    """Raise `error`, in words, unless `value` is of one of `kinds` (or None, if `none`)."""
    if isinstance(value, kinds) or (none and value is None):
        return
    names = " or ".join([kind.__name__ for kind in kinds] + ["None"] * none)
    raise error(f"{what} is {value!r}, of type {type(value).__name__}: it must be {names}")
