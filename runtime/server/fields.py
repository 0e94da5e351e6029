"""The fields that clients may send, as vLLM and OpenAI name them; and those refused by name.

A field that this server does not serve is accepted with the value that asks for nothing (many
clients send defaults) and refused with any other. A field that nobody knows is refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from ..sampling_params import MAX_LOGPROBS, MAX_STOPS, SamplingParams
from .errors import UNSUPPORTED

_INT64 = 1 << 63
_INT32 = (1 << 31) - 1

#: Field -> (values that ask for nothing, why another is refused).
_UNSERVED: dict[str, tuple[tuple[Any, ...], str]] = {
    "n": ((1,), "one output a prompt is served"),
    "best_of": ((1,), "one output a prompt is served"),
    "use_beam_search": ((False,), "beam search is not served"),
    "length_penalty": ((1.0, 1), "beam search is not served"),
    "echo": ((False,), "the prompt is not echoed"),
    "suffix": ((), "insertion is not served"),
    "frequency_penalty": ((0, 0.0), "not served; use repetition_penalty"),
    "presence_penalty": ((0, 0.0), "not served; use repetition_penalty"),
    "logit_bias": (({},), "not served"),
    "allowed_token_ids": (([],), "not served"),
    "bad_words": (([],), "not served"),
    "prompt_logprobs": ((), "log-probabilities of the prompt are not served"),
    "prompt_embeds": ((), "embeddings as prompts are not served"),
    "response_format": (({"type": "text"},), "structured output is not served"),
    "structured_outputs": ((), "structured output is not served"),
    "tools": (([],), "tool calls are not served"),
    "tool_choice": (("none", "auto"), "tool calls are not served"),
    "parallel_tool_calls": ((True, False), "tool calls are not served"),
    "functions": (([],), "tool calls are not served"),
    "function_call": (("none", "auto"), "tool calls are not served"),
    "modalities": ((["text"],), "text alone is served"),
    "audio": ((), "text alone is served"),
    "prediction": ((), "not served"),
    "web_search_options": ((), "not served"),
    "include_stop_str_in_output": ((False,), "the stop string is always cut"),
    "skip_special_tokens": ((True,), "special tokens are always left out of the text"),
    "spaces_between_special_tokens": ((True,), "special tokens are left out of the text"),
    "truncate_prompt_tokens": ((), "a prompt is never cut; make it shorter"),
    "chat_template": ((), "the model's own template is used"),
    "chat_template_kwargs": (({},), "the model's own template is used"),
    "continue_final_message": ((False,), "not served"),
    "documents": (([],), "not served"),
    "reasoning_effort": ((), "not served"),
    "store": ((False,), "nothing is stored"),
    "lora_request": ((), "LoRA is not served"),
}
#: Who or what a request is for: no influence on its answer.
_PASSED_OVER = frozenset({"user", "metadata", "safety_identifier", "service_tier"})


def unsupported(name: str, why: str) -> PydanticCustomError:
    """The refusal of what this server does not serve; `from_validation` reads the name from it."""
    told: dict[str, Any] = {"param": name, "why": why}
    return PydanticCustomError(UNSUPPORTED, "{param} is not supported: {why}", told)


def _characters(text: str) -> str:
    """JSON can spell half of a surrogate pair, which is no character and has no bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is not text") from None
    return text


Text = Annotated[str, AfterValidator(_characters)]


