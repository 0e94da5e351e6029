"""Keys, hosts, origins, limits: who may do what, and how much of it."""

import logging
import socket

import pytest
from kvproof.runtime.model.chat import ChatTemplate
from kvproof.runtime.model.errors import ChatTemplateError
from kvproof.runtime.server.security import Keys, Tenant
from kvproof.runtime.server.settings import ServerConfig, ServerConfigError
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

PROMPT = {"prompt": "x", "max_tokens": 1}
ADMIN = [
    ("POST", "/reset_prefix_cache"),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("GET", "/is_paused"),
    ("POST", "/sleep"),
    ("POST", "/wake_up"),
    ("GET", "/is_sleeping"),
    ("POST", "/abort_requests"),
    ("GET", "/debug/holds"),
    ("GET", "/debug/stats"),
    ("GET", "/debug/requests/x"),
]


@pytest.mark.parametrize("key", [None, "wrong", "key x", "KEY", "k" * 10_000, "\xff"])
def test_v1_needs_the_key(serve, key):
    served = serve(api_keys=("key", "other"))
    headers = {} if key is None else {"Authorization": f"Bearer {key}".encode("latin-1")}
    with served.client() as client:
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/unknown"):
            answer = client.post(path, json=PROMPT, headers=headers)
            assert answer.status_code == 401, path
            assert answer.json()["error"]["code"] == "invalid_api_key"
        assert client.get("/v1/models", headers=headers).status_code == 401
        assert client.get("/health").status_code == 200
    assert served.engine.salts == {}


def test_each_key_opens_v1(serve):
    served = serve(api_keys=("key", "other"))
    for key in ("key", "other"):
        with served.client(key) as client:
            assert client.post("/v1/completions", json=PROMPT).status_code == 200


@pytest.mark.parametrize(("method", "path"), ADMIN)
def test_admin_routes_do_not_exist_unless_asked_for(serve, method, path):
    served = serve(api_keys=("key",))
    with served.client("key") as client:
        assert client.request(method, path).status_code == 404


def test_admin_routes_need_the_admin_key_and_not_that_of_v1(serve):
    served = serve(api_keys=("key",), admin_api_key="root")
    for method, path in ADMIN:
        for key in (None, "key", "wrong"):
            with served.client(key) as client:
                assert client.request(method, path).status_code == 401, path
    with served.client("root") as client:
        assert client.get("/debug/holds").status_code == 200
        assert client.post("/v1/completions", json=PROMPT).status_code == 401


def test_dev_is_for_loopback_only():
    with pytest.raises(ServerConfigError, match="loopback"):
        ServerConfig(model_name="m", max_model_len=9, host="0.0.0.0", dev=True)
    for host in ("127.0.0.1", "::1", "localhost", "127.1.2.3"):
        assert ServerConfig(model_name="m", max_model_len=9, host=host, dev=True).admin


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil", "10.0.0.1"])
def test_with_dev_a_name_that_is_not_loopback_opens_nothing(served, host):
    with served.client() as client:
        for method, path in (*ADMIN, ("GET", "/v1/models"), ("GET", "/metrics")):
            assert client.request(method, path, headers={"Host": host}).status_code == 403


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:9", "127.0.0.1:1", "[::1]:5", "LOCALHOST"]
)
def test_with_dev_loopback_names_are_good(served, host):
    with served.client() as client:
        assert client.get("/debug/holds", headers={"Host": host}).status_code == 200


def test_a_foreign_page_can_reset_nothing(served):
    with served.client() as client:
        foreign = client.post("/reset_prefix_cache", headers={"Origin": "http://evil.example"})
        own = client.post("/reset_prefix_cache", headers={"Origin": served.url})
    assert foreign.status_code == 403
    assert own.status_code == 200


def test_a_foreign_page_can_open_no_session(serve):
    served = serve(allowed_origins=("https://good.example",))
    with pytest.raises(InvalidStatus) as refused:
        connect(served.socket_url + "/v1/sessions", origin="http://evil.example")
    assert refused.value.response.status_code == 403
    for origin in ("https://good.example", served.url, None):
        with connect(served.socket_url + "/v1/sessions", origin=origin):
            pass


def test_a_session_needs_the_key(serve):
    served = serve(api_keys=("key",))
    with pytest.raises(InvalidStatus):
        connect(served.socket_url + "/v1/sessions")
    headers = {"Authorization": "Bearer key"}
    with connect(served.socket_url + "/v1/sessions", additional_headers=headers):
        pass


def test_salts_differ_by_tenant_and_say_nothing_of_the_key():
    config = ServerConfig(model_name="m", max_model_len=9, api_keys=("key", "other"))
    one, two = Keys(config).tenant("key"), Keys(config).tenant("other")
    assert one is not None
    assert two is not None
    assert len({one.salt(), two.salt(), one.salt("a"), two.salt("a"), one.salt("b")}) == 5
    assert Keys(config).tenant("key").salt() != one.salt()  # another process, another secret
    assert Tenant("").salt() == b""


