"""Functions made from source text, as the declaration's compiler makes its cells."""

from __future__ import annotations

import itertools
import linecache
import textwrap
from collections.abc import Callable
from typing import Any

_numbers = itertools.count()


def define(source: str, name: str = "f", **scope: Any) -> Callable[..., Any]:
    """Compile a source text and return one of its functions; line 1 is the text's first line."""
    text = textwrap.dedent(source).lstrip("\n")
    filename = f"<symbolic test {next(_numbers)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), scope)
    function: Callable[..., Any] = scope[name]
    return function
