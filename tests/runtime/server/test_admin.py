"""vLLM's admin routes: declared outcomes are answers, and a refused call breaks nothing."""

import json
import threading
from concurrent.futures import CancelledError

import httpx
import pytest
from kvproof.runtime.api import Holder

LOAD = Holder("LOAD", "7", "IN_FLIGHT", 4, 1.0, 0.5)


def test_a_reset_is_answered_as_vllm_answers_it(served):
    with served.client() as client:
        answer = client.post("/reset_prefix_cache")
        both = client.post("/reset_prefix_cache?reset_external=true")
        alias = client.post("/reset_prefix_cache?reset_connector=true")
    assert answer.status_code == 200
    assert answer.json() == {"success": True, "tiers": ["device"]}
    assert both.json() == alias.json() == {"success": True, "tiers": ["device", "connector"]}


@pytest.mark.parametrize("query", ["reset_running_request=true", "foo=1"])
def test_a_mistyped_parameter_is_refused_and_not_read_as_its_default(served, query):
    with served.client() as client:
        answer = client.post(f"/reset_prefix_cache?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == query.partition("=")[0]
    assert "reset_running_requests" in answer.json()["error"]["message"]


def test_a_refused_reset_is_200_names_its_holders_and_leaves_the_connection_open(served):
    served.engine.refusals.append(LOAD)
    with httpx.Client(base_url=served.url) as client:
        answers = [client.post("/reset_prefix_cache") for _ in range(3)]
        answer = answers[-1]
        addresses = {a.extensions["network_stream"].get_extra_info("client_addr") for a in answers}
    assert len(addresses) == 1
    assert answer.status_code == 200
    body = answer.json()
    assert body["success"] is False
    assert body["retryable"] is True
    assert body["holders"] == [LOAD.as_dict()]


def test_strict_turns_a_refusal_into_409_with_retry_after(served):
    with served.client() as client:
        assert client.post("/reset_prefix_cache?strict=true").status_code == 200
        served.engine.refusals.append(LOAD)
        answer = client.post("/reset_prefix_cache?strict=true")
    assert answer.status_code == 409
    assert int(answer.headers["Retry-After"]) >= 1
    assert answer.json()["holders"][0]["kind"] == "LOAD"


def test_a_waiting_reset_is_dropped_when_its_client_leaves(served):
    served.engine.refusals.append(LOAD)
    with served.client() as client, pytest.raises(httpx.ReadTimeout):
        client.post("/reset_prefix_cache?wait=60", timeout=0.3)
    ((future, _),) = served.engine.resets
    with pytest.raises(CancelledError):
        future.result(timeout=20)


def test_a_waiting_reset_succeeds_when_the_holder_ends(served):
    served.engine.refusals.append(LOAD)
    answers = []

    def ask():
        with served.client() as client:
            answers.append(client.post("/reset_prefix_cache?wait=30").json())

    asking = threading.Thread(target=ask)
    asking.start()
    with served.client() as client:
        assert client.get("/health").status_code == 200  # the server answers meanwhile
    served.engine.refusals.clear()
    while asking.is_alive():
        served.engine.answer_resets()
        asking.join(0.01)
    assert answers == [{"success": True, "tiers": ["device"]}]


def test_pause_and_resume_have_vllms_answers(served):
    with served.client() as client:
        paused = client.post("/pause?mode=keep").json()
        assert client.get("/is_paused").json() == {"is_paused": True}
        resumed = client.post("/resume").json()
        assert client.get("/is_paused").json() == {"is_paused": False}
    assert paused["status"] == "paused"
    assert resumed["status"] == "resumed"


def test_the_server_sleeps_until_everything_is_woken_by_its_tag(served):
    with served.client() as client:
        asleep = client.post("/sleep?level=2").json()
        assert (asleep["status"], asleep["level"]) == ("sleeping", 2)
        assert client.get("/is_sleeping").json() == {"is_sleeping": True}
        half = client.post("/wake_up?tags=weights").json()
        assert (half["status"], half["tags"]) == ("sleeping", ["weights"])
        awake = client.post("/wake_up").json()
        assert (awake["status"], awake["tags"]) == ("awake", None)
        assert client.get("/is_sleeping").json() == {"is_sleeping": False}


def test_a_refused_sleep_is_409_with_its_holders(served):
    served.engine.refusals.append(LOAD)
    with served.client() as client:
        answer = client.post("/sleep")
        assert client.get("/is_sleeping").json() == {"is_sleeping": False}
    assert answer.status_code == 409
    assert "Retry-After" in answer.headers
    assert answer.json()["holders"][0]["kind"] == "LOAD"


def test_resume_while_asleep_is_refused_and_says_why(served):
    with served.client() as client:
        client.post("/sleep")
        answer = client.post("/resume")
    assert answer.status_code == 409
    assert "wake" in answer.json()["why"]


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/pause?mode=later", "mode"),
        ("/sleep?level=3", "level"),
        ("/sleep?level=0", "level"),
        ("/wake_up?tags=lunch", "tags"),
        ("/reset_prefix_cache?wait=-1", "wait"),
        ("/reset_prefix_cache?wait=nan", "wait"),
        ("/reset_prefix_cache?reset_running_requests=perhaps", "reset_running_requests"),
    ],
)
def test_a_wrong_parameter_is_400_and_named(served, path, param):
    with served.client() as client:
        answer = client.post(path)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_abort_without_ids_aborts_everything(served):
    served.engine.frozen.set()
    body = {"prompt": ["a", "b"], "max_tokens": 100, "stream": True}
    with (
        served.client() as client,
        served.client() as other,
        client.stream("POST", "/v1/completions", json=body) as answer,
    ):
        assert other.post("/abort_requests").json() == {"status": "aborted", "aborted": 2}
        lines = [line for line in answer.iter_lines() if line]
    reasons = [json.loads(line[6:])["choices"][0]["finish_reason"] for line in lines[:-1]]
    assert reasons == ["abort", "abort"]


