"""Branch-free arithmetic that works on an int, on a numpy array and on a symbol.

The engine serves the steady decoding of hundreds of requests with one call of each; the events
use the very same functions, and the proofs show both equal.
"""

from __future__ import annotations

from typing import Any

# The argument is an int, an int64 array or a symbolic int; the result has the same shape.
Number = Any


def in_flight(newest_step: Number, processed: Number) -> Number:
    """Whether a launched step may still touch the request's blocks."""
    return newest_step > processed


def fresh_output(step: Number, stale_step: Number) -> Number:
    """Whether a step's output still counts for the request."""
    return step > stale_step


def capacity(covered: Number, block_size: Number) -> Number:
    """How many tokens the blocks hold."""
    return covered * block_size


def must_grow(computed: Number, scheduled: Number, covered: Number, block_size: Number) -> Number:
    """Whether the hold is too small for the tokens scheduled next."""
    return computed + scheduled > covered * block_size


def advance(tokens: Number, more: Number) -> Number:
    """A token counter after that many more."""
    return tokens + more


def length(prompt: Number, delivered: Number) -> Number:
    """Tokens of the sequence that are known."""
    return prompt + delivered


def turn_tokens(delivered: Number, turn_start: Number) -> Number:
    """Tokens delivered in the present turn, which max_tokens and min_tokens speak of."""
    return delivered - turn_start


def acquired(count: Number, times: Number) -> Number:
    """A block's count after that many more holds cover it."""
    return count + times


def released(count: Number, times: Number) -> Number:
    """A block's count after that many holds let it go."""
    return count - times
