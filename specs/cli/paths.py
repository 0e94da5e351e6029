"""Files that a command writes: checked before its work begins, not after minutes of it."""

import os
from pathlib import Path

import typer


def writable(path: Path | None) -> Path | None:
    """An option's callback: a file that can be made or replaced, or BadParameter."""
    if path is None:
        return None
    folder = path.parent
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder; name a file")
    if not folder.is_dir():
        raise typer.BadParameter(f"there is no folder {folder}; make it first")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise typer.BadParameter(f"{path} cannot be written")
    return path
