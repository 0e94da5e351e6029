"""`/v1/completions` and `/v1/chat/completions`, as raw HTTP."""

import dataclasses
import json

import pytest
from kvproof.runtime.sampling_params import SamplingParams

from .stub import continuation
from .texts import TEMPLATE


def expected_text(served, prompt: str, count: int) -> str:
    tokens = served.tokenizer.encode(prompt).tolist()
    return served.tokenizer.decode(continuation(served.tokenizer, tokens, count))


def events(response) -> list:
    lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_a_completion_is_the_engines_tokens_as_text(served):
    with served.client() as client:
        answer = client.post(
            "/v1/completions", json={"model": "stub", "prompt": "hello", "max_tokens": 9}
        ).json()
    (choice,) = answer["choices"]
    assert choice["text"] == expected_text(served, "hello", 9)
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == 5
    assert answer["usage"]["completion_tokens"] == 9
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


def test_a_stream_says_the_same_and_ends_with_usage(served):
    body = {
        "prompt": "hello",
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    with served.client() as client, client.stream("POST", "/v1/completions", json=body) as answer:
        got = events(answer)
    *parts, last = got
    assert "".join(part["choices"][0]["text"] for part in parts) == expected_text(
        served, "hello", 9
    )
    assert parts[-1]["choices"][0]["finish_reason"] == "length"
    assert parts[0]["choices"][0]["prompt_token_ids"] == served.tokenizer.encode("hello").tolist()
    tokens = [token for part in parts for token in part["choices"][0]["token_ids"]]
    assert tokens == continuation(served.tokenizer, served.tokenizer.encode("hello").tolist(), 9)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 14


def test_token_ids_are_a_prompt_and_several_prompts_are_several_choices(served):
    prompts = [served.tokenizer.encode(text).tolist() for text in ("one", "second")]
    with served.client() as client:
        answer = client.post(
            "/v1/completions",
            json={"prompt": prompts, "max_tokens": 4, "return_token_ids": True},
        ).json()
    for index, choice in enumerate(answer["choices"]):
        assert choice["index"] == index
        assert choice["token_ids"] == continuation(served.tokenizer, prompts[index], 4)
    assert answer["usage"]["completion_tokens"] == 8


def test_several_prompts_stream_interleaved_and_each_is_complete(served):
    body = {"prompt": ["one", "second"], "max_tokens": 6, "stream": True}
    with served.client() as client, client.stream("POST", "/v1/completions", json=body) as answer:
        choices = [choice for event in events(answer) for choice in event["choices"]]
    for index, prompt in enumerate(("one", "second")):
        text = "".join(choice["text"] for choice in choices if choice["index"] == index)
        assert text == expected_text(served, prompt, 6)


def test_a_stop_string_ends_the_output_is_cut_and_the_request_is_aborted(served):
    whole = expected_text(served, "hello", 12)
    stop = whole[4:7]
    with served.client() as client:
        answer = client.post(
            "/v1/completions", json={"prompt": "hello", "max_tokens": 400, "stop": stop}
        ).json()
    (choice,) = answer["choices"]
    assert choice["text"] == whole[: whole.index(stop)]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == stop


def test_logprobs_have_openais_two_shapes(served):
    with served.client() as client:
        answer = client.post(
            "/v1/completions", json={"prompt": "hi", "max_tokens": 3, "logprobs": 2}
        ).json()
        chat = client.post(
            "/v1/chat/completions",
            json={
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": 3,
                "logprobs": True,
                "top_logprobs": 2,
            },
        ).json()
    legacy = answer["choices"][0]["logprobs"]
    assert "".join(legacy["tokens"]) == answer["choices"][0]["text"]
    assert legacy["text_offset"] == [0, 1, 2]
    assert legacy["token_logprobs"] == [-0.1] * 3
    content = chat["choices"][0]["logprobs"]["content"]
    assert [one["logprob"] for one in content] == [-0.1] * 3
    assert len(content[0]["top_logprobs"]) == 2
    assert bytes(content[0]["bytes"]).decode() == content[0]["token"]


def test_a_conversation_is_rendered_by_the_models_template(served):
    messages = [
        {"role": "developer", "content": "be kind"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}],
        },
    ]
    rendered = "system: be kind\nuser: hello\nassistant: "
    assert "add_generation_prompt" in TEMPLATE
    with served.client() as client:
        answer = client.post(
            "/v1/chat/completions",
            json={"messages": messages, "max_completion_tokens": 5, "return_token_ids": True},
        ).json()
        tokens = client.post("/tokenize", json={"messages": messages}).json()["tokens"]
    assert tokens == served.tokenizer.encode(rendered).tolist()
    assert answer["prompt_token_ids"] == tokens
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": expected_text(served, rendered, 5),
    }


def test_priority_salt_and_ids_reach_the_engine(serve):
    served = serve(api_keys=("one", "two"))
    body = {"prompt": "x", "max_tokens": 1, "priority": -3}
    for key, name, salt in (("one", "a", None), ("one", "b", "s"), ("two", "c", None)):
        with served.client(key) as client:
            answer = client.post(
                "/v1/completions", json={**body, "request_id": name, "cache_salt": salt}
            )
            assert answer.json()["id"] == f"cmpl-{name}"
    salts = served.engine.salts
    assert served.engine.priorities["cmpl-a-0"] == -3
    assert len({salts["cmpl-a-0"], salts["cmpl-b-0"], salts["cmpl-c-0"]}) == 3
    assert b"" not in salts.values()


