"""From text to the engine and back: what every route that generates goes through.

Prompts become tokens here; the engine, on its own thread, answers with tokens and their text.
Leaving a `Generation` aborts its request, so that nothing is left behind.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from ..api import FinishReason, RequestOutput, TokenLogprobs
from ..model.tokenizer import Tokenizer
from ..sampling_params import SamplingParams
from .contract import OnOutput, ServedEngine
from .errors import ApiError, unavailable
from .fields import Message
from .limits import Limits
from .metrics import Metrics
from .settings import ServerConfig
from .stream import OutputStream

T = TypeVar("T")
#: Texts longer than this are tokenised outside the event loop.
_SHORT_TEXT = 2000


@dataclass(frozen=True, slots=True)
class Delta:
    """What one request has newly produced. The last one has a `finish`."""

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: str | None = None
    stop_reason: str | int | None = None


class Front:
    """One served model: its engine, its tokenizer, and what is live."""

    def __init__(
        self, engine: ServedEngine, tokenizer: Tokenizer, config: ServerConfig, metrics: Metrics
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.config = config
        self.limits = Limits(config)
        self.metrics = metrics
        self.live: dict[str, Generation] = {}  # by engine request id
        self.closing = False
        self._longest = _longest_token(tokenizer)
        self._threads = ThreadPoolExecutor(8, thread_name_prefix="kvproof-call")
        self._shut = False

    async def call(self, method: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """An engine call that answers between two steps, off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: method(*args, **kwargs)
        )

    async def waiting_call(self, begin: Callable[..., Future[T]], *args: Any) -> T:
        """An engine call that may wait for long. Cancelling the caller gives the call up.

        Raises ApiError 503 when too many wait already.
        """
        with self.limits.waiting_call():
            beginning = asyncio.ensure_future(self.call(begin, *args))
            try:
                begun = await asyncio.shield(beginning)
            except asyncio.CancelledError:
                beginning.add_done_callback(_give_up)
                raise
            return await asyncio.wrap_future(begun)

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Raises ApiError when it cannot fit, before it is tokenised."""
        most = self.config.max_model_len
        if len(text) > most * self._longest:
            raise too_long(f"more than {most}", most)
        if len(text) <= _SHORT_TEXT:
            tokens = self.tokenizer.encode(text, add_special_tokens)
        else:
            tokens = await self.call(self.tokenizer.encode, text, add_special_tokens)
        return list(tokens.tolist())

    async def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """A conversation as the model's template writes it. Raises ChatTemplateError."""
        flat = [message.flat() for message in messages]
        return await self.call(self.tokenizer.render_chat, flat, add_generation_prompt)

    def check_tokens(self, tokens: Sequence[int], param: str = "prompt") -> None:
        """Raises ApiError, naming `param`, for an id that the tokenizer does not know."""
        most = self.tokenizer.vocab_size - 1
        if tokens and not 0 <= min(tokens) <= max(tokens) <= most:
            raise ApiError(400, f"{param}: token ids are 0 to {most}", param=param)

    def check_prompt(self, tokens: Sequence[int], params: SamplingParams) -> None:
        """Raises ApiError for a prompt that no engine of this model could take."""
        if not tokens:
            raise ApiError(400, "prompt: it has no token", param="prompt")
        if len(tokens) + max(params.min_tokens, 1) > self.config.max_model_len:
            raise too_long(str(len(tokens)), self.config.max_model_len)
        self.check_tokens(tokens)

    async def start(
        self,
        request_id: str,
        tokens: list[int],
        params: SamplingParams,
        *,
        priority: int,
        salt: bytes,
    ) -> Generation:
        """Hand one request to the engine. Raises ApiError and the engine's errors."""
        if self.closing:
            raise unavailable("the server is shutting down", 10)
        generation = Generation(self, request_id, tokens)
        self.live[request_id] = generation
        self.limits.queued += 1
        try:
            await self.add(
                request_id,
                tokens,
                params,
                priority=priority,
                resumable=False,
                salt=salt,
                on_output=generation.stream.put,
            )
        except BaseException:
            generation.forget()
            raise
        return generation

    async def add(
        self,
        request_id: str,
        tokens: list[int],
        params: SamplingParams,
        *,
        priority: int,
        resumable: bool,
        salt: bytes,
        on_output: OnOutput,
    ) -> None:
        """`add_request` for a caller that may be cancelled: then the request is aborted."""
        adding = asyncio.ensure_future(
            self.call(
                self.engine.add_request,
                request_id,
                tokens,
                params,
                priority=priority,
                resumable=resumable,
                salt=salt,
                on_output=on_output,
            )
        )
        try:
            await asyncio.shield(adding)
        except asyncio.CancelledError:
            adding.add_done_callback(lambda done: self.abort_soon(request_id))
            raise

    def abort_soon(self, request_id: str) -> None:
        """Abort without waiting for the answer. A request that has ended is ignored."""
        if not self._shut:
            self._threads.submit(self.engine.abort, request_id)

    async def close(self) -> None:
        """Abort what is live; no thread stays."""
        for generation in list(self.live.values()):
            generation.leave()
        self._shut = True
        await asyncio.to_thread(self._threads.shutdown)


