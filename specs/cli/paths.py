"""Files and folders that a command writes: tried before its work begins, not minutes later.

Permissions alone do not tell: root may write everywhere, and still not into /proc.
"""

import contextlib
from pathlib import Path
from tempfile import TemporaryFile

import typer


def writable(path: Path | None) -> Path | None:
    """An option's callback: a file that can be made or replaced, or BadParameter.

    It is opened, and left as it was.
    """
    if path is None:
        return None
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder; name a file")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}; make it first")
    new = not path.exists()
    if not new and not path.is_file():
        return path  # a device or a pipe: opening it may wait for its reader
    try:
        with path.open("ab"):
            pass
        if new:
            path.unlink()
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


def writable_folder(path: Path | None) -> Path | None:
    """An option's callback: a folder that is there or can be made, or BadParameter.

    It is made and written to, and left as it was.
    """
    if path is None:
        return None
    new = [each for each in (path, *path.parents) if not each.exists()]
    there = path.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        raise typer.BadParameter(f"{there} is a file; name a folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        for each in new:
            with contextlib.suppress(OSError):
                each.rmdir()
    return path


def _unwritable(path: Path, error: OSError) -> typer.BadParameter:
    return typer.BadParameter(f"{path} cannot be written: {error.strerror or error}")
