"""The real engine behind the server, on a fake device: what only the two together can show."""

import json
import socket
import threading

import httpx
import pytest
from websockets.sync.client import connect

from .fake_device import corruptions, expected, fake_engine
from .serving import Served, Servers
from .texts import byte_tokenizer

PROMPT = [(5 * at + 1) % 256 for at in range(100)]


@pytest.fixture
def real():
    """`real(**options of fake_engine)` gives a `Served`."""
    servers, made = Servers(), []

    def start(**options) -> Served:
        tokenizer = byte_tokenizer()
        made.append(fake_engine(tokenizer, **options))
        return servers.around(made[-1], tokenizer, dev=True, max_model_len=2048)

    yield start
    servers.end()
    for engine in made:
        assert corruptions(engine) == []


def until(look, what: str):
    pause = threading.Event()
    for _ in range(3000):
        if seen := look():
            return seen
        pause.wait(0.01)
    raise AssertionError(f"{what} never came")


def stored(served: Served, client: httpx.Client) -> None:
    """Put the prompt into the host tier, and off the device."""
    client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 1})
    until(lambda: client.get("/debug/holds").json()["holds"] == [], "an idle engine")
    assert client.post("/reset_prefix_cache").json()["success"]


def kinds(client: httpx.Client) -> set[str]:
    return {one["kind"] for one in client.get("/debug/holds").json()["holds"]}


def raw_request(body: dict) -> bytes:
    raw = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n"
    return head.encode() + b"Content-Type: application/json\r\n\r\n" + raw


def test_tokens_text_and_usage_are_the_engines(real):
    served = real()
    with served.client() as client:
        body = {"prompt": PROMPT, "max_tokens": 30, "return_token_ids": True}
        first = client.post("/v1/completions", json=body).json()
        again = client.post("/v1/completions", json=body).json()
    for answer in (first, again):
        assert answer["choices"][0]["token_ids"] == expected(PROMPT, 30)
        assert answer["choices"][0]["text"] == served.tokenizer.decode(expected(PROMPT, 30))
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 96  # whole blocks


def test_a_client_that_leaves_while_it_waits_for_its_load_leaves_nothing(real):
    served = real(tier_bytes=1 << 20, load_delay=0.3)
    with served.client() as client:
        stored(served, client)
        with socket.create_connection(served.address) as line:
            line.sendall(raw_request({"prompt": PROMPT, "max_tokens": 50}))
            until(lambda: "LOAD" in kinds(client), "a load")
        # The request is gone at once; its transfer keeps its blocks until it has ended.
        until(lambda: "REQUEST" not in kinds(client), "the end of the request")
        until(lambda: kinds(client) == set(), "the end of the load")
        stats = client.get("/debug/stats").json()
        assert stats["blocks_free"] == stats["blocks_total"]
        body = {"prompt": PROMPT, "max_tokens": 9, "return_token_ids": True}
        answer = client.post("/v1/completions", json=body).json()
        assert answer["choices"][0]["token_ids"] == expected(PROMPT, 9)


def test_a_reset_whose_client_left_holds_nobody_up(real):
    served = real(tier_bytes=1 << 20, load_delay=1.0)
    with served.client() as client:
        stored(served, client)
        answers = []
        asking = threading.Thread(
            target=lambda: answers.append(
                client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 3})
            )
        )
        asking.start()
        with served.client() as other:
            until(lambda: "LOAD" in kinds(other), "a load")
            with socket.create_connection(served.address) as line:
                line.sendall(
                    b"POST /reset_prefix_cache?reset_running_requests=true&wait=60 HTTP/1.1\r\n"
                    b"Host: localhost\r\nContent-Length: 0\r\n\r\n"
                )
            # While it is pending nothing that is not resident would be admitted.
            new = other.post("/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 2})
            assert new.status_code == 200
            assert "LOAD" in kinds(other)
        asking.join()
    assert answers[0].status_code == 200


def test_a_wait_of_a_reset_that_is_too_long_is_400_and_named(real):
    with real().client() as client:
        answer = client.post("/reset_prefix_cache?wait=60.5")
        assert client.post("/reset_prefix_cache?wait=60").json()["success"]
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "wait"
    assert "60 seconds" in answer.json()["error"]["message"]


def test_a_parked_session_ends_at_its_deadline_and_says_so(real):
    served = real(session_deadline=0.3)
    with connect(served.socket_url + "/v1/sessions") as line:
        line.send(json.dumps({"type": "open", "prompt": PROMPT, "max_tokens": 4}))
        while (event := json.loads(line.recv(timeout=20)))["type"] != "ended":
            pass
    assert event["finish_reason"] == "abort"
    with served.client() as client:
        assert kinds(client) == set()


def test_health_is_503_while_work_does_not_move_and_good_again_when_it_does(real):
    served = real(tier_bytes=1 << 20, load_delay=1.5, watchdog=0.2)
    with served.client() as client:
        stored(served, client)
        asking = threading.Thread(
            target=lambda: client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 3})
        )
        asking.start()
        with served.client() as other:
            bad = until(
                lambda: (answer := other.get("/health")).status_code == 503 and answer, "a 503"
            )
            assert bad.json()["error"]["code"] == "unhealthy"
            asking.join()
            until(lambda: other.get("/health").status_code == 200, "a 200")
            assert "kvproof:watchdog_trips_total 1.0" in other.get("/metrics").text


def test_pause_keeps_a_stream_and_resume_lets_it_go_on(real):
    served = real(token_seconds=0.002)
    body = {"prompt": PROMPT, "max_tokens": 200, "stream": True, "return_token_ids": True}
    tokens = []
    with (
        served.client() as client,
        served.client() as other,
        client.stream("POST", "/v1/completions", json=body) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        assert other.post("/pause?mode=keep").json()["status"] == "paused"
        before = other.get("/debug/stats").json()["generation_tokens"]
        assert other.get("/debug/stats").json()["generation_tokens"] == before < 200
        assert other.post("/resume").json()["status"] == "resumed"
    with served.client() as client:
        until(lambda: kinds(client) == set(), "the end of the stream that was left")
    with served.client() as client, client.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                tokens += json.loads(line[6:])["choices"][0]["token_ids"]
    assert tokens == expected(PROMPT, 200)


def test_sleep_is_refused_while_a_load_is_in_flight_and_changes_nothing(real):
    served = real(tier_bytes=1 << 20, load_delay=0.5)
    with served.client() as client:
        stored(served, client)
        answers = []
        body = {"prompt": PROMPT, "max_tokens": 20, "return_token_ids": True}
        asking = threading.Thread(
            target=lambda: answers.append(client.post("/v1/completions", json=body).json())
        )
        asking.start()
        with served.client() as other:
            until(lambda: "LOAD" in kinds(other), "a load")
            refused = other.post("/sleep?mode=keep")
            assert refused.status_code == 409
            assert "LOAD" in {one["kind"] for one in refused.json()["holders"]}
            assert other.get("/is_sleeping").json() == {"is_sleeping": False}
        asking.join()
    assert answers[0]["choices"][0]["token_ids"] == expected(PROMPT, 20)


def test_a_trace_of_the_server_conforms(real, tmp_path):
    from kvproof.specs.cli import main

    served = real(tier_bytes=1 << 20)
    path = tmp_path / "trace.jsonl"
    served.engine.trace(path)
    with served.client() as client:
        stored(served, client)
        client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 9})
        client.post("/reset_prefix_cache?reset_running_requests=true")
        until(lambda: kinds(client) == set(), "an idle engine")
    served.engine.trace(None)
    assert path.stat().st_size > 0
    assert main(["conform", str(path)]) == 0
