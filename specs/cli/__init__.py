"""The command line `kvproof`: one module a command, imported only when it is called.

To add a command: a module here with a public `command` (see `lazy`), and a line in `COMMANDS`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import typer

from . import exits
from .lazy import LazyCommand, missing_extra


@dataclass(frozen=True)
class Listed:
    """A command as `kvproof --help` lists it.

    `name` is also its module's. `extra` is the one that its work needs first; None if the base
    install is enough.
    """

    name: str
    summary: str
    extra: str | None = None


COMMANDS: tuple[Listed, ...] = (
    Listed(
        "check", "Prove the lifecycle's obligations; say what is assumed and what is open.", "specs"
    ),
    Listed("explore", "Enumerate a finite instance; show the shortest counterexample.", "explore"),
    Listed("export", "A finite instance as a Promela model, for Spin.", "specs"),
    Listed("table", "The declaration as a table: what goes, from where, and why."),
    Listed("diagram", "A machine as Mermaid, DOT or SVG."),
    Listed("fuzz", "Look for faults in an engine; write each as a stand-alone pytest.", "runtime"),
    Listed("conform", "Replay traces against the declaration; say where the first one departs."),
    Listed("demo", "The proofs, then the reset scenario on a served model.", "runtime"),
    Listed("generate", "Send a model one prompt; print its answer as it comes.", "runtime"),
    Listed("serve", "Serve a model with OpenAI's API over HTTP.", "runtime"),
    Listed("bench", "Measure scheduler and model, beside vLLM if it is installed.", "runtime"),
    Listed("model", "Fetch a model into the cache, list models, export one.", "runtime"),
)
"""In the order in which `kvproof --help` shows them."""

# The base of every error that typer means for the user (a bad option, an unreadable file);
# typer does not export it by name.
_UserError: type[Exception] = typer.BadParameter.__mro__[2]


def application() -> typer.core.TyperGroup:
    """Build the group of all commands. No command's module is imported."""
    app = typer.Typer(
        name="kvproof",
        help="The request lifecycle of an LLM inference engine: declared, proved, run, fuzzed.",
    )

    @app.callback(invoke_without_command=True)
    def root(
        context: typer.Context,
        version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    ) -> None:
        if version:
            typer.echo(f"kvproof {importlib.metadata.version('kvproof')}")
        elif context.invoked_subcommand is None:
            typer.echo(context.get_help())

    group = typer.main.get_group(app)
    for listed in COMMANDS:
        group.add_command(
            LazyCommand(listed.name, f".{listed.name}", listed.summary, listed.extra), listed.name
        )
    return group


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `kvproof` with `arguments` (default: those of the process); return its exit code.

    A usage error, a missing extra or a declaration that does not load ends with `exits.USAGE`:
    typer's own code for the first, 2, would read as "refuted", and Python's, 1, as "failed".
    """
    typed = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result = application().main(typed, prog_name="kvproof", standalone_mode=False)
    except _UserError as error:
        typer.echo(_usage_message(error), err=True)
        return exits.USAGE
    except typer.Abort:
        typer.echo("aborted", err=True)
        return exits.FAILED
    except Exception as error:
        words = _missing(error, typed) or _no_declaration()
        if words is None:
            raise
        typer.echo(words, err=True)
        return exits.USAGE
    return result if isinstance(result, int) else exits.OK


def _missing(error: Exception, typed: Sequence[str]) -> str | None:
    """Say which extra brings what was not found; None if that is not what went wrong."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    called = next((listed for listed in COMMANDS if listed.name in typed[:1]), None)
    extra = missing_extra(error, called.extra if called else None)
    if extra is None:
        return None
    name = f"kvproof {called.name}" if called else "kvproof"
    return (
        f"{name} needs {error.name}, which is not installed. It comes with the extra {extra} "
        f"of kvproof; from its sources:\n    pip install 'path/to/kvproof[{extra}]'"
    )


def _no_declaration() -> str | None:
    """Say why the declaration does not load, for example because a table is not total.

    None if it does: then the fault is ours, and is shown as it is.
    """
    try:
        importlib.import_module("...statemachine", __package__)
    except Exception as error:
        words = f"kvproof: the declaration does not load: {type(error).__name__}: {error}"
        if isinstance(error, SyntaxError):
            return f"{words}\n    {error.filename}:{error.lineno}"
        if type(error).__module__.startswith("kvproof."):
            return words  # it names the cell itself; it was raised where all cells are looked at
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{words}\n    {where.filename}:{where.lineno}"
    return None


def _usage_message(error: Exception) -> str:
    """Say what is wrong and where to read what would be right."""
    message: str = error.format_message()  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "kvproof"
    return f"{path}: {message}\nTry '{path} --help'."
