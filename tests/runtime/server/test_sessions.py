"""Streaming-input sessions over a WebSocket, with sockets that come and go."""

import json

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from .stub import continuation


def opening(prompt="hello", **fields):
    return {"type": "open", "prompt": prompt, "max_tokens": 5, "return_token_ids": True} | fields


def say(socket, message):
    socket.send(json.dumps(message) if isinstance(message, dict) else message)


def until(socket, kind):
    events = []
    while not events or events[-1]["type"] != kind:
        events.append(json.loads(socket.recv(timeout=20)))
    return events


def tokens_of(events):
    return [token for event in events for token in event.get("token_ids", ())]


@pytest.fixture
def line(served):
    def open_socket():
        return connect(served.socket_url + "/v1/sessions")

    return open_socket


def test_turns_answer_chunks_and_close_ends_the_session(served, line):
    encode = served.tokenizer.encode
    with line() as socket:
        say(socket, opening())
        first = until(socket, "turn")
        say(socket, {"type": "chunk", "prompt": " more", "max_tokens": 3})
        second = until(socket, "turn")
        say(socket, {"type": "close"})
        last = until(socket, "ended")
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=5)
        assert socket.close_code == 1000
    assert first[0]["type"] == "opened"
    prompt = encode("hello").tolist()
    expected = continuation(served.tokenizer, prompt, 5)
    assert tokens_of(first) == expected
    assert tokens_of(second) == continuation(
        served.tokenizer, prompt + expected + encode(" more").tolist(), 3
    )
    text = "".join(event.get("text", "") for event in first)
    assert text == served.tokenizer.decode(expected)
    assert first[-1]["finish_reason"] == "length"
    assert second[-1]["usage"]["completion_tokens"] == 8
    assert last[-1]["finish_reason"] == "stop"
    numbers = [event["seq"] for event in first + second + last]
    assert numbers == list(range(len(numbers)))


def test_a_dropped_socket_parks_the_session_and_it_is_taken_up_where_it_was(served, line):
    with line() as socket:
        say(socket, opening())
        events = until(socket, "turn")
    name, seen = events[0]["session"], events[1]["seq"]  # as if all after it had been lost
    with line() as socket:
        say(socket, {"type": "resume", "session": name, "after": seen})
        again = until(socket, "turn")
        assert again == events[seen + 1 :]
        say(socket, {"type": "chunk", "prompt": "x"})
        assert until(socket, "turn")[-1]["turn"] == 1
    assert len(served.engine.requests) == 1
    assert served.engine.aborted == []


def test_what_comes_while_nobody_listens_is_kept(served, line):
    served.engine.frozen.set()
    with line() as socket:
        say(socket, opening(max_tokens=20))
        name = until(socket, "opened")[0]["session"]
    served.engine.frozen.clear()
    with line() as socket:
        say(socket, {"type": "resume", "session": name})
        events = until(socket, "turn")
    assert len(tokens_of(events)) == 20


def test_a_second_socket_takes_the_session_over(line):
    with line() as socket, line() as other:
        say(socket, opening())
        name = until(socket, "turn")[0]["session"]
        say(other, {"type": "resume", "session": name})
        until(other, "turn")
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=5)
        assert socket.close_code == 4001
        say(other, {"type": "chunk", "prompt": "x"})
        assert until(other, "turn")[-1]["turn"] == 1


def test_an_ended_session_can_still_be_read(line):
    with line() as socket:
        say(socket, opening())
        name = until(socket, "turn")[0]["session"]
        say(socket, {"type": "abort"})
        assert until(socket, "ended")[-1]["finish_reason"] == "abort"
    with line() as socket:
        say(socket, {"type": "resume", "session": name})
        assert until(socket, "ended")[-1]["finish_reason"] == "abort"


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("{", "invalid_request_error"),
        ("[]", "invalid_request_error"),
        ('"open"', "invalid_request_error"),
        ({"type": "dance"}, "invalid_request_error"),
        ({"type": "open"}, "invalid_request_error"),
        (opening(prompt=""), "invalid_request_error"),
        (opening(prompt=[99999]), "invalid_request_error"),
        (opening(n=2), "invalid_request_error"),
        (opening(model="other"), "not_found_error"),
        ({"type": "resume", "session": "nobody"}, "not_found_error"),
        (b"\xff\xff", "invalid_request_error"),
    ],
)
def test_a_wrong_opening_is_an_error_event_and_a_closed_socket(served, line, message, status):
    with line() as socket:
        say(socket, message)
        (event,) = until(socket, "error")
        assert event["error"]["type"] == status
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=5)
        assert socket.close_code == 1008
    assert served.engine.requests == {}


@pytest.mark.parametrize(
    "message",
    [
        "{",
        {"type": "open", "prompt": "again"},
        {"type": "chunk"},
        {"type": "chunk", "prompt": ""},
        {"type": "chunk", "prompt": "x", "temperature": -1},
        {"type": "chunk", "prompt": "x", "logit_bias": {"1": 1}},
        {"type": "resume", "session": "x"},
    ],
)
def test_a_wrong_message_changes_nothing_and_leaves_the_socket_open(line, message):
    with line() as socket:
        say(socket, opening())
        until(socket, "turn")
        say(socket, message)
        assert "message" in until(socket, "error")[-1]["error"]
        say(socket, {"type": "chunk", "prompt": "x"})
        assert until(socket, "turn")[-1]["turn"] == 1


def test_a_chunk_after_close_is_refused_by_the_engines_own_words(served, line):
    served.engine.frozen.set()
    with line() as socket:
        say(socket, opening())
        until(socket, "opened")
        say(socket, {"type": "close"})
        say(socket, {"type": "chunk", "prompt": "x"})
        error = until(socket, "error")[-1]["error"]
        served.engine.frozen.clear()
        assert error["type"] == "conflict_error"
        assert "closed" in error["message"]
        assert until(socket, "ended")[-1]["finish_reason"] == "length"


def test_sessions_of_a_key_are_limited_and_a_foreign_one_is_unknown(serve):
    served = serve(api_keys=("a", "b"), max_sessions_per_key=2)

    def connected(key):
        return connect(
            served.socket_url + "/v1/sessions",
            additional_headers={"Authorization": f"Bearer {key}"},
        )

    names = []
    for _ in range(2):
        with connected("a") as socket:
            say(socket, opening())
            names.append(until(socket, "turn")[0]["session"])
    with connected("a") as socket:
        say(socket, opening())
        assert until(socket, "error")[0]["error"]["type"] == "rate_limit_error"
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=5)
        assert socket.close_code == 1013
    with connected("b") as socket:
        say(socket, {"type": "resume", "session": names[0]})
        assert until(socket, "error")[0]["error"]["code"] == "unknown_session"
    with connected("a") as socket:
        say(socket, {"type": "resume", "session": names[0]})
        until(socket, "turn")
        say(socket, {"type": "close"})
        until(socket, "ended")
    with connected("a") as socket:
        say(socket, opening())
        until(socket, "turn")


def test_abort_of_everything_ends_sessions_too(served, line):
    with line() as socket:
        say(socket, opening())
        until(socket, "turn")
        with served.client() as client:
            assert client.post("/abort_requests").json()["aborted"] == 1
        assert until(socket, "ended")[-1]["finish_reason"] == "abort"
