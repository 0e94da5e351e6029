"""Writes a finding as a stand-alone pytest: the engine is imported, kvproof is not.

The file says in words what happens and which rule it breaks, makes the calls one by one, and ends
with the call that raises or with an assertion that does not hold. Below the test stands the code
that it needs: the target and its fake device.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any

from .bundle import Bundle, CannotBundleError
from .findings import Finding
from .operations import FAULTS, Operation
from .rules import RULES
from .run import Failure
from .target import NewRequest, Settings, Target


def write(finding: Finding, command: str) -> str:
    """The test's text; `command` is what found it. Raises CannotBundleError."""
    failure = finding.failure
    target = failure.target
    if target.__module__ == "__main__":
        raise CannotBundleError("the target is defined in the script that runs; give it a module")
    body = "\n".join(f"    {line}" for line in _calls(failure))
    test = f"def test_{finding.slug}() -> None:\n{body}\n"
    bundle = Bundle([target.__module__])
    bundle.need(target.__module__, target.__name__)
    for needed in target.needed_by_tests(failure.settings):
        module, _, name = needed.partition(":")
        bundle.need(module, name)
    bundle.need("kvproof.specs.fuzz.target", "Settings")
    bundle.need("kvproof.specs.fuzz.target", "NewRequest")
    if any(operation.name == "drain" for operation in failure.operations):
        bundle.need("kvproof.specs.fuzz.operations", "drain")
    imports, definitions = bundle.source()
    parts = [
        f'"""{header(finding, command)}"""',
        "from __future__ import annotations",
        *([target.preamble_of_tests] if target.preamble_of_tests else []),
        "\n".join(imports),
        "",
        test,
        "# What the test needs: the engine behind a small interface, on a fake device.",
        *(f"\n{definition}" for definition in definitions),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def header(finding: Finding, command: str) -> str:
    """The finding in words."""
    failure = finding.failure
    rule = failure.violation.rule
    lines = [f"{finding.title}", ""]
    lines += textwrap.wrap(f"Rule ({rule}): {RULES[rule]}", 96)
    lines += textwrap.wrap(f"What happens: {_plain(failure.violation.message)}.", 96)
    if failure.place:
        lines += textwrap.wrap(f"Raised at {failure.place}.", 96)
    faults = sorted({o.name for o in failure.operations if o.name in FAULTS})
    lines += textwrap.wrap(
        f"Environment: {'injected faults (' + ', '.join(faults) + ')' if faults else 'legal'}. "
        f"Engine: {failure.target.version()}, connector {failure.settings.connector!r}.",
        96,
    )
    lines += ["", "Step by step:", ""]
    for number, operation in enumerate(failure.operations, 1):
        lines += textwrap.wrap(f"{number}. {in_words(operation)}", 96, subsequent_indent="   ")
    lines += ["", f"Found by: {command}", ""]
    return "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''")


def _plain(text: str) -> str:
    return text.rstrip(". ")


def in_words(operation: Operation) -> str:
    """One operation as a sentence."""
    name, arguments = operation.name, operation.arguments
    if name == "add":
        return _request_in_words(arguments[0])
    if name == "chunk":
        return (
            f"The client of {arguments[0]} sends a chunk of {len(arguments[1])} tokens, "
            f"for an answer of up to {arguments[2]}."
        )
    if name == "reset":
        flags = [
            flag
            for flag, on in zip(
                ("running requests", "the connector's cache"), arguments, strict=True
            )
            if on
        ]
        extra = f", with {' and '.join(flags)}" if flags else ""
        return f"The prefix cache is reset{extra}."
    if name == "fail":
        return f"{arguments[0]} fails; its first {arguments[1]} blocks are good."
    sentence = {
        "step": "A step is scheduled and launched.",
        "finish_step": "The oldest launched step ends, and its results are processed.",
        "abort": "The client of {} gives up.",
        "close_input": "The client of {} ends its input.",
        "complete": "{} ends well.",
        "lose": "The completion of {} is lost (an injected fault).",
        "duplicate": "The completion of {} is reported a second time (an injected fault).",
        "pause": "The engine is paused ({}).",
        "resume": "The engine is resumed.",
        "sleep": "The engine is put to sleep, level {}.",
        "wake": "The engine is woken.",
        "tick": "Every lease and deadline that is running runs out.",
        "drain": "All transfers end, and the engine steps until nothing moves any more.",
    }[name]
    return sentence.format(*arguments)


def _request_in_words(request: NewRequest) -> str:
    what = "A session" if request.session else "A request"
    parts = [f"{what}, {request.id}, arrives: {len(request.prompt)} tokens"]
    parts.append(f"an answer of up to {request.max_tokens}")
    if request.priority:
        parts.append(f"priority {request.priority}")
    if request.remote_tokens:
        parts.append(f"the remote tier has {request.remote_tokens} of its tokens")
    if request.send:
        parts.append("its KV is sent to a peer when it ends")
    if request.stop_every:
        parts.append(f"it stops at positions that {request.stop_every} divides")
    return "; ".join(parts) + "."


def _calls(failure: Failure) -> Iterator[str]:
    target, violation = failure.target, failure.violation
    yield f"engine = {target.__name__}({_constructor(failure.settings)})"
    *first, last = failure.operations
    for operation in first:
        yield _call(operation)
    if "before" in violation.assertion:
        yield "before = engine.snapshot()"
    if not violation.assertion:
        yield f"# {_comment(violation.message)}"
        yield _call(last)
        return
    raised = violation.rule == "failed-call-changes-nothing"
    answer = {"drain": "drained = ", "reset": "answer = "}.get(last.name, "")
    if raised:
        yield "try:"
        yield f"    {_call(last)}"
        yield "except Exception:"
        yield "    pass  # that it fails may be right; what it leaves is not"
    else:
        yield answer + _call(last)
    yield "now = engine.snapshot()"
    yield f"# {_comment(violation.message)}"
    yield f"assert {violation.assertion}"


def _comment(text: str) -> str:
    return "\n    # ".join(textwrap.wrap(text, 92))


def _call(operation: Operation) -> str:
    if operation.name == "drain":
        return "drain(engine)"
    return f"engine.{operation.name}({', '.join(map(_value, operation.arguments))})"


def _value(value: Any) -> str:
    return _constructor(value) if isinstance(value, NewRequest) else repr(value)


def _constructor(value: NewRequest | Settings) -> str:
    """The constructor's call, without the arguments that have their default values."""
    default: dict[str, Any] = {f.name: f.default for f in fields(value)}
    given = ", ".join(
        f"{name}={current!r}" for name, current in asdict(value).items() if current != default[name]
    )
    return f"NewRequest({given})" if isinstance(value, NewRequest) else f"Settings({given})"


def file_name(finding: Finding) -> str:
    """The test's file name."""
    return f"test_{finding.slug}.py"


def slug(text: str) -> str:
    """Text as part of an identifier."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


__all__ = ["CannotBundleError", "Target", "file_name", "header", "in_words", "slug", "write"]
