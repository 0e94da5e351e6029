"""What a server is started with: address, keys, limits."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass


class ServerConfigError(ValueError):
    """A combination of options that would not be safe or cannot work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Options of one server. Times are seconds, sizes bytes. Raises ServerConfigError."""

    model_name: str
    max_model_len: int
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()  # of /v1; none: anybody
    admin_api_key: str | None = None
    dev: bool = False  # admin routes without a key, on loopback only
    allowed_origins: tuple[str, ...] = ()  # besides the server's own
    # Work. A request beyond these is answered 429 (its key's share) or 503, with Retry-After.
    max_requests: int = 256  # live at once, those that wait included
    max_requests_per_key: int = 128
    max_queued: int = 128  # live and still without a first token
    max_sessions: int = 64
    max_sessions_per_key: int = 16
    max_prompts: int = 64  # in one call of /v1/completions
    max_waiting_calls: int = 32  # admin calls that wait, such as a reset with `wait`
    # Input.
    max_body: int = 4 << 20
    body_timeout: float = 30.0  # between two pieces of a body
    header_timeout: float = 15.0  # until a request's headers are complete
    write_timeout: float = 30.0  # for a client that does not read
    max_connections: int = 1024
    session_deadline: float = 300.0  # how long a session stays parked; shown to its client
    # The end.
    drain: bool = True  # SIGTERM lets running requests finish; False: aborts them
    drain_timeout: float = 30.0

    def __post_init__(self) -> None:
        if any(not key for key in (*self.api_keys, self.admin_api_key or "-")):
            raise ServerConfigError("an API key is empty")
        if self.dev and not is_loopback(self.host):
            raise ServerConfigError(
                f"--dev opens admin and debug routes without a key, so it needs a loopback "
                f"address, not {self.host}; use --admin-api-key, or --host 127.0.0.1"
            )
        for name in ("max_requests", "max_body", "max_connections", "max_prompts"):
            if getattr(self, name) < 1:
                raise ServerConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")

    @property
    def admin(self) -> bool:
        """Whether admin and debug routes exist at all."""
        return self.dev or self.admin_api_key is not None


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own."""
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
