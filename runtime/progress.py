"""A bar on stderr while requests run: how many are done, and tokens a second."""

from __future__ import annotations

import sys
import time
from types import TracebackType

import rich.progress
from rich.console import Console


class Progress:
    """A context manager around the wait; `show` is called now and then.

    enabled: None shows the bar when stderr is a terminal.
    """

    def __init__(self, requests: int, enabled: bool | None) -> None:
        shown = sys.stderr.isatty() if enabled is None else enabled
        self._bars = rich.progress.Progress(
            rich.progress.TextColumn("generating"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("{task.fields[rate]:.0f} tokens/s"),
            rich.progress.TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )
        self._task = self._bars.add_task("", total=requests, rate=0.0)
        self._since = time.monotonic()
        #: Seconds between two looks; None: only what has ended is worth one.
        self.interval = 0.1 if shown else None

    def show(self, done: int, tokens: int) -> None:
        """So many requests are done, so many tokens sampled."""
        seconds = max(time.monotonic() - self._since, 1e-9)
        self._bars.update(self._task, completed=done, rate=tokens / seconds)

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()
