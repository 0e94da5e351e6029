"""Files and folders that a command writes: checked before its work begins, not minutes later."""

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


def writable_folder(path: Path | None) -> Path | None:
    """An option's callback: a folder that is there or can be made, or BadParameter."""
    if path is None:
        return None
    there = path.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        raise typer.BadParameter(f"{there} is a file; name a folder")
    if not os.access(there, os.W_OK):
        raise typer.BadParameter(f"{there} cannot be written")
    return path
