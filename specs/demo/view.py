"""What the demo shows: one line a trial as it ends and, on a terminal, the streams under way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from .rows import Row
from .trials import Bench

_MEGABYTE = 1_000_000
_REFRESH = 0.25  # seconds
_BAR = 32  # characters

#: Column -> width, below zero if justified to the right; together they fit in 80 columns.
_COLUMNS = {
    "trial": 9,
    "refused by": 22,
    "true when": 12,
    "same": 6,
    "MB in": -5,
    "after": 8,
    "s": -5,
    "": 5,
}


class View:
    """Lines that stay, and below them what is done now."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bench: Bench | None = None
        self._step = ""
        self._part = ""

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show what is under way, where there is a terminal."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            done = threading.Event()
            drawing = threading.Thread(target=self._draw, args=(live, done), daemon=True)
            drawing.start()
            try:
                yield
            finally:
                done.set()
                drawing.join()

    def watch(self, bench: Bench) -> None:
        """Show this bench's streams."""
        self._bench = bench

    def step(self, text: str) -> None:
        """Say what is done now."""
        self._step = text
        if not self._console.is_terminal:
            self._console.print(text, style="dim")

    def add(self, part: str, row: Row) -> None:
        """One trial is done: its line, under the heading of its part."""
        if part != self._part:
            self._part = part
            self._console.print(f"\n{part}", style="bold")
            self._console.print(_line(list(_COLUMNS)), style="dim")
        self._console.print(line_of(row))
        for what in row.failed:
            self._console.print(f"    NOT: {what}", style="red", soft_wrap=True)

    def _draw(self, live: Live, done: threading.Event) -> None:
        while not done.wait(_REFRESH):
            live.update(self._under_way(), refresh=True)

    def _under_way(self) -> RenderableType:
        bench = self._bench
        doing = bench.doing if bench is not None and bench.doing else ""
        lines = [Text(f"\n{self._step} {doing}".rstrip(), style="bold")]
        for stream in list(bench.streams) if bench is not None else ():
            have = len(stream.tokens)
            full = _BAR * have // stream.owed
            lines.append(
                Text(f"  {stream.name:<15} {'█' * full}{'·' * (_BAR - full)} {have}/{stream.owed}")
            )
        return Group(*lines)


def line_of(row: Row) -> Text:
    """A trial's line, without its verdict's colour where there is none."""
    line = Text(
        _line(
            [
                row.name,
                row.refused,
                row.true_when,
                row.same,
                f"{row.loaded_bytes / _MEGABYTE:.1f}",
                row.after,
                f"{row.seconds:.1f}",
                "",
            ]
        )
    )
    if row.holds:
        return line.append("holds", style="green")
    return line.append("FAILS", style="bold red")


def _line(cells: list[str]) -> str:
    parts = [
        cell.rjust(-width) if width < 0 else cell.ljust(width)
        for cell, width in zip(cells, _COLUMNS.values(), strict=True)
    ]
    return " ".join(parts[:-1]) + " " + cells[-1]
