"""Clients that leave, do not read, or never finish speaking: nothing of them stays."""

import contextlib
import json
import socket
import threading

import httpx
import pytest
from kvproof.runtime.api import FinishReason, RequestOutput, TokenLogprobs
from kvproof.runtime.server.stream import OutputStream, merged


def until(condition):
    pause = threading.Event()
    for _ in range(2000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never came")


def request_of(served, body, path="/v1/completions"):
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n"
    return head.encode() + b"Content-Type: application/json\r\n\r\n" + raw


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_client_that_leaves_has_its_requests_aborted(served, stream, path):
    served.engine.frozen.set()
    body = {"max_tokens": 400, "stream": stream}
    body |= (
        {"prompt": ["a", "b"]}
        if "chat" not in path
        else {"messages": [{"role": "user", "content": "a"}]}
    )
    with socket.create_connection(served.address) as line:
        line.sendall(request_of(served, body, path))
        until(lambda: served.engine.requests)
    until(lambda: not served.engine.requests)
    with served.client() as client:
        until(lambda: client.get("/load").json() == {"server_load": 0, "queued": 0})
        assert client.get("/debug/holds").json() == {"holds": []}
        assert 'status="500"' not in client.get("/metrics").text


def test_a_client_that_leaves_in_mid_stream_has_its_request_aborted(serve):
    served = serve(dev=True, tick=0.01)
    body = {"prompt": "a", "max_tokens": 500, "stream": True}
    with (
        served.client() as client,
        client.stream("POST", "/v1/completions", json=body) as answer,
    ):
        next(answer.iter_lines())
    until(lambda: not served.engine.requests)
    assert len(served.engine.aborted) == 1


def test_a_client_that_does_not_read_is_cut_off_and_its_request_aborted(serve_narrow):
    served = serve_narrow(dev=True, write_timeout=0.5, max_model_len=100_000)
    prompts = ["abc" * 10] * 8
    body = {"prompt": prompts, "max_tokens": 60_000, "stream": True, "logprobs": 2}
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(served.address)
        line.sendall(request_of(served, body))
        until(lambda: served.engine.requests)
        until(lambda: not served.engine.requests)
        assert len(served.engine.aborted) == 8


def test_a_header_that_never_ends_is_cut_off(serve):
    served = serve(header_timeout=0.3)
    lines = [socket.create_connection(served.address) for _ in range(200)]
    for line in lines:
        line.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
        line.settimeout(20)
    with served.client() as client:
        assert client.get("/health").status_code == 200  # others are served meanwhile
    for line in lines:
        with line:
            try:
                assert line.recv(10) == b""
            except ConnectionResetError:
                continue


def test_a_silent_connection_is_cut_off_also_after_an_answer(serve):
    served = serve(header_timeout=0.3)
    with socket.create_connection(served.address) as line:
        line.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        line.settimeout(20)
        answer = b""
        while b'"version"' not in answer:
            answer += line.recv(10_000)
        line.sendall(b"GET /version HT")
        with contextlib.suppress(ConnectionResetError):
            assert line.recv(10) == b""


@pytest.mark.anyio
async def test_outputs_that_are_not_taken_are_merged():
    stream = OutputStream()
    for token in range(1000):
        stream.put(RequestOutput("r", (token,), "x", logprobs=(TokenLogprobs(token, 0.0),)))
    stream.put(RequestOutput("r", (7,), "y", FinishReason.TURN))
    stream.put(RequestOutput("r", (8,), "z", turn=1))
    first, second = await stream.get(), await stream.get()
    assert first.tokens == (*range(1000), 7)
    assert first.text == "x" * 1000 + "y"
    assert first.finish_reason is FinishReason.TURN
    assert second.tokens == (8,)


def test_merging_keeps_the_newer_counters():
    one = RequestOutput("r", (1,), output_tokens=1)
    two = RequestOutput("r", (2,), output_tokens=2, finish_reason=FinishReason.STOP)
    both = merged(one, two)
    assert (both.tokens, both.output_tokens) == ((1, 2), 2)
    assert both.finish_reason is FinishReason.STOP


def test_a_hundred_clients_killed_at_random_leave_nothing(serve):
    served = serve(dev=True, tick=0.001, max_requests_per_key=200, max_requests=200)
    body = {"prompt": "abc", "max_tokens": 300, "stream": True}

    def client(number):
        with socket.create_connection(served.address) as line:
            line.sendall(request_of(served, body))
            for _ in range(number % 5):
                line.recv(100)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with served.client() as client:
        until(lambda: client.get("/load").json() == {"server_load": 0, "queued": 0})
        until(lambda: client.get("/debug/holds").json() == {"holds": []})
        assert client.get("/health").status_code == 200
        assert 'status="500"' not in client.get("/metrics").text
        answer = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
    assert isinstance(answer, httpx.Response)
    assert answer.status_code == 200