class Body(BaseModel):
    """Strict JSON: no guessing of types, no unknown field, no NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _only_served(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kept = {}
        for name, value in data.items():
            if name in cls.model_fields:
                kept[name] = value
            elif name in _UNSERVED:
                neutral, why = _UNSERVED[name]
                same = any(type(value) is type(one) and value == one for one in neutral)
                if value is not None and not same:
                    raise unsupported(name, why)
            elif name not in _PASSED_OVER:
                kept[name] = value  # refused as unknown
        return kept


class StreamOptions(Body):
    """What a stream tells besides text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationBody(Body):
    """What completions and chat have in common."""

    model: str | None = None
    max_tokens: int | None = Field(None, ge=1, le=_INT32)
    min_tokens: int | None = Field(0, ge=0, le=_INT32)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=_INT32)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    seed: int | None = Field(None, ge=-_INT64, lt=_INT64)
    stop: (
        Annotated[Text, Field(min_length=1)]
        | Annotated[list[Annotated[Text, Field(min_length=1)]], Field(max_length=MAX_STOPS)]
        | None
    ) = None
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOPS)] | None = None
    ignore_eos: bool | None = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    priority: int | None = Field(0, ge=-_INT32, le=_INT32)
    cache_salt: Text | None = Field(None, min_length=1, max_length=256)
    request_id: str | None = Field(None, pattern=r"^[A-Za-z0-9._:-]{1,64}$")
    add_special_tokens: bool = True
    return_token_ids: bool | None = None

    def sampling(self, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        """The engine's parameters. Raises SamplingParamsError."""

        def given(value: Any, default: Any) -> Any:
            return default if value is None else value

        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=given(self.min_tokens, 0),
            temperature=float(given(self.temperature, 1.0)),
            top_k=given(self.top_k, 0),
            top_p=float(given(self.top_p, 1.0)),
            min_p=float(given(self.min_p, 0.0)),
            repetition_penalty=float(given(self.repetition_penalty, 1.0)),
            seed=self.seed,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            logprobs=logprobs,
        )

    @model_validator(mode="after")
    def _options_of_a_stream(self) -> GenerationBody:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for stream=true only")
        return self


TokenIds = Annotated[list[Annotated[int, Field(ge=0, le=_INT32)]], Field(min_length=1)]


class CompletionBody(GenerationBody):
    """`POST /v1/completions`."""

    prompt: (
        Text
        | TokenIds
        | Annotated[list[Text], Field(min_length=1)]
        | Annotated[list[TokenIds], Field(min_length=1)]
    )
    max_tokens: int | None = Field(16, ge=1, le=_INT32)
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    def prompts(self) -> list[str] | list[list[int]]:
        """Each prompt by itself."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt


class TextPart(Body):
    """A piece of a message."""

    type: Literal["text"]
    text: Text

    @model_validator(mode="before")
    @classmethod
    def _only_text(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, dict) else None
        if kind in ("image_url", "input_audio", "video_url", "audio_url", "file", "refusal"):
            raise unsupported(kind, "text alone is served")
        return data


class Message(Body):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[TextPart]
    name: str | None = None

    def flat(self) -> dict[str, str]:
        """As templates expect it."""
        text = self.content
        if not isinstance(text, str):
            text = "".join(part.text for part in text)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatBody(GenerationBody):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: int | None = Field(None, ge=1, le=_INT32)
    logprobs: bool | None = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    add_generation_prompt: bool = True
    add_special_tokens: bool = False

    @model_validator(mode="after")
    def _top_of_logprobs(self) -> ChatBody:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is for logprobs=true only")
        return self


class OpenMessage(GenerationBody):
    """The first message of a session: its first prompt, and what holds for all of its turns."""

    type: Literal["open"]
    prompt: Text | TokenIds
    max_tokens: int | None = Field(16, ge=1, le=_INT32)


class ChunkMessage(Body):
    """More input. What it sets holds for its own turn; the rest is as `open` said."""

    type: Literal["chunk"]
    prompt: Text | TokenIds
    add_special_tokens: bool = False
    max_tokens: int | None = Field(None, ge=1, le=_INT32)
    min_tokens: int | None = Field(None, ge=0, le=_INT32)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=_INT32)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-_INT64, lt=_INT64)
    ignore_eos: bool | None = None

    def over(self, opened: OpenMessage) -> OpenMessage:
        """The turn's settings."""
        own = self.model_dump(exclude={"type"}, exclude_none=True)
        return OpenMessage(**(opened.model_dump() | own))


class ResumeMessage(Body):
    """Take up a session again: everything after the event numbered `after` is sent again."""

    type: Literal["resume"]
    session: str = Field(max_length=256)
    after: int = Field(-1, ge=-1, le=_INT32)


class EndMessage(Body):
    """`close`: no more input, what is queued is answered. `abort`: at once."""

    type: Literal["close", "abort"]


class TokenizeBody(Body):
    """`POST /tokenize`: a prompt or a conversation."""

    model: str | None = None
    prompt: Text | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None  # by default true for a prompt, false for messages
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeBody(Body):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, le=_INT32)]]


class AbortBody(Body):
    """`POST /abort_requests`: no ids means all of them."""

    request_ids: list[str] | None = None