class Generation:
    """One request's life as its route sees it."""

    def __init__(self, front: Front, request_id: str, prompt: list[int]) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.stream = OutputStream()
        self.output_tokens = 0
        self.cached_tokens = 0
        self._front = front
        self._queued = True
        self._ended = False
        self._timer = front.metrics.timer()

    async def deltas(self) -> AsyncIterator[Delta]:
        """What it produces, until it ends. Raises ApiError if the engine gives it up."""
        while not self._ended:
            output = await self.stream.get()
            if output.tokens or output.finish_reason is not None:
                self._first_output(output)
            yield self._delta(output)

    def leave(self) -> None:
        """The client is gone or the answer complete: nothing of the request stays."""
        if not self._ended:
            self._ended = True
            self._front.abort_soon(self.request_id)
        self.forget()

    def forget(self) -> None:
        """Stop counting it."""
        if self._front.live.pop(self.request_id, None) is not None and self._queued:
            self._queued = False
            self._front.limits.queued -= 1

    def _first_output(self, output: RequestOutput) -> None:
        self.cached_tokens = output.cached_tokens
        self._timer.tokens(len(output.tokens))
        if self._queued:
            self._queued = False
            self._front.limits.queued -= 1

    def _delta(self, output: RequestOutput) -> Delta:
        reason = output.finish_reason
        self.output_tokens += len(output.tokens)
        if reason is not None:
            self._ended = True
            self._timer.finished(reason.value, len(self.prompt), self.output_tokens)
        if reason is FinishReason.ERROR:
            raise unavailable(f"the engine gave this request up: {output.error or 'no reason'}")
        if reason is FinishReason.IGNORED:
            raise too_long(str(len(self.prompt)), self._front.config.max_model_len)
        return Delta(
            output.text,
            output.tokens,
            output.logprobs,
            None if reason is None else reason.value,
            output.stop_reason,
        )


def too_long(length: str, most: int) -> ApiError:
    """The prompt leaves no room for an output."""
    return ApiError(
        400,
        f"this model's context is {most} tokens, one of them for the output; "
        f"the prompt has {length}",
        param="prompt",
        code="context_length_exceeded",
    )


def _give_up(beginning: asyncio.Future[Future[Any]]) -> None:
    if not beginning.cancelled() and beginning.exception() is None:
        beginning.result().cancel()


def _longest_token(tokenizer: Tokenizer) -> int:
    """Characters that one token can stand for, at most; a bound for texts before tokenising."""
    vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
    return max((len(text) for text in vocabulary), default=1)


def now() -> int:
    """`created` of an answer."""
    return int(time.time())
