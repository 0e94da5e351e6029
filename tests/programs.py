"""Programs that some tests need and that pip does not install.

A test that needs one has the marker `programs("spin", …)`. Where a program is missing its tests
are left out and named at the end of the run; with KVPROOF_PROGRAMS=required, as in `.ci/run`, they
fail instead. `tests/install_programs.sh` installs what is missing.
"""

from __future__ import annotations

import os
import shutil

#: By the name in the marker, the names that the program may have.
PROGRAMS = {
    "spin": ("spin",),
    "gcc": ("gcc",),
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
}


def find(program: str) -> str | None:
    """The path of a program, None where it is not installed."""
    return next((path for name in PROGRAMS[program] if (path := shutil.which(name))), None)


def missing(programs: tuple[str, ...]) -> list[str]:
    """Those of the programs that are not installed."""
    return [program for program in programs if find(program) is None]


def required() -> bool:
    """Whether a missing program is a failure."""
    return os.environ.get("KVPROOF_PROGRAMS") == "required"
