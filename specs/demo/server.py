"""The served model in a process of its own, as `kvproof serve` starts it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import IO

from .client import Api, DemoError

START = "import sys; from kvproof.specs.cli import main; sys.exit(main(sys.argv[1:]))"


@contextlib.contextmanager
def served(model: str, options: list[str]) -> Iterator[Api]:
    """Start the server, and end it by SIGTERM. Raises DemoError with what it said."""
    command = [sys.executable, "-c", START, "serve", model, "--host", "127.0.0.1", "--port", "0"]
    with tempfile.TemporaryFile("w+") as said, _terminated_in_order():
        process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=said, text=True
        )
        try:
            yield Api(_url(process, said))
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise DemoError("the server did not end on SIGTERM") from None
            finally:
                assert process.stdout is not None
                process.stdout.close()


@contextlib.contextmanager
def _terminated_in_order() -> Iterator[None]:
    """SIGTERM ends this process by way of its `finally`s: the server must not outlive it."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _url(process: subprocess.Popen[str], said: IO[str]) -> str:
    """The address, from the line that the server prints when it answers."""
    assert process.stdout is not None
    for line in process.stdout:
        for word in line.split():
            if word.startswith("http://"):
                return word
    process.wait()
    said.seek(0)
    raise DemoError(f"kvproof serve ended with {process.returncode}:\n{said.read()[-2000:]}")
