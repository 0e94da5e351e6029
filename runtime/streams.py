"""One turn's outputs on their way from the engine's thread to one reader, and the turn as a whole.

A stream is read with `for` or with `async for`. However slowly it is read, its memory is bounded by
the turn itself: outputs that were not read yet are merged into one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

from .api import FinishReason, RequestOutput, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Completion:
    """What a request, or a session's turn, produced. `error` says why if it failed."""

    request_id: str
    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    stop_reason: str | int | None = None  # the stop string or token that ended it
    error: str | None = None
    prompt_tokens: int = 0  # of a session: all input so far
    cached_tokens: int = 0  # of the prompt, found in a cache
    logprobs: tuple[TokenLogprobs, ...] = ()  # one a token, if they were asked for
    turn: int = 0  # of a session, counted from 0

    @property
    def failed(self) -> bool:
        """Whether the engine gave it up."""
        return self.finish_reason is FinishReason.ERROR


def merged(earlier: RequestOutput, later: RequestOutput) -> RequestOutput:
    """Two outputs of one turn as one."""
    return later._replace(
        tokens=earlier.tokens + later.tokens,
        text=earlier.text + later.text,
        logprobs=earlier.logprobs + later.logprobs,
    )


def completed(outputs: Sequence[RequestOutput]) -> Completion:
    """All outputs of a turn as one, the last of which has a finish reason."""
    last = outputs[-1]
    assert last.finish_reason is not None
    return Completion(
        request_id=last.request_id,
        tokens=tuple(token for output in outputs for token in output.tokens),
        text="".join(output.text for output in outputs),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        error=last.error,
        prompt_tokens=last.prompt_tokens,
        cached_tokens=last.cached_tokens,
        logprobs=tuple(found for output in outputs for found in output.logprobs),
        turn=last.turn,
    )


class Stream:
    """The outputs of one request or turn, for one reader: `for output in stream`, or `async for`.

    The last output has a `finish_reason`, also when the engine has failed: a stream always ends.
    A reader that stops before that (`break`, an exception) calls `leave`.
    """

    def __init__(self, leave: Callable[[], object] = lambda: None) -> None:
        self._leave = leave
        self._changed = threading.Condition()
        self._waiting: RequestOutput | None = None
        self._ended = False  # the last output has arrived
        self._left = False
        self._taken = False  # the last output has been read
        self._wake_reader: Callable[[], object] | None = None

    def put(self, output: RequestOutput) -> None:
        """Called on the engine's thread; never blocks."""
        with self._changed:
            if self._ended:
                return
            earlier = self._waiting
            self._waiting = output if earlier is None else merged(earlier, output)
            self._ended = output.finish_reason is not None
            self._changed.notify_all()
            wake, self._wake_reader = self._wake_reader, None
        if wake is not None:
            try:
                wake()
            except RuntimeError:
                return  # the reader's event loop is closed: nobody is left to read

    @property
    def ended(self) -> bool:
        """Whether the last output has arrived, read or not."""
        return self._ended

    def leave(self) -> None:
        """Stop reading. Does nothing once the last output has arrived. Safe to call twice."""
        with self._changed:
            if self._left or self._ended:
                return
            self._left = True
        self._leave()

    def result(self) -> Completion:
        """Wait for the turn's end; returns the outputs that were not read yet as one completion.

        Raises RuntimeError if the stream has been read to its end.
        """
        outputs = list(self)
        if not outputs:
            raise RuntimeError("the stream has been read to its end")
        return completed(outputs)

    def __iter__(self) -> Iterator[RequestOutput]:
        try:
            while not self._taken:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting is not None)
                    output = self._take()
                assert output is not None
                yield output
        finally:
            self.leave()

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        loop = asyncio.get_running_loop()
        try:
            while not self._taken:
                arrived = asyncio.Event()
                with self._changed:
                    output = self._take()
                    if output is None:
                        self._wake_reader = lambda event=arrived: loop.call_soon_threadsafe(
                            event.set
                        )
                if output is not None:
                    yield output
                else:
                    await arrived.wait()
        finally:
            self.leave()

    def _take(self) -> RequestOutput | None:
        """What has come since the last call; under the lock."""
        output, self._waiting = self._waiting, None
        if output is not None:
            self._taken = output.finish_reason is not None
        return output
