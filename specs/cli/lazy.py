"""Commands that are imported when they are called, so that the command line starts without extras.

Each command is a module of this package with one public name `command`: a function that typer
understands, or a `typer.Typer` if it has sub-commands of its own (`kvproof model fetch`).
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import typer
from typer.core import TyperCommand

EXTRAS = {
    "blake3": ("runtime",),
    "cvc5": ("specs",),
    "fastapi": ("runtime",),
    "gguf": ("runtime",),
    "hypothesis": ("specs",),
    "jinja2": ("runtime",),
    "msgspec": ("runtime",),
    "numpy": ("explore", "runtime"),
    "prometheus_client": ("runtime",),
    "pydantic": ("runtime",),
    "safetensors": ("runtime",),
    "tokenizers": ("runtime",),
    "torch": ("explore", "runtime"),
    "uvicorn": ("runtime",),
    "vllm": ("vllm",),
    "websockets": ("runtime",),
    "xxhash": ("runtime",),
    "z3": ("specs", "explore"),
}
"""Which extras bring a top-level module that the base install lacks."""


def missing_extra(error: ModuleNotFoundError, preferred: str | None) -> str | None:
    """Name the extra that would have brought the module which `error` did not find.

    `preferred` is the extra of the running command; it is named if several bring the module.
    None: no extra brings it, so the fault is ours and the error is shown as it is.
    """
    module = (error.name or "").partition(".")[0]
    extras = EXTRAS.get(module)
    if extras is None:
        return None
    return preferred if preferred in extras else extras[0]


def require(module: str) -> None:
    """Raise ModuleNotFoundError if a module is not installed, as importing it would.

    For what a command needs in a process of its own: it cannot say so as well itself.
    """
    if find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)


class LazyCommand(TyperCommand):
    """Stands for a command in the list of commands; becomes the real one when it is called."""

    def __init__(self, name: str, module: str, summary: str, extra: str | None) -> None:
        """Name the module, relative to this package, without importing it."""
        super().__init__(name=name, help=summary, callback=None, params=[])
        self._module = module
        self.extra = extra

    def load(self) -> Any:
        """Import the module and let typer build its command.

        Raises ModuleNotFoundError if something that the module imports is not installed.
        """
        target = importlib.import_module(self._module, __package__).command
        if isinstance(target, typer.Typer):
            return typer.main.get_command(target)
        app = typer.Typer(add_completion=False)
        app.command(self.name)(target)
        return typer.main.get_command(app)

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Parse with the real command: the group then invokes what the context names."""
        return self.load().make_context(info_name, args, parent=parent, **extra)
