"""Tokens become text as they arrive: no broken character, no text past a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from .tokenizer import Tokenizer

_UNFINISHED = "\ufffd"
# Longest run of tokens that a decoder is waited for to make whole characters of.
_PATIENCE = 16


class Detokenizer:
    """The text of a growing sequence of tokens, piece by piece.

    The pieces together are what decoding all tokens at once gives; a character whose bytes are
    spread over several tokens comes with the last of them.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # For tokenizers that do not map each token to bytes:
        self._tokens: list[int] = []
        self._context = 0  # first token that is decoded again, for what joins it to the next
        self._said = 0  # first token whose text is not out yet

    def push(self, tokens: Iterable[int]) -> str:
        """The text that these tokens complete."""
        return "".join([self._push_one(token) for token in tokens if token not in self._skipped])

    def finish(self) -> str:
        """What is left: unfinished bytes, as U+FFFD."""
        tail = self._utf8.decode(b"", final=True)
        if self._said < len(self._tokens):
            tail += self._new_text()
            self._said = len(self._tokens)
        return tail

    def _push_one(self, token: int) -> str:
        piece = self._tokenizer.token_bytes(token)
        if piece is not None:
            return self._utf8.decode(piece)
        self._tokens.append(token)
        text = self._new_text()
        if text.endswith(_UNFINISHED) and len(self._tokens) - self._said < _PATIENCE:
            return ""
        self._context, self._said = self._said, len(self._tokens)
        return text

    def _new_text(self) -> str:
        # Decoding from an earlier token keeps what depends on the neighbour, such as a space
        # that is dropped at the very beginning only.
        before = self._tokenizer.decode(self._tokens[self._context : self._said], False)
        return self._tokenizer.decode(self._tokens[self._context :], False)[len(before) :]


class StopStrings:
    """Looks for the first stop string in a growing text and holds back what may begin one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that is safe to show, and the stop string that has been met, if one has.

        The stop string itself and everything after it are never shown.
        """
        self._held += text
        found = [
            (at + len(stop), at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0
        ]
        if found:
            # The one that is complete first, whatever pieces the text came in.
            _, at, stop = min(found)
            shown, self._held = self._held[:at], ""
            return shown, stop
        keep = self._possible_beginning()
        shown, self._held = self._held[: len(self._held) - keep], self._held[-keep:] if keep else ""
        return shown, None

    def finish(self) -> str:
        """The text that was held back: the output ended, and no stop string came of it."""
        held, self._held = self._held, ""
        return held

    def _possible_beginning(self) -> int:
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            tail = self._held[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0


class TextStream:
    """One request's output text: detokenised, ended at a stop string."""

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str] = (), min_tokens: int = 0
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(stops)
        self._min_tokens = min_tokens
        self._tokens = 0
        self.stopped_by: str | None = None

    def push(self, tokens: Iterable[int]) -> str:
        """The text to show for these tokens; `stopped_by` is set once a stop string is met.

        Tokens after that are ignored. A stop string within the first `min_tokens` is text.
        """
        shown = ""
        for token in tokens:
            if self.stopped_by is not None:
                break
            self._tokens += 1
            text = self._detokenizer.push((token,))
            if self._tokens < self._min_tokens:
                shown += text
                continue
            piece, self.stopped_by = self._stops.push(text)
            shown += piece
        return shown

    def finish(self) -> str:
        """The rest of the text when the output ended for another reason than a stop string."""
        if self.stopped_by is not None:
            return ""
        piece, self.stopped_by = self._stops.push(self._detokenizer.finish())
        return piece + ("" if self.stopped_by is not None else self._stops.finish())
