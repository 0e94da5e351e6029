"""The import contracts of pyproject.toml are broken by the imports that they forbid."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ONE_WAY = "imports point one way: specs, runtime, statemachine"
LIGHT = "the declaration needs the standard library and transitions only"


def verdicts(folder: Path, package: str, statement: str) -> dict[str, str]:
    """Check our contracts on three packages of which one holds `statement`."""
    for name in ("statemachine", "runtime", "specs"):
        (folder / "kvproof" / name).mkdir(parents=True)
        source = f"{statement}\n" if name == package else ""
        (folder / "kvproof" / name / "__init__.py").write_text(source)
    run = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", ROOT / "pyproject.toml"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = {
        name: word
        for name in (ONE_WAY, LIGHT)
        for word in ("KEPT", "BROKEN")
        if f"{name} {word}" in run.stdout
    }
    assert (run.returncode != 0) == ("BROKEN" in found.values()), run.stdout + run.stderr
    return found


@pytest.mark.parametrize(
    ("package", "statement", "one_way", "light"),
    [
        ("specs", "from ..runtime import __name__\nfrom ..statemachine import *", "KEPT", "KEPT"),
        ("runtime", "from ..statemachine import __name__\nimport torch", "KEPT", "KEPT"),
        ("runtime", "def run():\n    from .. import specs", "BROKEN", "KEPT"),
        ("statemachine", "from ..runtime import __name__", "BROKEN", "KEPT"),
        ("statemachine", "import numpy", "KEPT", "BROKEN"),
        ("statemachine", "import transitions", "KEPT", "KEPT"),
    ],
)
def test_an_import_keeps_or_breaks_its_contract(
    tmp_path: Path, package: str, statement: str, one_way: str, light: str
) -> None:
    assert verdicts(tmp_path, package, statement) == {ONE_WAY: one_way, LIGHT: light}
