"""The stateful fuzzer: one protocol, one oracle, any engine.

What a target needs is imported here; `stateful_test` makes a test class of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .fake_kv import FakeKV, Row, Wrong
from .target import (
    EOS,
    BlockView,
    Feature,
    Hold,
    Misread,
    NewRequest,
    Promise,
    RejectedError,
    RequestView,
    ResetAnswer,
    Settings,
    Snapshot,
    Target,
    TierEntry,
    TransferView,
    next_token,
)

if TYPE_CHECKING:
    from .stateful import stateful_test

__all__ = [
    "EOS",
    "BlockView",
    "FakeKV",
    "Feature",
    "Hold",
    "Misread",
    "NewRequest",
    "Promise",
    "RejectedError",
    "RequestView",
    "ResetAnswer",
    "Row",
    "Settings",
    "Snapshot",
    "Target",
    "TierEntry",
    "TransferView",
    "Wrong",
    "next_token",
    "stateful_test",
]


def __getattr__(name: str) -> Any:
    """`stateful_test` needs Hypothesis, which a target and `kvproof fuzz` do not."""
    if name == "stateful_test":
        from .stateful import stateful_test

        return stateful_test
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
