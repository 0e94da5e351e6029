"""SIGTERM: what runs ends or is aborted, transfers in flight included, and nothing stays."""

import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from kvproof.specs import cli
from kvproof.specs.cli import exits
from websockets.sync.client import connect

from .fake_device import expected

ROOT = Path(__file__).parents[3]
PROMPT = [(7 * at) % 256 for at in range(200)]


@pytest.fixture
def process():
    """`process(mode, drain_timeout)` gives a server process and its URL."""
    running = []

    def start(mode: str, drain_timeout: float = 30.0):
        command = [sys.executable, "-m", "tests.runtime.server.fake_server"]
        made = subprocess.Popen(
            [*command, mode, str(drain_timeout)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        running.append(made)
        return made, made.stdout.readline().split()[-1]

    yield start
    for made in running:
        made.kill()
        made.wait()
        made.stdout.close()


class Reader(threading.Thread):
    """Reads a stream to its end."""

    def __init__(self, url: str, tokens: int, begun: threading.Event) -> None:
        super().__init__()
        self.url, self.asked, self.begun = url, tokens, begun
        self.tokens: list[int] = []
        self.reason = None
        self.start()

    def run(self):
        body = {
            "prompt": PROMPT,
            "max_tokens": self.asked,
            "stream": True,
            "return_token_ids": True,
        }
        with httpx.stream("POST", self.url + "/v1/completions", json=body, timeout=60) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    choice = json.loads(line[6:])["choices"][0]
                    self.tokens += choice["token_ids"]
                    self.reason = choice["finish_reason"]
                    self.begun.set()


def ended(made) -> str:
    assert made.wait(30) == 0
    return made.stdout.read()


def test_drain_lets_streams_end_and_answers_new_work_with_503(process):
    made, url = process("drain")
    begun = threading.Event()
    reader = Reader(url, 200, begun)
    assert begun.wait(30)
    made.send_signal(signal.SIGTERM)
    statuses = set()
    with httpx.Client(base_url=url) as client:
        while 503 not in statuses:
            answer = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
            statuses.add(answer.status_code)
    assert answer.headers["Retry-After"]
    reader.join()
    assert reader.reason == "length"
    assert reader.tokens == expected(PROMPT, 200)
    told = ended(made)
    assert "stopping once the live requests (1) have ended, after 30 s at the latest" in told
    assert told.endswith("left: []\n")


def test_abort_ends_streams_at_once_with_reason_abort(process):
    made, url = process("abort")
    begun = threading.Event()
    reader = Reader(url, 1500, begun)
    assert begun.wait(30)
    made.send_signal(signal.SIGTERM)
    reader.join()
    assert reader.reason == "abort"
    assert reader.tokens == expected(PROMPT, len(reader.tokens))
    assert ended(made).endswith("left: []\n")


def test_a_second_signal_does_not_wait(process):
    made, url = process("drain", 300.0)
    begun = threading.Event()
    reader = Reader(url, 1800, begun)
    assert begun.wait(30)
    made.send_signal(signal.SIGTERM)
    with httpx.Client(base_url=url) as client:
        while client.get("/health").status_code != 503:
            pass
    made.send_signal(signal.SIGTERM)
    reader.join()
    assert reader.reason == "abort"
    assert ended(made).endswith("left: []\n")


@pytest.mark.parametrize("mode", ["drain", "abort"])
def test_a_load_in_flight_and_a_parked_session_do_not_keep_it(process, mode):
    made, url = process(mode)
    with httpx.Client(base_url=url, timeout=30) as client:
        client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 1})
        while client.get("/debug/holds").json()["holds"]:
            pass
        assert client.post("/reset_prefix_cache").json()["success"]
    with connect(url.replace("http", "ws", 1) + "/v1/sessions") as line:
        line.send(json.dumps({"type": "open", "prompt": "abc", "max_tokens": 2}))
        while json.loads(line.recv())["type"] != "turn":
            pass
        begun = threading.Event()
        reader = Reader(url, 5, begun)
        with httpx.Client(base_url=url) as client:
            kinds: set[str] = set()
            while "LOAD" not in kinds:
                kinds = {one["kind"] for one in client.get("/debug/holds").json()["holds"]}
        made.send_signal(signal.SIGTERM)
        last = json.loads(line.recv())
        assert last["type"] == "ended"
    reader.join()
    assert reader.reason == ("length" if mode == "drain" else "abort")
    assert ended(made).endswith("left: []\n")


def test_a_device_that_never_answers_does_not_keep_it(process):
    made, url = process("deaf", 0.0)
    reader = Reader(url, 5, threading.Event())
    with httpx.Client(base_url=url) as client:
        while not client.get("/debug/holds").json()["holds"]:
            pass
    made.send_signal(signal.SIGTERM)
    reader.join()
    assert reader.reason == "abort"
    assert "stopping" in ended(made), "at the first signal"


def test_ctrl_c_is_the_same_as_sigterm(process):
    made, _ = process("drain")
    made.send_signal(signal.SIGINT)
    assert ended(made) == "stopping\nleft: []\n"


def test_an_address_that_is_taken_is_said_before_a_model_is_loaded(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert cli.main(["serve", "no-model-of-this-name", "--port", port]) == exits.FAILED
    assert f"127.0.0.1:{port}: Address already in use" in capsys.readouterr().err
