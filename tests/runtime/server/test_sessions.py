"""Streaming-input sessions over a WebSocket, with sockets that come and go."""

import json
import socket
import threading

import pytest
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State
from websockets.sync.client import connect
from websockets.uri import parse_uri

from .stub import continuation


def opening(prompt="hello", **fields):
    return {"type": "open", "prompt": prompt, "max_tokens": 5, "return_token_ids": True} | fields


def say(one, message):
    one.send(json.dumps(message) if isinstance(message, dict) else message)


def until(one, kind):
    events = []
    while not events or events[-1]["type"] != kind:
        events.append(json.loads(one.recv(timeout=20)))
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
    with line() as one:
        say(one, opening())
        first = until(one, "turn")
        say(one, {"type": "chunk", "prompt": " more", "max_tokens": 3})
        second = until(one, "turn")
        say(one, {"type": "close"})
        last = until(one, "ended")
        with pytest.raises(ConnectionClosed):
            one.recv(timeout=5)
        assert one.close_code == 1000
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
    with line() as one:
        say(one, opening())
        events = until(one, "turn")
    name, seen = events[0]["session"], events[1]["seq"]  # as if all after it had been lost
    with line() as one:
        say(one, {"type": "resume", "session": name, "after": seen})
        again = until(one, "turn")
        assert again == events[seen + 1 :]
        say(one, {"type": "chunk", "prompt": "x"})
        assert until(one, "turn")[-1]["turn"] == 1
    assert len(served.engine.requests) == 1
    assert served.engine.aborted == []


def test_what_comes_while_nobody_listens_is_kept(served, line):
    served.engine.frozen.set()
    with line() as one:
        say(one, opening(max_tokens=20))
        name = until(one, "opened")[0]["session"]
    served.engine.frozen.clear()
    with line() as one:
        say(one, {"type": "resume", "session": name})
        events = until(one, "turn")
    assert len(tokens_of(events)) == 20


def test_a_second_socket_takes_the_session_over(line):
    with line() as one, line() as other:
        say(one, opening())
        name = until(one, "turn")[0]["session"]
        say(other, {"type": "resume", "session": name})
        until(other, "turn")
        with pytest.raises(ConnectionClosed):
            one.recv(timeout=5)
        assert one.close_code == 4001
        say(other, {"type": "chunk", "prompt": "x"})
        assert until(other, "turn")[-1]["turn"] == 1


def test_an_ended_session_can_still_be_read(line):
    with line() as one:
        say(one, opening())
        name = until(one, "turn")[0]["session"]
        say(one, {"type": "abort"})
        assert until(one, "ended")[-1]["finish_reason"] == "abort"
    with line() as one:
        say(one, {"type": "resume", "session": name})
        assert until(one, "ended")[-1]["finish_reason"] == "abort"


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
    with line() as one:
        say(one, message)
        (event,) = until(one, "error")
        assert event["error"]["type"] == status
        with pytest.raises(ConnectionClosed):
            one.recv(timeout=5)
        assert one.close_code == 1008
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
    with line() as one:
        say(one, opening())
        until(one, "turn")
        say(one, message)
        assert "message" in until(one, "error")[-1]["error"]
        say(one, {"type": "chunk", "prompt": "x"})
        assert until(one, "turn")[-1]["turn"] == 1


def test_an_event_that_was_never_sent_cannot_be_resumed_from(line):
    with line() as one:
        say(one, opening())
        session = until(one, "turn")[0]["session"]
        with line() as other:
            say(other, {"type": "resume", "session": session, "after": 1000})
            (event,) = until(other, "error")
    assert event["error"]["param"] == "after"
    assert "the last event is number" in event["error"]["message"]


def test_a_message_of_an_unknown_type_is_told_which_there_are(line):
    with line() as one:
        say(one, {"type": "dance"})
        assert "open or resume" in until(one, "error")[-1]["error"]["message"]
    with line() as one:
        say(one, opening())
        until(one, "turn")
        say(one, {"type": "dance"})
        assert "chunk, close or abort" in until(one, "error")[-1]["error"]["message"]


