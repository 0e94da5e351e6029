"""What the clients know: what they sent, what they were given, and what must come next.

The fake model makes every answer a function of the tokens before it, so a client can tell a lost,
doubled or wrong token by itself, whatever the engine did in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .target import EOS, NewRequest, next_token


@dataclass(slots=True)
class Client:
    """One request seen from outside. `tokens` are its prompt and answers so far, in order."""

    request: NewRequest
    keeps_every_token: bool
    max_length: int
    tokens: list[int] = field(init=False)
    delivered: list[int] = field(default_factory=list)
    chunks: list[tuple[tuple[int, ...], int]] = field(default_factory=list)  # not merged yet
    turn: list[int] = field(default_factory=list)  # this turn's answer
    max_tokens: int = field(init=False)
    turns: int = 1
    closed: bool = False
    aborted: bool = False

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)
        self.max_tokens = self.request.max_tokens
        self.closed = not self.request.session

    def turn_is_over(self) -> bool:
        """By its length or its last token; nothing more may come until a chunk does."""
        return bool(self.turn) and (
            self.turn[-1] == EOS
            or len(self.turn) >= self.max_tokens
            or len(self.tokens) >= self.max_length
        )

    def next_turn(self) -> Client | None:
        """This client as it is once the first queued chunk is taken in; None without one."""
        if not self.chunks:
            return None
        (added, limit), *rest = self.chunks
        kept = self.tokens
        if self.turn and not self.keeps_every_token:
            kept = kept[:-1]  # documented by vLLM: a turn's last token is not kept
        later = Client(self.request, self.keeps_every_token, self.max_length)
        later.tokens = [*kept, *added]
        later.delivered = list(self.delivered)
        later.chunks = rest
        later.max_tokens = limit
        later.turns = self.turns + 1
        later.closed, later.aborted = self.closed, self.aborted
        return later

    def receive(self, delivered: Sequence[int]) -> tuple[Client, str | None]:
        """Compare all that was delivered so far with what must have been.

        Returns the client afterwards, and what is wrong: an answer taken back, one that goes on
        after its end, or one that the tokens before it do not lead to.
        """
        if list(delivered[: len(self.delivered)]) != self.delivered:
            return self, f"{self.delivered} had been delivered, now it is {list(delivered)}"
        now = self
        for token in delivered[len(self.delivered) :]:
            expected = next_token(now.tokens, now.request.stop_every)
            if now.turn_is_over() or token != expected:
                later = now.next_turn()
                if later is None:
                    if now.turn_is_over():
                        return now, f"{token} was delivered after the end of the answer"
                    return now, _wrong(token, expected, now.tokens)
                now = later
                expected = next_token(now.tokens, now.request.stop_every)
                if token != expected:
                    return now, _wrong(token, expected, now.tokens)
            now.tokens.append(token)
            now.turn.append(token)
            now.delivered.append(token)
        return now, None

    def possible_tokens(self) -> list[list[int]]:
        """What the engine may hold as the request's tokens: with or without a waiting chunk."""
        later = self.next_turn() if self.turn_is_over() or not self.turn else None
        return [self.tokens] if later is None else [self.tokens, later.tokens]


def _wrong(token: int, expected: int, tokens: list[int]) -> str:
    return f"{token} was delivered after {tokens}, which lead to {expected}"
