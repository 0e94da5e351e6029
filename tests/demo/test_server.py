"""The demo's server process: started, ended, and never left behind."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from kvproof.specs.demo import server
from kvproof.specs.demo.client import DemoError

# A stand-in for `kvproof serve`: it says where it listens, and who it is.
STAND_IN = textwrap.dedent(
    """
    import os, signal, sys, time
    print(f"serving {os.getpid()} on http://127.0.0.1:1", flush=True)
    signal.pause()
    """
)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_the_server_ends_with_the_demo(monkeypatch):
    monkeypatch.setattr(server, "START", STAND_IN)
    with server.served("model", []) as api:
        assert api.url == "http://127.0.0.1:1"


def test_a_server_that_does_not_start_is_named_with_what_it_said(monkeypatch):
    monkeypatch.setattr(server, "START", "import sys; sys.exit('no such model')")
    with pytest.raises(DemoError, match=r"(?s)ended with 1.*no such model"), server.served("x", []):
        pass


def test_a_demo_that_is_terminated_leaves_no_server():
    program = f"""
        import kvproof.specs.demo.server as server
        server.START = {STAND_IN!r}
        popen = server.subprocess.Popen
        def telling(*given, **named):
            made = popen(*given, **named)
            print(made.pid, flush=True)
            return made
        server.subprocess.Popen = telling
        with server.served("model", []) as api:
            print("ready", flush=True)
            server.signal.pause()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path("/")) as demo:
        assert demo.stdout is not None
        pid = int(demo.stdout.readline())
        assert demo.stdout.readline() == "ready\n"
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(30) == 128 + signal.SIGTERM
    assert gone(pid)
