"""The unmodified `openai` client: what it can ask of a model that serves text."""

import openai
import pytest

from .stub import continuation


@pytest.fixture
def client(served):
    with openai.OpenAI(base_url=served.url + "/v1", api_key="any", max_retries=0) as made:
        yield made


@pytest.fixture
def text(served):
    def of(prompt: str, count: int) -> str:
        tokens = served.tokenizer.encode(prompt).tolist()
        return served.tokenizer.decode(continuation(served.tokenizer, tokens, count))

    return of


RENDERED = "user: hello\nassistant: "
MESSAGES = [{"role": "user", "content": "hello"}]


def test_the_one_model_is_listed_and_any_other_is_not_found(client):
    assert [model.id for model in client.models.list()] == ["stub"]
    assert client.models.retrieve("stub").owned_by == "kvproof"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_completion_has_the_models_text_and_its_usage(client, text):
    answer = client.completions.create(model="stub", prompt="hello", max_tokens=7, seed=1)
    assert answer.choices[0].text == text("hello", 7)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens == 12


def test_a_streamed_completion_ends_with_its_usage(client, text):
    stream = client.completions.create(
        model="stub",
        prompt="hello",
        max_tokens=7,
        stream=True,
        stream_options={"include_usage": True},
    )
    *parts, last = list(stream)
    assert "".join(part.choices[0].text for part in parts) == text("hello", 7)
    assert last.usage.completion_tokens == 7


def test_a_chat_answers_as_the_assistant(client, text):
    answer = client.chat.completions.create(
        model="stub", messages=MESSAGES, max_completion_tokens=7, temperature=0, top_p=0.9
    )
    assert answer.choices[0].message.content == text(RENDERED, 7)
    assert answer.choices[0].message.role == "assistant"


def test_a_streamed_chat_begins_with_the_role_and_ends_with_its_usage(client, text):
    stream = client.chat.completions.create(
        model="stub",
        messages=MESSAGES,
        max_tokens=7,
        stream=True,
        stream_options={"include_usage": True},
    )
    first, *parts, last = list(stream)
    assert first.choices[0].delta.role == "assistant"
    assert "".join(part.choices[0].delta.content for part in parts) == text(RENDERED, 7)
    assert parts[-1].choices[0].finish_reason == "length"
    assert last.usage.total_tokens == len(RENDERED) + 7


def test_a_stop_string_cuts_the_answer_and_logprobs_are_as_many_as_asked_for(client, text):
    whole = text(RENDERED, 12)
    stop = whole[5:8]
    answer = client.chat.completions.create(
        model="stub",
        messages=MESSAGES,
        max_tokens=99,
        stop=[stop, "never"],
        logprobs=True,
        top_logprobs=2,
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert choice.message.content == whole[: whole.index(stop)]
    assert len(choice.logprobs.content[0].top_logprobs) == 2


def test_vllms_extra_fields_go_through_extra_body(client):
    answer = client.completions.create(
        model="stub",
        prompt="hello",
        max_tokens=3,
        extra_body={
            "ignore_eos": True,
            "min_tokens": 2,
            "top_k": 5,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "priority": 2,
            "return_token_ids": True,
        },
    )
    assert len(answer.choices[0].model_extra["token_ids"]) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
        {"response_format": {"type": "json_object"}},
        {"logit_bias": {"5": 10}},
        {"presence_penalty": 1.0},
    ],
)
def test_what_is_not_served_is_a_bad_request_with_its_name(client, fields):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="stub", messages=MESSAGES, **fields)
    assert next(iter(fields)) in refused.value.message


def test_an_image_is_refused(client):
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="stub", messages=[{"role": "user", "content": [part]}])
    assert refused.value.param == "image_url"
    assert "image_url is not supported: text alone is served" in refused.value.message


def test_a_prompt_that_is_too_long_has_openais_code(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="stub", prompt="x" * 600)
    assert refused.value.code == "context_length_exceeded"


def test_errors_are_the_clients_own_classes(serve):
    served = serve(api_keys=("key",), max_requests_per_key=1, max_body=2000)
    url = served.url + "/v1"
    with (
        openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()
    with openai.OpenAI(base_url=url, api_key="key", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="gpt", prompt="x")
        with pytest.raises(openai.APIStatusError) as large:
            client.completions.create(model="stub", prompt="x" * 3000)
        assert large.value.status_code == 413
        with pytest.raises(openai.RateLimitError):
            client.completions.create(model="stub", prompt=["x", "y"])


async def drive(url: str) -> list[str]:
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="any") as client:
        stream = await client.completions.create(
            model="stub", prompt="hello", max_tokens=5, stream=True
        )
        return [part.choices[0].text async for part in stream]


@pytest.mark.anyio
async def test_the_asynchronous_client_too(served, text):
    assert "".join(await drive(served.url)) == text("hello", 5)
