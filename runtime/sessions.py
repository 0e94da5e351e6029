"""The client's side of a request: its parameters, its turns, and what it has been told.

A request that is no session has one turn. A session's next turn starts with a chunk; its limits
and stop conditions start afresh, its tokens go on.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from .api import FinishReason, RequestOutput, TokenLogprobs
from .arguments import ends_the_program, in_words
from .sampling_params import SamplingParams

_log = logging.getLogger(__name__)


class Text(Protocol):
    """Makes text of one turn's tokens and looks for its stop strings.

    It is asked in the middle of a step, and so is what makes it of a turn that begins in one: any
    call of the engine's from there that would change something raises RejectedCallError.
    """

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
        self,
        params: SamplingParams | None,
        prompt: int,
        delivered: int,
        model_length: int,
        text: Text | None = None,
    ) -> None:
        """A turn starts after so many prompt and output tokens; None keeps the parameters.

        text: made for its parameters, unless the request has none.
        """
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
        self.text = text
        self.piece = ""
        self.stop_reason = None
        self.bound = False

    def stops_at(self, token: int, length: int) -> bool:
        """Whether the turn ends by this token, the last of a sequence of that length.

        `piece` is then the text to show for it, and `stop_reason` says why it stopped.
        """
        text = self.text
        if text is not None:
            piece = text.push((token,))
            self.piece = piece if type(piece) is str else _string(piece)
            if text.stopped_by is not None:
                self.stop_reason = text.stopped_by
                return True
        if token in self.stops and length >= self.min_length:
            self.stop_reason = None if token in self.eos else token
            return True
        return False

    def _without_its_text(
        self, error: BaseException, finish_reason: FinishReason
    ) -> FinishReason | None:
        """What is told instead of that reason, when the rest of the text could not be made."""
        _log.error("the text of %r failed", self.id, exc_info=error)
        if finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
            return finish_reason  # the client has given up, or is told of an earlier error
        self.error = no_text(error)
        return None if finish_reason is FinishReason.TURN else FinishReason.ERROR

    def output(
        self,
        tokens: tuple[int, ...],
        length: int,
        finish_reason: FinishReason | None,
        logprobs: tuple[TokenLogprobs, ...] = (),
    ) -> RequestOutput:
        """What the client is told now, with a sequence of `length` tokens.

        The text that was held back comes with the turn's end. Should it fail, that is an error:
        the output says so, and of a session that goes on, `error` is set and the turn's end is
        not told.
        """
        text = ""
        if self.text is not None:
            text, self.piece = self.piece, ""
            if finish_reason is not None:
                try:
                    text += _string(self.text.finish())
                except BaseException as error:
                    if ends_the_program(error):
                        raise
                    finish_reason = self._without_its_text(error, finish_reason)
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


def no_text(error: BaseException) -> str:
    """What the client of a request is told whose text has failed."""
    return f"its text could not be made: {in_words(error)}"


def _string(text: str) -> str:
    """The text, if it is one. Raises TypeError: it may come from a client's own class."""
    if isinstance(text, str):
        return text
    raise TypeError(f"a text gave {type(text).__name__}, not str")
