"""Every route, called as its OpenAPI document allows and forbids, by schemathesis."""

import hypothesis
import pytest
import schemathesis
from kvproof.runtime.server.app import create_app
from kvproof.runtime.server.settings import ServerConfig
from schemathesis.checks import CHECKS
from schemathesis.specs.openapi.checks import positive_data_acceptance

from .fake_device import corruptions, fake_engine
from .serving import Servers
from .texts import byte_tokenizer

RESUMES = ("/wake_up", "/resume")


@pytest.fixture(scope="module")
def real():
    tokenizer = byte_tokenizer()
    engine = fake_engine(tokenizer, tier_bytes=1 << 20, max_model_len=256)
    servers = Servers()
    yield servers.around(engine, tokenizer, dev=True, max_model_len=256)
    servers.end()


def document():
    """The document of an app as `real` serves it; its engine is asked nothing."""
    config = ServerConfig(model_name="stub", max_model_len=256, dev=True)
    return create_app(None, byte_tokenizer(), config).openapi()


SCHEMA = schemathesis.openapi.from_dict(document())
OPERATIONS = {
    f"{found.ok().method.upper()} {found.ok().path}": found.ok()
    for found in SCHEMA.get_all_operations()
}


def settings(examples: int):
    return hypothesis.settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
    )


def keeps_to_the_document(case, real):
    # What the document allows may still be refused: a prompt longer than the context, for one.
    case.call_and_validate(
        base_url=real.url, timeout=60, excluded_checks=[positive_data_acceptance]
    )


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_route_keeps_to_its_document(name, real):
    @settings(12)
    @hypothesis.given(case=OPERATIONS[name].as_strategy())
    def allowed(case):
        keeps_to_the_document(case, real)

    @settings(12)
    @hypothesis.given(case=OPERATIONS[name].as_strategy(schemathesis.GenerationMode.NEGATIVE))
    def forbidden(case):
        keeps_to_the_document(case, real)

    allowed()
    if can_be_called_wrongly(OPERATIONS[name]):
        forbidden()
    with real.client() as client:
        for path in RESUMES:  # or whoever comes next would wait for ever
            assert client.post(path).status_code in (200, 409)


def can_be_called_wrongly(operation) -> bool:
    """Whether it takes anything that has a wrong value."""
    return bool(list(operation.query) or list(operation.body))


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        ("POST /v1/completions", {"prompt": "hello"}),
        ("POST /v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
    ],
)
def test_the_events_of_a_stream_keep_to_the_document(name, prompt, real):
    body = prompt | {"max_tokens": 3, "stream": True}
    case = OPERATIONS[name].Case(body=body, media_type="application/json")
    answer = case.call_and_validate(base_url=real.url, timeout=60)
    assert "data: [DONE]" in answer.text


@pytest.mark.long
@SCHEMA.parametrize()
@settings(30)
def test_a_route_keeps_to_its_document_in_every_corner(case, real):
    keeps_to_the_document(case, real)
    with real.client() as client:
        for path in RESUMES:
            assert client.post(path).status_code in (200, 409)


def test_nothing_is_left_after_all_of_it(real):
    assert len(CHECKS.get_all()) > 5
    with real.client() as client:
        client.post("/abort_requests")
        for _ in range(1000):
            if client.get("/debug/holds").json() == {"holds": []}:
                break
        assert client.get("/debug/holds").json() == {"holds": []}
        assert client.get("/load").json() == {"server_load": 0, "queued": 0}
        assert client.get("/health").status_code == 200
        assert 'status="500"' not in client.get("/metrics").text
    assert corruptions(real.engine) == []


def test_the_document_names_what_can_be_answered(real):
    with real.client() as client:
        paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/completions", "/v1/chat/completions", "/reset_prefix_cache", "/health"} <= set(
        paths
    )
    for path, operations in paths.items():
        for operation in operations.values():
            assert "422" not in operation["responses"], path
    assert {"200", "400", "401", "404", "413", "429", "503"} <= set(
        paths["/v1/completions"]["post"]["responses"]
    )
