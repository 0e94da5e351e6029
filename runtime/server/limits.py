"""How much work the server takes at once, in all and from one tenant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import RETRY_AFTER, ApiError, unavailable
from .security import Tenant
from .settings import ServerConfig


class Limits:
    """Counts of live requests, sessions and waiting calls. Used on the event loop only."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self.requests: Counter[str] = Counter()  # live, by tenant
        self.sessions: Counter[str] = Counter()
        self.queued = 0  # live and without a first token
        self.waiting_calls = 0

    @property
    def live(self) -> int:
        """Requests that are being served."""
        return self.requests.total()

    @contextmanager
    def requests_of(self, tenant: Tenant, count: int) -> Iterator[None]:
        """Count `count` requests while they are served. Raises ApiError 429 or 503."""
        config = self._config
        if self.live + count > config.max_requests:
            raise unavailable(f"the server serves {config.max_requests} requests at once")
        if self.queued + count > config.max_queued:
            raise unavailable(f"{self.queued} requests are queued already")
        if self.requests[tenant.name] + count > config.max_requests_per_key:
            raise _too_many(f"a key may have {config.max_requests_per_key} requests at once")
        self.requests[tenant.name] += count
        try:
            yield
        finally:
            self.requests[tenant.name] -= count
            self.requests += Counter()  # forget tenants that have none

    def open_session(self, tenant: Tenant) -> None:
        """Count one more session. Raises ApiError 429 or 503."""
        config = self._config
        if self.sessions.total() >= config.max_sessions:
            raise unavailable(f"the server keeps {config.max_sessions} sessions")
        if self.sessions[tenant.name] >= config.max_sessions_per_key:
            raise _too_many(f"a key may have {config.max_sessions_per_key} sessions")
        self.sessions[tenant.name] += 1

    def close_session(self, tenant: Tenant) -> None:
        """Count one session less."""
        self.sessions[tenant.name] -= 1
        self.sessions += Counter()

    @contextmanager
    def waiting_call(self) -> Iterator[None]:
        """Count an admin call while it waits. Raises ApiError 503."""
        if self.waiting_calls >= self._config.max_waiting_calls:
            raise unavailable(f"{self.waiting_calls} calls are waiting already")
        self.waiting_calls += 1
        try:
            yield
        finally:
            self.waiting_calls -= 1


def _too_many(message: str) -> ApiError:
    return ApiError(429, message, code="rate_limit_exceeded", retry_after=RETRY_AFTER)
