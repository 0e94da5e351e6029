"""Text to tokens and back, from a Hugging Face directory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from .chat import ChatTemplate, Message
from .errors import ChatTemplateError, ModelFileError
from .json_file import read_json

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class Tokenizer:
    """A tokenizer with its chat template (None if the model has none)."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str],
        chat_template: ChatTemplate | None,
    ) -> None:
        self.backend = backend
        self.special_tokens = dict(special_tokens)
        self.chat_template = chat_template
        backend.no_truncation()
        backend.no_padding()
        self.special_ids = frozenset(
            token for token, added in backend.get_added_tokens_decoder().items() if added.special
        )
        self._bytes = _byte_table(backend)

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, add_special_tokens: bool = True) -> npt.NDArray[np.int32]:
        """Token ids of a text."""
        encoding = self.backend.encode(text, add_special_tokens=add_special_tokens)
        return np.array(encoding.ids, dtype=np.int32)

    def decode(self, tokens: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of whole tokens; bytes that are no character become U+FFFD."""
        return str(self.backend.decode(list(tokens), skip_special_tokens=skip_special_tokens))

    def encode_chat(
        self, messages: Sequence[Message], add_generation_prompt: bool = True
    ) -> npt.NDArray[np.int32]:
        """Token ids of a rendered conversation. Raises ChatTemplateError."""
        text = self.render_chat(messages, add_generation_prompt)
        return self.encode(text, add_special_tokens=False)

    def render_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The prompt that the template makes of a conversation. Raises ChatTemplateError."""
        if self.chat_template is None:
            raise ChatTemplateError("the model has no chat template; send a plain prompt")
        return self.chat_template.render(messages, add_generation_prompt)

    def token_bytes(self, token: int) -> bytes | None:
        """What one token adds to the text, if its tokenizer maps each to bytes; else None."""
        return None if self._bytes is None else self._bytes.get(token, b"")


def from_directory(directory: Path) -> Tokenizer:
    """Read tokenizer.json and the chat template beside it. Raises ModelFileError."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ModelFileError(path, "no such file")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelFileError(path, f"not a tokenizer: {error}") from error
    settings = read_json(directory / "tokenizer_config.json", required=False)
    special = {name: _token_text(settings.get(name)) for name in _SPECIAL_TOKENS}
    known = {name: text for name, text in special.items() if text is not None}
    source = _template_source(directory, settings)
    return Tokenizer(backend, known, None if source is None else ChatTemplate(source, known))


def _token_text(value: Any) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _template_source(directory: Path, settings: Mapping[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _byte_table(backend: tokenizers.Tokenizer) -> dict[int, bytes] | None:
    """For a byte-level tokenizer, the bytes of each token; None for any other."""
    decoder = json.loads(backend.to_str()).get("decoder") or {}
    if decoder.get("type") != "ByteLevel":
        return None
    alphabet = _byte_alphabet()
    table = {}
    for text, token in backend.get_vocab(with_added_tokens=True).items():
        # The decoder's rule: a token with a character outside the alphabet is taken as it is.
        known = all(character in alphabet for character in text)
        table[token] = b"".join([alphabet[c] for c in text]) if known else text.encode()
    return table


def _byte_alphabet() -> dict[str, bytes]:
    """The printable stand-in of each byte in a byte-level vocabulary (GPT-2's convention)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): bytes([byte]) for byte in printable}
    return table | {chr(256 + n): bytes([byte]) for n, byte in enumerate(others)}
