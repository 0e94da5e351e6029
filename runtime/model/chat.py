"""Chat templates: files from strangers, so they are rendered in jinja2's immutable sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .errors import ChatTemplateError

Message = Mapping[str, Any]


class _Generation(Extension):
    """`{% generation %}` marks what the assistant said, for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own protocol)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


class ChatTemplate:
    """A compiled template. Raises ChatTemplateError if it does not compile."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(
                f"the model's chat template does not compile: {error}"
            ) from error

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The prompt for these messages (`role` and `content` each). Raises ChatTemplateError."""
        for message in messages:
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise ChatTemplateError(f"{message!r} is not a message with a role and a content")
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except Exception as error:
            # A stranger's code may raise anything; whatever it is, the request is at fault.
            raise ChatTemplateError(f"the chat template refuses these messages: {error}") from error
