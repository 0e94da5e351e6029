"""Servers for tests: one of their own, or one that a module shares."""

from collections.abc import Iterator
from typing import Any

import pytest

from .serving import Served, Servers


@pytest.fixture
def serve() -> Iterator[Any]:
    """`serve(**options of ServerConfig, tick=seconds a token)` gives a `Served` of its own."""
    servers = Servers()
    yield servers.start
    servers.end()


@pytest.fixture
def serve_narrow() -> Iterator[Any]:
    """The same, with sockets that take little for a client that does not read."""
    servers = Servers(send_buffer=8192)
    yield servers.start
    servers.end()


@pytest.fixture(scope="module")
def _shared() -> Iterator[Served]:
    servers = Servers()
    yield servers.start(dev=True)
    servers.end()


@pytest.fixture
def served(_shared: Served) -> Served:
    """A server for development (no keys, admin routes open) that tests of a module share."""
    _shared.engine.start_afresh()
    return _shared
