"""What a caller hands over by mistake is refused before anything is changed."""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from .api import EngineError, InvalidRequestError

#: What numbers can be given and are no tokens in an order.
_NO_LISTS = (str, bytes, bytearray, memoryview, Mapping, Set)
#: A column of the lifecycle holds numbers below it, and not below its negative.
_INT64 = 1 << 63


def required(
    error: type[EngineError], what: str, value: object, *kinds: type, none: bool = False
) -> None:
    """Raise `error`, in words, unless `value` is of one of `kinds` (or None, if `none`).

    True and False are no numbers.
    """
    if none and value is None:
        return
    if isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds):
        return
    names = " or ".join([kind.__name__ for kind in kinds] + ["None"] * none)
    raise error(f"{what} is {value!r}, of type {type(value).__name__}: it must be {names}")


def seconds(error: type[EngineError], what: str, value: float) -> float:
    """The seconds that a caller gives, 0 or more. Raises `error` for what is no such number."""
    required(error, what, value, int, float)
    try:
        number = float(value)
    except OverflowError:
        number = float("nan")  # an integer that no float holds
    if not number >= 0.0:  # also for NaN
        raise error(f"{what} is {value!r}: it must be 0 or more seconds")
    return number


def int64(error: type[EngineError], what: str, value: Any) -> int:
    """The integer that a caller gives. Raises `error` for what is none, or needs over 64 bits."""
    number: int = value
    if type(value) is not int:
        required(error, what, value, int, np.integer)
        number = int(value)
    if not -_INT64 <= number < _INT64:
        raise error(f"{what} is {number}: it must fit in 64 bits")
    return number


def token_ids(what: str, tokens: Any, vocabulary: int | None) -> npt.NDArray[np.int32]:
    """The tokens of a `what` as an int32 array of our own, [tokens].

    tokens: an array of integers or a sequence of them. Raises InvalidRequestError unless there is
    at least one, and each is 0 or more and below `vocabulary`, if it is given.
    """
    try:
        ids = _int32(tokens)
    except Exception as error:  # whatever the caller's own class raises
        raise InvalidRequestError(
            f"the {what} is no list of token ids: {in_words(error)}"
        ) from error
    if not ids.size:
        raise InvalidRequestError(f"the {what} is empty")
    # Read as unsigned, a negative one is the highest.
    if int(ids.view(np.uint32).max()) >= (vocabulary or 1 << 31):
        wrong = int(ids.min()) if ids.min() < 0 else int(ids.max())
        raise InvalidRequestError(f"the {what} has {wrong}, which is no token of the model")
    return ids


def _int32(tokens: Any) -> npt.NDArray[np.int32]:
    """The integers as int32. Raises whatever is wrong with them."""
    if isinstance(tokens, np.ndarray):
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise TypeError(f"it is {tokens.dtype} {list(tokens.shape)}, not integers [tokens]")
        ids = np.array(tokens, dtype=np.int32)
        if not np.array_equal(ids, tokens):
            raise OverflowError("an id needs more than 32 bits")
        return ids
    if isinstance(tokens, _NO_LISTS) or not hasattr(tokens, "__len__"):
        raise TypeError(f"it is of type {type(tokens).__name__}")
    # A fifth of the time of np.array, and a float or a string is an error.
    packed = np.frombuffer(struct.pack(f"{len(tokens)}i", *tokens), dtype=np.int32)
    # True and False are packed as 1 and 0: only those need be asked what they are.
    if packed.size and int(packed.min()) < 2:
        for place, token in enumerate(tokens):
            if isinstance(token, bool):
                raise TypeError(f"id {place} is {token!r}")
    return packed


def in_words(error: BaseException) -> str:
    """An error's text, also of one that has none: it may be a caller's or a device's own class."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}, which cannot be put into words"


def ends_the_program(error: BaseException) -> bool:
    """Whether what a caller's own code raised is the user's Ctrl-C, which nobody may keep.

    Python raises it in the main thread alone.
    """
    return isinstance(error, KeyboardInterrupt) and (
        threading.current_thread() is threading.main_thread()
    )
