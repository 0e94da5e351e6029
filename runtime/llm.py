"""The Python API: an engine with its tokenizer, text in and text out.

`Engine.from_pretrained` makes one. The engine's own calls (reset, pause, sleep, holds, trace) are
inherited.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from .api import EngineConfig, EngineError, InvalidRequestError, RequestOutput, SessionError
from .engine import Engine
from .model.load import LoadedModel
from .model.text import TextStream
from .progress import Progress
from .protocols import Connector, Int32Array, Runner
from .sampling_params import SamplingParams
from .streams import Completion, Stream, completed

#: A text, which is tokenised, or token ids.
Prompt = str | Sequence[int] | Int32Array


class LLM(Engine):
    """A loaded model behind an engine. A context manager: leaving it shuts the engine down.

    All methods may be called from any thread.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        connector: Connector | None,
        model: LoadedModel,
    ) -> None:
        tokenizer = model.tokenizer
        self.model = model
        self.tokenizer = tokenizer
        self._numbers = itertools.count(1)
        super().__init__(
            config,
            runner,
            connector,
            eos_token_ids=model.config.eos_token_ids,
            text=lambda params: TextStream(tokenizer, params.stop, params.min_tokens),
            # Not the tokenizer's, which may be smaller: what was sampled may be sent again.
            vocabulary=model.config.vocab_size,
        )

    def encode(self, prompt: Prompt) -> Int32Array | Sequence[int]:
        """Token ids of a prompt; ids are returned as they are. Raises InvalidRequestError."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if isinstance(prompt, (bytes, Mapping)) or not hasattr(prompt, "__len__"):
            raise InvalidRequestError(f"{prompt!r} is neither a text nor a list of token ids")
        return prompt

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> Int32Array:
        """The prompt that asks for the next message of a conversation, as int32 token ids [tokens].

        messages: each with `role` and `content`. Raises ChatTemplateError.
        """
        return self.tokenizer.encode_chat(messages)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int = 0,
        salt: bytes = b"",
        progress: bool | None = None,
    ) -> list[Completion]:
        """Generate for every prompt and wait for all: one completion per prompt, in order.

        params: for all prompts, or one each; None is SamplingParams(). priority: lower runs first
        (policy "priority"). salt: only requests with the same salt share cached prefixes.
        progress: whether to show a bar on stderr; None shows it on a terminal.

        Raises InvalidRequestError and EngineClosedError before anything runs, and RejectedCallError
        from within an `on_output`. A request that fails later does not end the others: its
        completion says so (`failed`, `error`).
        """
        self._may_wait("add_request")
        encoded = [self.encode(prompt) for prompt in _listed(prompts)]
        sampling = _one_each(params, len(encoded))
        gathering = _Gathering(len(encoded))
        names = [self._new_id() for _ in encoded]

        def add_all() -> None:
            added: list[str] = []
            try:
                for at, name in enumerate(names):
                    self.core.add_request(
                        name, encoded[at], sampling[at], on_output=gathering.listener(at),
                        priority=priority, salt=salt,
                    )  # fmt: skip
                    added.append(name)
            except EngineError as error:
                for name in added:  # no step was launched since
                    self.core.abort(name)
                if len(names) > 1 and isinstance(error, InvalidRequestError):
                    raise InvalidRequestError(f"prompt {len(added)}: {error}") from error
                raise

        self.call(add_all)
        try:
            return gathering.wait(Progress(len(encoded), progress))
        except BaseException:  # Ctrl-C
            for name in names:
                self._abort_soon(name)
            raise

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        salt: bytes = b"",
    ) -> Stream:
        """Generate for one prompt, output by output: `for`, `async for` or `.result()`.

        Leaving the stream before its end aborts the request. priority, salt: see `generate`.
        Raises InvalidRequestError, EngineClosedError.
        """
        name = self._new_id()
        stream = Stream(lambda: self._abort_soon(name))
        self.add_request(
            name,
            self.encode(prompt),
            params or SamplingParams(),
            on_output=stream.put,
            priority=priority,
            salt=salt,
        )
        return stream

    def session(self, *, priority: int = 0, salt: bytes = b"") -> Session:
        """A conversation whose blocks stay while it waits for its next turn.

        priority, salt: see `generate`. The engine knows nothing of it before its first `send`.
        """
        return Session(self, self._new_id(), priority, salt)

    def _new_id(self) -> str:
        return f"llm-{next(self._numbers)}"

    def _abort_soon(self, name: str) -> None:
        """Abort without waiting: also from a reader that is being collected, or in asyncio."""
        self._post(lambda: self.core.abort(name))

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown(drain=error is None)


class Session:
    """A conversation: turns over one growing sequence, whose KV is kept between them.

    A parked session keeps its blocks until another request needs them, or a forced reset or a sleep
    takes them; the next turn's tokens are the same in all cases. As a context manager it ends the
    session, and aborts a turn that is not over.
    """

    def __init__(self, engine: LLM, name: str, priority: int, salt: bytes) -> None:
        self.id = name
        self._engine = engine
        self._priority = priority
        self._salt = salt
        self._sending = threading.Lock()  # turns are numbered as the engine numbers them
        self._lock = threading.Lock()
        self._sent = 0
        self._turns: dict[int, Stream] = {}  # not over yet
        self._over: RequestOutput | None = None

    def send(self, prompt: Prompt, params: SamplingParams | None = None) -> Stream:
        """Send the next turn's input; returns the stream of its output.

        It may be sent before the previous turn is over. params: None keeps the previous turn's. A
        text is tokenised on its own; only the first turn gets the special tokens that begin a
        sequence. Leaving the stream early does not end the turn.

        Raises InvalidRequestError, SessionError, EngineClosedError; the session is then unchanged.
        """
        with self._sending:
            return self._send(prompt, params)

    def _send(self, prompt: Prompt, params: SamplingParams | None) -> Stream:
        first = self._sent == 0
        if isinstance(prompt, str) and not first:
            tokens: Any = self._engine.tokenizer.encode(prompt, add_special_tokens=False)
        else:
            tokens = self._engine.encode(prompt)
        stream = Stream()
        with self._lock:
            if self._over is not None:
                raise SessionError(f"{self.id!r} is over: {_why_over(self._over)}")
            turn, self._sent = self._sent, self._sent + 1
            self._turns[turn] = stream
        try:
            if first:
                self._engine.add_request(
                    self.id, tokens, params or SamplingParams(), on_output=self._hear,
                    priority=self._priority, resumable=True, salt=self._salt,
                )  # fmt: skip
            else:
                self._engine.add_chunk(self.id, tokens, params)
        except BaseException:
            with self._lock:
                self._sent -= 1
                self._turns.pop(turn, None)
            raise
        return stream

    def close(self) -> None:
        """No further input: what was sent is answered, then the session is over."""
        with self._lock:
            if self._sent == 0 or self._over is not None:
                return
        self._engine.close_input(self.id)

    def abort(self) -> None:
        """End the session and its turns at once."""
        self._engine.abort(self.id)

    @property
    def over(self) -> bool:
        """Whether it has ended: closed, aborted, failed, or parked for too long."""
        return self._over is not None

    def _hear(self, output: RequestOutput) -> None:
        """Called on the engine's thread: pass an output to its turn's stream, the last to all."""
        with self._lock:
            if output.finished:
                self._over = output
                streams = list(self._turns.values())
                self._turns.clear()
            elif output.finish_reason is not None:
                streams = [self._turns.pop(output.turn)]
            else:
                streams = [self._turns[output.turn]]
        for stream in streams:
            stream.put(output)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._turns:
            self.abort()
        else:
            self.close()


class _Gathering:
    """The outputs of many requests, gathered on the engine's thread."""

    def __init__(self, count: int) -> None:
        self._outputs: list[list[RequestOutput]] = [[] for _ in range(count)]
        self._left = count
        self._tokens = 0
        self._changed = threading.Condition()

    def listener(self, at: int) -> Callable[[RequestOutput], None]:
        """Takes the outputs of one request."""
        outputs = self._outputs[at]

        def hear(output: RequestOutput) -> None:
            outputs.append(output)
            self._tokens += len(output.tokens)
            if output.finish_reason is not None:
                with self._changed:
                    self._left -= 1
                    self._changed.notify()

        return hear

    def wait(self, progress: Progress) -> list[Completion]:
        """Until all are over."""
        with progress, self._changed:
            while self._left:
                self._changed.wait(progress.interval)
                progress.show(len(self._outputs) - self._left, self._tokens)
        return [completed(outputs) for outputs in self._outputs]


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, (bytes, Mapping)) or not hasattr(prompts, "__len__"):
        raise InvalidRequestError(f"{prompts!r} are no prompts")
    is_one = len(prompts) > 0 and not hasattr(prompts[0], "__len__")
    return [prompts] if is_one else list(prompts)  # type: ignore[list-item, arg-type]


def _one_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence) or len(params) != count:
        raise InvalidRequestError(f"{count} prompts need one SamplingParams, or {count} of them")
    return list(params)


def _why_over(output: RequestOutput) -> str:
    reason = output.finish_reason
    return output.error or (reason.value if reason is not None else "no reason")
