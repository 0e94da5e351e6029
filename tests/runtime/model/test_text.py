"""Tokens to text: pieces join to the whole, no character breaks, no stop string is shown."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from kvproof.runtime.model.text import Detokenizer, StopStrings, TextStream
from kvproof.runtime.model.tokenizer import Tokenizer, from_directory

from . import tiny


def byte_level() -> Tokenizer:
    return Tokenizer(tiny.make_tokenizer(), {}, None)


def byte_fallback() -> Tokenizer:
    """A tokenizer of SentencePiece's kind: words with a marked space, bytes as <0x..>."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", "h", "e", "l", "o", "w", "r", "d", "▁h", "he"]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={word: n for n, word in enumerate(words)},
            merges=[("▁", "h"), ("h", "e")],
            byte_fallback=True,
            unk_token="<unk>",
            fuse_unk=True,
        )
    )
    backend.normalizer = tokenizers.normalizers.Sequence(
        [
            tokenizers.normalizers.Prepend("▁"),
            tokenizers.normalizers.Replace(" ", "▁"),
        ]
    )
    backend.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens([tokenizers.AddedToken(t, special=True) for t in words[:3]])
    return Tokenizer(backend, {}, None)


TOKENIZERS = {"byte level": byte_level(), "byte fallback": byte_fallback()}


@pytest.mark.parametrize("kind", list(TOKENIZERS))
@pytest.mark.parametrize("text", ["hello world", "é€🎉 日本", "  two  spaces ", "e\u0301 🇫🇷"])
def test_pieces_join_to_the_text_and_no_character_is_broken(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    stream = Detokenizer(tokenizer)
    pieces = [stream.push([token]) for token in tokenizer.encode(text).tolist()]
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) + stream.finish() == text


@given(st.lists(st.integers(3, 263), max_size=40))
def test_pieces_of_any_tokens_join_to_what_decoding_them_at_once_gives(tokens: list[int]) -> None:
    tokenizer = TOKENIZERS["byte level"]
    stream = Detokenizer(tokenizer)
    text = "".join(stream.push([token]) for token in tokens) + stream.finish()
    assert text == tokenizer.decode(tokens)


def test_unfinished_bytes_come_at_the_end_as_replacement_characters() -> None:
    tokenizer = byte_level()
    stream = Detokenizer(tokenizer)
    assert stream.push(tokenizer.encode("€")[:2].tolist()) == ""
    assert stream.finish() == "\ufffd"


def test_special_tokens_are_skipped_unless_asked_for() -> None:
    tokenizer = byte_level()
    tokens = [1, *tokenizer.encode("he").tolist(), 2]
    assert Detokenizer(tokenizer).push(tokens) == "he"
    assert Detokenizer(tokenizer, skip_special_tokens=False).push(tokens) == "<s>he</s>"


def reference_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text up to the stop string that is complete first, letter by letter."""
    for end in range(1, len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            longest = max(met, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(0, 1 << 30),
)
def test_however_the_text_is_cut_the_stop_is_that_of_letter_by_letter(
    text: str, stops: list[str], seed: int
) -> None:
    cuts = random.Random(seed)
    stream, shown, met, at = StopStrings(stops), "", None, 0
    while at < len(text) and met is None:
        size = cuts.randint(1, 3)
        piece, met = stream.push(text[at : at + size])
        shown += piece
        at += size
    if met is None:
        shown += stream.finish()
    expected, stop = reference_stop(text, stops)
    assert (shown, met) == (expected, stop)


def test_a_stop_string_across_token_boundaries_is_cut_from_the_text() -> None:
    tokenizer = byte_level()
    stream = TextStream(tokenizer, ["o w"])
    shown = "".join(stream.push([token]) for token in tokenizer.encode("hello world").tolist())
    assert shown + stream.finish() == "hell"
    assert stream.stopped_by == "o w"


def test_what_may_begin_a_stop_string_is_held_back_until_it_does_not() -> None:
    tokenizer = byte_level()
    stream = TextStream(tokenizer, ["lll"])
    assert stream.push(tokenizer.encode("hell").tolist()) == "he"
    assert stream.push(tokenizer.encode("o").tolist()) == "llo"
    assert stream.stopped_by is None


def test_held_text_comes_when_the_output_ends_otherwise() -> None:
    tokenizer = byte_level()
    stream = TextStream(tokenizer, ["lx"])
    assert stream.push(tokenizer.encode("hel").tolist()) == "he"
    assert stream.finish() == "l"


def test_a_stop_string_before_min_tokens_is_text() -> None:
    tokenizer = byte_level()
    tokens = tokenizer.encode("aXbX").tolist()
    assert len(tokens) == 4
    stream = TextStream(tokenizer, ["X"], min_tokens=3)
    assert "".join(stream.push([token]) for token in tokens) == "aXb"
    assert stream.stopped_by == "X"


def test_a_chat_is_rendered_by_the_template_and_has_no_second_start_token(
    directories: dict[str, Path],
) -> None:
    tokenizer = from_directory(directories["llama"])
    messages = [{"role": "user", "content": "he"}, {"role": "assistant", "content": "ll"}]
    assert tokenizer.render_chat(messages) == "<s>user: he\n<s>assistant: ll\n"
    tokens = tokenizer.encode_chat(messages).tolist()
    assert tokens.count(1) == 2
    assert tokenizer.decode(tokens, skip_special_tokens=False) == tokenizer.render_chat(messages)
