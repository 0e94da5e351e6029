"""A server process on a fake device: `python -m tests.runtime.server.fake_server MODE TIMEOUT`.

MODE is drain or abort, or deaf: drain, and the device never answers a step.
"""

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import NoReturn

import typer
from kvproof.runtime.server.run import listen, serve
from kvproof.runtime.server.settings import ServerConfig

from .fake_device import fake_engine
from .texts import byte_tokenizer


def children() -> list[str]:
    """The ids of the child processes of this one that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(stat.parent.name)
    return found


def never(step: int, timeout: float | None = None) -> NoReturn:
    """A `collect` of a device that does not answer."""
    threading.Event().wait(timeout)
    raise TimeoutError


def main(mode: str, drain_timeout: str) -> None:
    tokenizer = byte_tokenizer()
    options = {"watchdog": 0.05} if mode == "deaf" else {}
    engine = fake_engine(
        tokenizer, token_seconds=0.005, load_delay=0.5, tier_bytes=1 << 20, **options
    )
    if mode == "deaf":
        engine.core.runner.collect = never  # type: ignore[method-assign]
    config = ServerConfig(
        model_name="fake",
        max_model_len=2048,
        port=0,
        dev=True,
        drain=mode != "abort",
        drain_timeout=float(drain_timeout),
    )
    listening = listen(config.host, config.port)
    serve(engine, tokenizer, config, listening, typer.echo)
    left = [one.name for one in threading.enumerate() if one is not threading.main_thread()]
    left += children()
    typer.echo(f"left: {left}")


if __name__ == "__main__":
    main(*sys.argv[1:])
