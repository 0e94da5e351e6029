"""Who may call what: one ASGI layer in front of every route.

Keys are compared in constant time and never stored in a scope, a log or a metric: what travels
further is a tenant, named by a digest made with a secret of this process.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import ApiError
from .settings import ServerConfig, is_loopback

ADMIN_ROUTES = frozenset(
    {
        "/reset_prefix_cache",
        "/pause",
        "/resume",
        "/is_paused",
        "/sleep",
        "/wake_up",
        "/is_sleeping",
        "/abort_requests",
    }
)
TENANT_ROUTES = frozenset({"/tokenize", "/detokenize"})


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whose work something is. `name` is a digest, not a key; salts of two tenants differ."""

    name: str

    def salt(self, own: str | None = None) -> bytes:
        """The root of this tenant's cache keys; `own` is the client's `cache_salt`.

        Without keys and without a salt of its own everybody shares one cache.
        """
        if self.name == "" and own is None:
            return b""
        digest = hashlib.sha256(self.name.encode() + b"\0")
        digest.update(b"" if own is None else b"\1" + own.encode())
        return digest.digest()[:16]


ANYBODY = Tenant("")


class Keys:
    """The keys of /v1 and the admin key."""

    def __init__(self, config: ServerConfig) -> None:
        self._secret = secrets.token_bytes(32)
        self._tenants = [self._digest(key) for key in config.api_keys]
        self._admin = None if config.admin_api_key is None else self._digest(config.admin_api_key)
        self._dev = config.dev

    def tenant(self, presented: str | None) -> Tenant | None:
        """Who presented this key; None if the key is unknown."""
        if not self._tenants:
            return ANYBODY
        digest = self._digest(presented or "")
        # Every key is compared, so that time says nothing about which one was near.
        found = [hmac.compare_digest(digest, known) for known in self._tenants]
        return Tenant(digest.hex()) if any(found) and presented is not None else None

    def admin(self, presented: str | None) -> bool:
        """Whether admin and debug routes are open to whoever presented this key."""
        if self._admin is None:
            return self._dev
        return hmac.compare_digest(self._digest(presented or ""), self._admin)

    def _digest(self, key: str) -> bytes:
        # "surrogatepass": a header may hold any bytes, and a wrong key must not be a 500.
        return hmac.digest(self._secret, key.encode("utf-8", "surrogatepass"), "sha256")


class Guard:
    """ASGI layer: Host and Origin, then the key that a path needs."""

    def __init__(self, app: ASGIApp, config: ServerConfig, keys: Keys) -> None:
        self._app = app
        self._config = config
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on, or answer it with 401 or 403."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await refusal.response()(scope, receive, send)
        else:
            # Before it is accepted a WebSocket is refused with 403 by every ASGI server.
            await send({"type": "websocket.close", "code": 1008, "reason": refusal.message})

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        path = scope["path"]
        admin = is_admin(path)
        if self._config.dev and not is_loopback(_without_port(host)):
            # A name that someone else's DNS points at this machine must open nothing here.
            return ApiError(403, "with --dev the Host header must be a loopback name")
        if (admin or scope["type"] == "websocket") and not self._origin_allowed(origin, host):
            return ApiError(403, "this Origin is not allowed")
        presented = _bearer(headers.get(b"authorization"))
        if admin and self._config.admin:
            return None if self._keys.admin(presented) else _no_key("the admin API key")
        if path.startswith("/v1/") or path == "/v1" or path in TENANT_ROUTES:
            tenant = self._keys.tenant(presented)
            if tenant is None:
                return _no_key("an API key")
            scope.setdefault("state", {})["tenant"] = tenant
        return None

    def _origin_allowed(self, origin: str | None, host: str) -> bool:
        if origin is None:  # not a browser
            return True
        return origin in self._config.allowed_origins or urlsplit(origin).netloc == host


def is_admin(path: str) -> bool:
    """Whether a path belongs to the operator alone."""
    return path in ADMIN_ROUTES or path == "/debug" or path.startswith("/debug/")


def tenant_of(state: object) -> Tenant:
    """The tenant that the guard put into a request's or socket's state."""
    found = getattr(state, "tenant", ANYBODY)
    return found if isinstance(found, Tenant) else ANYBODY


def _no_key(what: str) -> ApiError:
    return ApiError(
        401, f"{what} is needed: send 'Authorization: Bearer KEY'", code="invalid_api_key"
    )


def _bearer(header: str | None) -> str | None:
    scheme, _, key = (header or "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else None


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host
