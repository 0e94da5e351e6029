"""What the demo shows while it runs, and its table: one line a trial."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .rows import Row
from .trials import Bench

_MEGABYTE = 1_000_000


class View:
    """The table so far and, on a terminal, the streams that run now."""

    def __init__(self, console: Console, caption: str) -> None:
        self._console = console
        self._caption = caption
        self._rows: list[tuple[str, Row]] = []
        self._bench: Bench | None = None
        self._step = ""
        self._live: Live | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show it while it grows; where there is no terminal, each line once."""
        if not self._console.is_terminal:
            yield
            self._console.print(self.table())
            return
        with Live(self._render(), console=self._console, auto_refresh=False) as live:
            self._live = live
            done = threading.Event()
            drawing = threading.Thread(target=self._draw, args=(live, done), daemon=True)
            drawing.start()
            try:
                yield
            finally:
                done.set()
                drawing.join()
                live.update(self.table(), refresh=True)

    def watch(self, bench: Bench) -> None:
        """Show this bench's streams."""
        self._bench = bench

    def step(self, text: str) -> None:
        """Say what is done now."""
        self._step = text
        if self._live is None:
            self._console.print(text, style="dim")

    def add(self, part: str, row: Row) -> None:
        """One trial is done."""
        self._rows.append((part, row))
        if self._live is None:
            mark = "holds" if row.holds else "FAILS"
            self._console.print(f"{row.name}: {mark} ({row.seconds:.1f} s)", style="dim")

    def table(self) -> RenderableType:
        """All trials so far, in the parts of the scenario."""
        parts: list[RenderableType] = []
        for part in dict.fromkeys(part for part, _ in self._rows):
            rows = [row for of, row in self._rows if of == part]
            parts += [Text(f"\n{part}", style="bold"), _table(rows)]
        return Group(*parts, Text(f"\n{self._caption}", style="dim"))

    def _draw(self, live: Live, done: threading.Event) -> None:
        while not done.wait(0.1):
            live.update(self._render(), refresh=True)

    def _render(self) -> RenderableType:
        """What has been found, and what is under way."""
        lines: list[RenderableType] = [self.table()] if self._rows else []
        bench = self._bench
        doing = bench.doing if bench is not None and bench.doing else self._step
        lines.append(Text(doing, style="bold"))
        for stream in list(bench.streams) if bench is not None else ():
            have = len(stream.tokens)
            bar = "█" * have + "·" * max(0, stream.left)
            lines.append(Text(f"  {stream.name:<16} {bar} {have}/{stream.owed}"))
        return Group(*lines)


#: Column -> (width, justified to the right); together they fit in 80 columns.
_COLUMNS = {
    "trial": (9, False),
    "refused by": (22, False),
    "true when": (12, False),
    "same": (6, False),
    "MB in": (5, True),
    "after": (8, False),
    "s": (5, True),
    "": (5, False),
}


def _table(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name, (width, right) in _COLUMNS.items():
        table.add_column(name, min_width=width, justify="right" if right else "left")
    for row in rows:
        table.add_row(
            row.name,
            row.refused,
            row.true_when,
            row.same,
            f"{row.loaded_bytes / _MEGABYTE:.1f}",
            row.after,
            f"{row.seconds:.1f}",
            Text("holds", style="green") if row.holds else Text("FAILS", style="bold red"),
        )
    return table