def test_every_key_is_compared_whichever_is_right(monkeypatch):
    config = ServerConfig(model_name="m", max_model_len=9, api_keys=("a", "b", "c"))
    keys, compared = Keys(config), []

    def counting(one, other):
        compared.append(1)
        return one == other

    monkeypatch.setattr("kvproof.runtime.server.security.hmac.compare_digest", counting)
    for key in ("a", "c", "none"):
        compared.clear()
        keys.tenant(key)
        assert len(compared) == 3


def test_a_template_from_a_stranger_reaches_nothing():
    for source in (
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
    ):
        with pytest.raises(ChatTemplateError):
            ChatTemplate(source, {}).render([{"role": "user", "content": "x"}])


def test_no_prompt_and_no_key_gets_into_the_log(serve, caplog):
    served = serve(api_keys=("the-key",), admin_api_key="the-root")
    served.engine.add_request = None  # a fault of ours, which is logged with its traceback
    with caplog.at_level(logging.DEBUG), served.client("the-key") as client:
        answer = client.post("/v1/completions?x=the-query", json={"prompt": "the-prompt"})
        client.post("/v1/completions", json={"prompt": ["the-prompt", 3]})
        client.post("/v1/completions", json={"prompt": "x"}, headers={"Authorization": "Bearer y"})
    assert answer.status_code == 500
    ours = "\n".join(
        record.getMessage() + str(record.exc_text)
        for record in caplog.records
        if record.name.startswith(("kvproof", "uvicorn"))
    )
    assert "POST /v1/completions failed" in ours
    for secret in ("the-key", "the-root", "the-prompt", "the-query"):
        assert secret not in ours
        assert secret not in answer.text


def test_a_large_body_is_413_before_it_is_read(serve):
    served = serve(max_body=10_000)
    with served.client() as client:
        declared = client.post("/v1/completions", json={"prompt": "x" * 20_000})
        chunked = client.post("/v1/completions", content=(b"x" * 1000 for _ in range(20)))
        small = client.post("/v1/completions", json=PROMPT)
    assert declared.status_code == 413
    assert chunked.status_code == 413
    assert small.status_code == 200


def test_a_body_that_stops_coming_is_408(serve):
    served = serve(body_timeout=0.2)
    with socket.create_connection(served.address) as line:
        line.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        line.settimeout(10)
        assert line.recv(100).startswith(b"HTTP/1.1 408 ")


def test_more_requests_than_a_key_may_have_are_429_and_others_go_on(serve):
    served = serve(api_keys=("a", "b"), max_requests_per_key=2)
    served.engine.frozen.set()
    body = {"prompt": "x", "max_tokens": 3, "stream": True}
    with served.client("a") as client, served.client("b") as other:
        streams = [client.stream("POST", "/v1/completions", json=body) for _ in range(2)]
        answers = [stream.__enter__() for stream in streams]
        refused = client.post("/v1/completions", json=PROMPT)
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        with other.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200
        served.engine.frozen.clear()
        for answer in answers:
            assert answer.read().endswith(b"data: [DONE]\n\n")
        for stream in streams:
            stream.__exit__(None, None, None)
        # The last byte is sent before the server counts the request off.
        while client.get("/load").json()["server_load"]:
            pass
        assert client.post("/v1/completions", json=PROMPT).status_code == 200


@pytest.mark.parametrize("limit", [{"max_requests": 2}, {"max_queued": 2}])
def test_more_work_than_the_server_takes_is_503(serve, limit):
    served = serve(**limit)
    served.engine.frozen.set()
    body = {"prompt": ["x", "y"], "max_tokens": 3, "stream": True}
    with served.client() as client:
        with client.stream("POST", "/v1/completions", json=body):
            refused = client.post("/v1/completions", json=PROMPT)
            assert refused.status_code == 503
            assert int(refused.headers["Retry-After"]) >= 1
            assert client.get("/load").json() == {"server_load": 2, "queued": 2}
        served.engine.frozen.clear()
        for _ in range(1000):
            if client.get("/load").json()["server_load"] == 0:
                break
        assert client.post("/v1/completions", json=PROMPT).status_code == 200


PUBLIC = {"/health", "/ping", "/version", "/load", "/metrics", "/openapi.json"}


def test_every_route_but_the_public_ones_needs_a_key(serve):
    served = serve(api_keys=("key",), admin_api_key="root")
    with served.client() as client:
        paths = client.get("/openapi.json").json()["paths"]
        assert len(paths) > 20
        for path, operations in paths.items():
            for method in operations:
                answer = client.request(method, path.replace("{", "").replace("}", ""))
                assert (answer.status_code == 401) == (path not in PUBLIC), path


@pytest.mark.parametrize(
    "path",
    ["/debug/holds/", "//debug/holds", "/v1/../debug/holds", "/%64ebug/holds", "/DEBUG/holds"],
)
def test_a_path_that_is_spelled_otherwise_opens_nothing(serve, path):
    served = serve(admin_api_key="root")
    with socket.create_connection(served.address) as line:
        line.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        line.settimeout(10)
        status = int(line.recv(1000).split()[1])
    assert status in (401, 404)