def test_a_request_can_be_looked_at_by_its_answers_id_without_any_text(served):
    served.engine.frozen.set()
    body = {"prompt": "a secret", "max_tokens": 100, "stream": True, "request_id": "look"}
    with (
        served.client() as client,
        served.client() as other,
        client.stream("POST", "/v1/completions", json=body),
    ):
        info = other.get("/debug/requests/cmpl-look")
        holds = other.get("/debug/holds").json()["holds"]
    assert info.json()["state"] == "RUNNING"
    assert info.json()["transitions"] == [{"event": "add"}]
    assert "secret" not in info.text
    assert [one["owner"] for one in holds] == ["cmpl-look-0"]
    with served.client() as client:
        assert client.get("/debug/requests/nobody").status_code == 404


def test_health_follows_the_engine(served):
    with served.client() as client:
        assert client.get("/health").status_code == 200
        assert client.get("/ping").status_code == 200
        served.engine.unhealthy = "work exists and has not moved for 61 s"
        answer = client.get("/health")
    assert answer.status_code == 503
    assert "not moved" in answer.json()["error"]["message"]


def test_metrics_have_vllms_names_and_kvproofs_own_and_no_ids(serve):
    served = serve()
    with served.client() as client:
        client.post(
            "/v1/completions", json={"prompt": "x", "max_tokens": 2, "request_id": "SECRET"}
        )
        client.get("/nowhere/SECRET")
        text = client.get("/metrics").text
    for line in (
        'vllm:num_requests_running{model_name="stub"} 0.0',
        'vllm:request_success_total{finished_reason="stop",model_name="stub"} 1.0',
        'vllm:time_to_first_token_seconds_count{model_name="stub"} 1.0',
        'kvproof:holds{kind="REQUEST"} 0.0',
        'kvproof:refused_resets_total{holder_kind="LOAD"} 3.0',
        'kvproof:ignored_signals_total{signal="output"} 2.0',
        "kvproof:blocks_quarantined 0.0",
        "kvproof:watchdog_trips_total 0.0",
        'kvproof:http_responses_total{method="POST",route="/v1/completions",status="200"} 1.0',
        'kvproof:http_responses_total{method="other",route="other",status="404"} 1.0',
    ):
        assert line in text
    assert "SECRET" not in text


def test_version_load_models_and_tokens(served):
    with served.client() as client:
        assert set(client.get("/version").json()) == {"version"}
        assert client.get("/load").json() == {"server_load": 0, "queued": 0}
        (card,) = client.get("/v1/models").json()["data"]
        assert (card["id"], card["max_model_len"]) == ("stub", 512)
        assert client.get("/v1/models/stub").json() == card
        assert client.get("/v1/models/other").status_code == 404
        tokens = client.post("/tokenize", json={"prompt": "añb", "return_token_strs": True}).json()
        assert tokens["count"] == 4
        back = client.post("/detokenize", json={"tokens": tokens["tokens"]}).json()
        assert back == {"prompt": "añb"}
        assert client.post("/detokenize", json={"tokens": [9999]}).status_code == 400
        assert client.post("/tokenize", json={}).status_code == 400


def test_what_is_longer_than_the_context_is_refused_before_it_is_tokenised(served):
    served.tokenizer.encode = None  # whoever asks it fails
    long = "x" * (1 << 20)
    talk = {"messages": [{"role": "user", "content": long}]}
    with served.client() as client:
        for body in ({"prompt": long}, talk):
            answer = client.post("/tokenize", json=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "context_length_exceeded"
        answer = client.post("/detokenize", json={"tokens": [1] * (1 << 17)})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "tokens"
