"""Hostile clients by the hundred, again and again: the server's memory does not grow with them."""

import contextlib
import json
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from .test_disconnects import until

ROOT = Path(__file__).parents[3]
STATM = Path("/proc/self/statm")
ROUNDS = 6
MIB = 1 << 20
#: From the second round to the last one; the bodies of a single round are 60 MiB.
GROWTH = 40 * MIB


def resident(process: "subprocess.Popen[str]") -> int:
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * 4096


def posted(body: object) -> bytes:
    raw = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n"
    return head.encode() + b"Content-Type: application/json\r\n\r\n" + raw


def a_round(address: tuple[str, int], url: str) -> None:
    """Half-open connections, half bodies, bodies that are too large, readers that do not read."""
    with contextlib.ExitStack() as lines:
        for number in range(300):
            line = lines.enter_context(socket.create_connection(address))
            with contextlib.suppress(OSError):  # cut off already
                if number % 3 == 0:
                    line.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
                elif number % 3 == 1:
                    line.sendall(posted({"prompt": "a" * MIB})[: MIB // 2])
                else:
                    line.sendall(
                        posted({"prompt": "abc", "max_tokens": 500, "stream": True, "logprobs": 2})
                    )
        with httpx.Client(base_url=url, timeout=60) as client:
            for prompt in ("a" * (8 * MIB), "a" * MIB, "", "\ud800", [0] * 100_000):
                body = json.dumps({"prompt": prompt})
                headers = {"Content-Type": "application/json"}
                with contextlib.suppress(httpx.TransportError):  # cut off in mid body
                    answer = client.post("/v1/completions", content=body, headers=headers)
                    assert answer.status_code in (400, 413, 429, 503), answer.text
            assert client.get("/health").status_code == 200


#: A server of which every stream leaves a mebibyte behind.
LEAKS = """
import sys
from kvproof.runtime.server.stream import OutputStream
from tests.runtime.server.fake_server import main
made, left = OutputStream.__init__, []
def leave(self, *given):
    left.append(bytearray(b"x" * (1 << 20)))
    made(self, *given)
OutputStream.__init__ = leave
main(*sys.argv[1:])
"""


@pytest.mark.long
@pytest.mark.skipif(not STATM.exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize(
    ("program", "grows"),
    [(["-m", "tests.runtime.server.fake_server"], False), (["-c", LEAKS], True)],
    ids=["as it is", "with a leak"],
)
def test_memory_does_not_grow_with_hostile_clients(program: list[str], grows: bool) -> None:
    command = [sys.executable, *program, "abort", "10"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            host, _, port = url.removeprefix("http://").partition(":")
            sizes = []
            with httpx.Client(base_url=url, timeout=60) as client:
                for _ in range(ROUNDS):
                    a_round((host, int(port)), url)
                    until(lambda: client.get("/load").json() == {"server_load": 0, "queued": 0})
                    until(lambda: client.get("/debug/holds").json() == {"holds": []})
                    sizes.append(resident(process))
        finally:
            process.kill()
    # The first rounds fill what is kept for reuse: pools, caches, the allocator's arenas.
    assert (sizes[-1] - sizes[1] >= GROWTH) == grows, [size // MIB for size in sizes]
