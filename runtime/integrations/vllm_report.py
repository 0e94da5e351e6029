"""What the guard says: each kind of departure once in the log, every one in a metric.

A *departure* is a place where vLLM and the declaration disagree; a *repair* is one that the guard
put right. Strict mode raises on a departure that is not known to be harmless.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

logger = logging.getLogger("vllm.kvproof")

#: Rows of the declaration that vLLM departs from by design, and why no harm comes of it.
BY_DESIGN = {
    "its last step is not processed": "the device orders steps, and vLLM drops the old output",
}


class DepartureError(RuntimeError):
    """vLLM did what the declaration rules out, and `KVPROOF_GUARD=strict` asks to stop there."""


def _counter() -> Any:
    """A prometheus counter where prometheus_client is installed, else None."""
    try:
        from prometheus_client import REGISTRY
        from prometheus_client import Counter as PrometheusCounter
    except ImportError:
        return None
    name = "kvproof_guard_events"
    known = getattr(REGISTRY, "_names_to_collectors", {}).get(name)
    if known is not None:
        return known
    return PrometheusCounter(
        name, "Departures of vLLM from the declaration, and what was repaired", ["kind", "what"]
    )


class Report:
    """Collects what one scheduler's guard has seen; `counts` is keyed by (kind, what)."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.counts: Counter[tuple[str, str]] = Counter()
        self._metric = _counter()

    def departure(
        self, what: str, declared: str, did: str, request: str = "", answer: str = ""
    ) -> None:
        """Count a departure; log the first of its kind with both sides.

        Raises DepartureError in strict mode, unless vLLM departs by design and harmlessly.
        """
        harmless = BY_DESIGN.get(declared)
        kind = "by_design" if harmless else "departure"
        if self._count(kind, what):
            log = logger.info if harmless else logger.warning
            log(
                "kvproof guard: %s%s. The declaration says: %s. vLLM: %s.%s",
                what,
                f" ({request})" if request else "",
                f"{declared} ({answer})" if answer else declared,
                did,
                f" Harmless: {harmless}." if harmless else "",
            )
        if self.strict and not harmless:
            raise DepartureError(f"{what} ({request}): declared: {declared}; vLLM: {did}")

    def repair(self, what: str, request: str = "") -> None:
        """Count a repair; log the first of its kind."""
        if self._count("repair", what):
            logger.warning(
                "kvproof guard: repaired: %s%s", what, f" ({request})" if request else ""
            )

    def _count(self, kind: str, what: str) -> bool:
        """Whether this was the first of its kind."""
        self.counts[kind, what] += 1
        if self._metric is not None:
            self._metric.labels(kind=kind, what=what).inc()
        return self.counts[kind, what] == 1
