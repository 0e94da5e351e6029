"""The client's side of a request: its parameters, its turns, and what it has been told.

A request that is no session has one turn. A session's next turn starts with a chunk; its limits
and stop conditions start afresh, its tokens go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from .api import FinishReason, RequestOutput, TokenLogprobs
from .sampling_params import SamplingParams


class Text(Protocol):
    """Makes text of one turn's tokens and looks for its stop strings."""

    stopped_by: str | None

    def push(self, tokens: Iterable[int]) -> str:
        """The text that these tokens complete; `stopped_by` is set once a stop string is met."""

    def finish(self) -> str:
        """The rest of the text, when the turn ended for another reason."""


#: Makes the text of a turn with these parameters.
TextFactory = Callable[[SamplingParams], Text]
OnOutput = Callable[[RequestOutput], None]


@dataclass(slots=True)
class Request:
    """One request as its client sees it. The lifecycle knows it by its row."""

    id: str
    row: int
    params: SamplingParams
    on_output: OnOutput
    new_text: TextFactory | None
    eos: frozenset[int]
    text: Text | None = None
    stops: frozenset[int] = frozenset()  # tokens that end the present turn
    min_length: int = 0  # sequence length from which on a stop token or string counts
    limit: int = 0  # sequence length at which the present turn ends
    turn: int = 0
    prompt_tokens: int = 0  # the prompt and the chunks merged so far
    #: Parameters of the chunks that wait for the present turn to end.
    queued: deque[SamplingParams | None] = field(default_factory=deque)
    bound: bool = False  # the runner knows the present turn's tokens
    cached_tokens: int = 0
    stop_reason: str | int | None = None
    error: str | None = None
    #: Text of the tokens that the present step delivered.
    piece: str = ""
    #: Counts up when what it waits for changes, so that an old deadline is known as such.
    wait: int = 0

    def begin_turn(
        self, params: SamplingParams | None, prompt: int, delivered: int, model_length: int
    ) -> None:
        """A turn starts after so many prompt and output tokens; None keeps the parameters."""
        length = prompt + delivered
        self.prompt_tokens = prompt
        if params is not None:
            self.params = params
        params = self.params
        most = model_length if params.max_tokens is None else params.max_tokens
        self.limit = min(length + most, model_length)
        self.min_length = length + params.min_tokens
        self.stops = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            self.stops |= self.eos
        self.text = self.new_text(params) if self.new_text is not None else None
        self.stop_reason = None
        self.bound = False

    def stops_at(self, token: int, length: int) -> bool:
        """Whether the turn ends by this token, the last of a sequence of that length.

        `piece` is then the text to show for it, and `stop_reason` says why it stopped.
        """
        text = self.text
        if text is not None:
            self.piece = text.push((token,))
            if text.stopped_by is not None:
                self.stop_reason = text.stopped_by
                return True
        if token in self.stops and length >= self.min_length:
            self.stop_reason = None if token in self.eos else token
            return True
        return False

    def output(
        self,
        tokens: tuple[int, ...],
        length: int,
        finish_reason: FinishReason | None,
        logprobs: tuple[TokenLogprobs, ...] = (),
    ) -> RequestOutput:
        """What the client is told now, with a sequence of `length` tokens.

        The text that was held back comes with the turn's end.
        """
        text = ""
        if self.text is not None:
            text, self.piece = self.piece, ""
            if finish_reason is not None:
                text += self.text.finish()
        # Past the named tuple's own constructor, which takes half as long again: one is made for
        # every request in every step.
        return tuple.__new__(
            RequestOutput,
            (
                self.id,
                tokens,
                text,
                finish_reason,
                self.stop_reason if finish_reason is not None else None,
                self.error,
                self.prompt_tokens,
                length - self.prompt_tokens,
                self.cached_tokens,
                logprobs,
                self.turn,
            ),
        )