@pytest.mark.parametrize(
    ("path", "prompt", "logprobs"),
    [
        ("completions", {"prompt": "x"}, {"logprobs": 3}),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "x"}]},
            {"logprobs": True, "top_logprobs": 3},
        ),
    ],
)
def test_every_sampling_field_reaches_the_engine_as_it_was_sent(served, path, prompt, logprobs):
    fields = {
        "max_tokens": 3,
        "min_tokens": 2,
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "seed": 11,
        "stop": ["?!", "#"],
        "stop_token_ids": [7],
        "ignore_eos": True,
    }
    with served.client() as client:
        for body in (prompt | fields | logprobs, prompt | {"max_tokens": 1}):
            assert client.post(f"/v1/{path}", json=body).status_code == 200
    asked, plain = served.engine.sampling.values()
    as_sent = fields | {"stop": ("?!", "#"), "stop_token_ids": (7,), "logprobs": 3}
    assert asked == SamplingParams(**as_sent)
    assert plain == SamplingParams(max_tokens=1)
    assert {field.name for field in dataclasses.fields(asked)} == {"n", *as_sent}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("best_of", 3),
        ("echo", True),
        ("suffix", "x"),
        ("logit_bias", {"5": 1}),
        ("response_format", {"type": "json_object"}),
        ("frequency_penalty", 0.5),
        ("prompt_logprobs", 1),
        ("include_stop_str_in_output", True),
        ("truncate_prompt_tokens", 5),
        ("no_such_field", 1),
    ],
)
def test_what_is_not_served_is_refused_by_name(served, field, value):
    with served.client() as client:
        answer = client.post("/v1/completions", json={"prompt": "x", field: value})
    assert answer.status_code == 400
    assert field in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == field


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": "a", "x": 1}]}, "messages[0].x"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [3]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "a"}], "stop": [1]}, "stop"),
    ],
)
def test_a_wrong_conversation_is_told_where(served, body, where):
    with served.client() as client:
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == where
    assert error["message"].startswith(f"{where}: ")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded"])
def test_a_body_that_is_not_sent_as_json_is_told_so(served, kind):
    with served.client() as client:
        answer = client.post(
            "/v1/completions", content=b'{"prompt": "x"}', headers={"Content-Type": kind}
        )
    assert answer.status_code == 400
    assert "JSON object, sent as application/json" in answer.json()["error"]["message"]


def test_defaults_that_ask_for_nothing_are_accepted(served):
    body = {
        "prompt": "x",
        "max_tokens": 1,
        "n": 1,
        "echo": False,
        "logit_bias": None,
        "min_tokens": None,
        "ignore_eos": None,
        "priority": None,
        "presence_penalty": 0.0,
        "response_format": {"type": "text"},
        "user": "somebody",
    }
    with served.client() as client:
        assert client.post("/v1/completions", json=body).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": ""},
        {"prompt": []},
        {"prompt": [[]]},
        {"prompt": [999]},
        {"prompt": [-1]},
        {"prompt": ["a", 1]},
        {"prompt": None},
        {},
        {"prompt": "x", "max_tokens": 0},
        {"prompt": "x", "max_tokens": "5"},
        {"prompt": "x", "temperature": -1},
        {"prompt": "x", "top_p": 0},
        {"prompt": "x", "stop": [""]},
        {"prompt": "x", "min_tokens": 9, "max_tokens": 3},
        {"prompt": "x", "stream_options": {"include_usage": True}},
        {"prompt": "x" * 5000},
        {"prompt": "x" * 512},
        {"prompt": "x", "seed": 1 << 70},
        {"prompt": "x", "stop_token_ids": [-1]},
        [],
        "text",
        7,
    ],
)
def test_a_wrong_body_is_400_and_never_422(served, body):
    with served.client() as client:
        answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert served.engine.holds() == []


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "x", "temperature": NaN}',
        b"[" * 100_000,
        b"null",
    ],
)
def test_malformed_bytes_are_400(served, raw):
    with served.client() as client:
        answer = client.post(
            "/v1/completions", content=raw, headers={"Content-Type": "application/json"}
        )
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_another_model_is_404(served):
    with served.client() as client:
        answer = client.post("/v1/completions", json={"model": "gpt", "prompt": "x"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


def test_an_aborted_request_ends_with_reason_abort(served):
    served.engine.frozen.set()
    body = {"prompt": "x", "max_tokens": 300, "stream": True, "request_id": "mine"}
    with (
        served.client() as client,
        served.client() as other,
        client.stream("POST", "/v1/completions", json=body) as answer,
    ):
        lines = answer.iter_lines()
        aborted = other.post("/abort_requests", json={"request_ids": ["cmpl-mine"]}).json()
        assert aborted == {"status": "aborted", "aborted": 1}
        last = json.loads(next(line for line in lines if line).removeprefix("data: "))
    assert last["choices"][0]["finish_reason"] == "abort"
