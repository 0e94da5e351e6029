"""Chat templates are a stranger's code: they may not reach anything, and their errors are typed."""

from __future__ import annotations

from typing import Any

import pytest
from kvproof.runtime.model.chat import ChatTemplate
from kvproof.runtime.model.errors import ChatTemplateError

HELLO = [{"role": "user", "content": "hello"}]


def test_blocks_leave_no_blank_lines() -> None:
    source = "{% for m in messages %}\n    {{ m.content }}\n{% endfor %}\n"
    assert ChatTemplate(source, {}).render(HELLO) == "    hello\n"


def test_special_tokens_and_the_generation_prompt_are_given() -> None:
    source = "{{ bos_token }}{% if add_generation_prompt %}go{% endif %}"
    template = ChatTemplate(source, {"bos_token": "<s>"})
    assert template.render(HELLO) == "<s>go"
    assert template.render(HELLO, add_generation_prompt=False) == "<s>"


def test_what_other_engines_offer_a_template_is_there() -> None:
    source = (
        "{% for m in messages %}{% generation %}{{ m | tojson }}{% endgeneration %}"
        "{% break %}{% endfor %}{{ strftime_now('%%') }}"
    )
    assert ChatTemplate(source, {}).render(HELLO) == '{"role": "user", "content": "hello"}%'


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ missing.attribute }}",
        "{% for n in range(10000000) %}{% endfor %}",
    ],
)
def test_what_a_template_may_not_do_is_a_typed_error(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source, {}).render(HELLO)


def test_a_template_that_does_not_compile_is_a_typed_error() -> None:
    with pytest.raises(ChatTemplateError, match="compile"):
        ChatTemplate("{% if %}", {})


@pytest.mark.parametrize("message", ["hello", {"content": "hello"}, {"role": 3}])
def test_what_is_no_message_is_refused(message: Any) -> None:
    with pytest.raises(ChatTemplateError, match="not a message"):
        ChatTemplate("x", {}).render([message])