def test_a_chunk_after_close_is_refused_by_the_engines_own_words(served, line):
    served.engine.frozen.set()
    with line() as one:
        say(one, opening())
        until(one, "opened")
        say(one, {"type": "close"})
        say(one, {"type": "chunk", "prompt": "x"})
        error = until(one, "error")[-1]["error"]
        served.engine.frozen.clear()
        assert error["type"] == "conflict_error"
        assert "closed" in error["message"]
        assert until(one, "ended")[-1]["finish_reason"] == "length"


def test_sessions_of_a_key_are_limited_and_a_foreign_one_is_unknown(serve):
    served = serve(api_keys=("a", "b"), max_sessions_per_key=2)

    def connected(key):
        return connect(
            served.socket_url + "/v1/sessions",
            additional_headers={"Authorization": f"Bearer {key}"},
        )

    names = []
    for _ in range(2):
        with connected("a") as one:
            say(one, opening())
            names.append(until(one, "turn")[0]["session"])
    with connected("a") as one:
        say(one, opening())
        assert until(one, "error")[0]["error"]["type"] == "rate_limit_error"
        with pytest.raises(ConnectionClosed):
            one.recv(timeout=5)
        assert one.close_code == 1013
    with connected("b") as one:
        say(one, {"type": "resume", "session": names[0]})
        assert until(one, "error")[0]["error"]["code"] == "unknown_session"
    with connected("a") as one:
        say(one, {"type": "resume", "session": names[0]})
        until(one, "turn")
        say(one, {"type": "close"})
        until(one, "ended")
    with connected("a") as one:
        say(one, opening())
        until(one, "turn")


def test_abort_of_everything_ends_sessions_too(served, line):
    with line() as one:
        say(one, opening())
        until(one, "turn")
        with served.client() as client:
            assert client.post("/abort_requests").json()["aborted"] == 1
        assert until(one, "ended")[-1]["finish_reason"] == "abort"


def deaf_client(address, message):
    """A socket that has opened a session and reads nothing of it."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(address)
    protocol = ClientProtocol(parse_uri("ws://localhost/v1/sessions"))
    protocol.send_request(protocol.connect())
    raw.sendall(b"".join(protocol.data_to_send()))
    while protocol.state is not State.OPEN:
        protocol.receive_data(raw.recv(1))
    protocol.send_text(json.dumps(message).encode())
    raw.sendall(b"".join(protocol.data_to_send()))
    return raw


def test_a_client_that_does_not_read_is_cut_off_and_its_session_parks(serve_narrow):
    served = serve_narrow(write_timeout=0.5, max_model_len=100_000)
    sessions = served.app.state.sessions
    pause = threading.Event()
    with deaf_client(served.address, opening(max_tokens=30_000, prompt="abc")):
        while not (sessions.live and sessions.live[0].attachment):
            pause.wait(0.01)
        (session,) = sessions.live
        while session.attachment is not None:
            pause.wait(0.01)
    assert len(served.engine.requests) == 1
    with connect(served.socket_url + "/v1/sessions") as other:
        say(other, {"type": "resume", "session": session.name, "after": 10})
        say(other, {"type": "abort"})
        numbers = [event["seq"] for event in until(other, "ended")]
    assert numbers == list(range(11, len(session.events)))


def test_a_chunk_is_told_to_be_taken_as_which_turn(line):
    with line() as one:
        say(one, opening())
        until(one, "turn")
        say(one, {"type": "chunk", "prompt": "x"})
        events = until(one, "turn")
        if "taken" not in [event["type"] for event in events]:
            events += until(one, "taken")
    (taken,) = [event for event in events if event["type"] == "taken"]
    assert taken["turn"] == 1
