"""The demo's model: fetched into the user's cache on the first run."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from .client import DemoError


def fetched(console: Console, model: str) -> None:
    """Make sure that a model which has a name is there. Raises DemoError."""
    from ...runtime.model import zoo
    from ...runtime.model.errors import ModelError

    if model.lower() not in zoo.NAMED_MODELS or zoo.is_cached(zoo.named(model)):
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console) as progress:
        tasks = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(f"{model}: {stage}", total=total)
            progress.update(tasks[stage], completed=done)

        try:
            zoo.fetch(model, report)
        except ModelError as error:
            raise DemoError(str(error)) from error
