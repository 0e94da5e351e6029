"""Programs that pip does not install: a test that needs one is never silently passed over."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "install_programs.sh"


def run_script(tmp_path: Path, *programs: str) -> subprocess.CompletedProcess[str]:
    """Run it where nothing but bash and these (empty) programs is installed."""
    bash = shutil.which("bash")
    assert bash is not None
    for name in programs:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    return subprocess.run(
        [bash, str(SCRIPT)],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_where_nothing_can_be_installed_it_is_said_what_is_missing(tmp_path: Path) -> None:
    run = run_script(tmp_path, "gcc")
    assert run.returncode == 1
    assert "not installed: spin chromium." in run.stderr


def test_where_nothing_is_missing_nothing_is_installed(tmp_path: Path) -> None:
    run = run_script(tmp_path, "gcc", "spin", "google-chrome")
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "2")], ids=["one", "many"])
@pytest.mark.parametrize(("required", "outcome"), [("", "1 skipped"), ("required", "1 error")])
def test_a_test_whose_program_is_missing_is_left_out_by_name_or_fails(
    tmp_path: Path, required: str, outcome: str, options: tuple[str, ...]
) -> None:
    # A session of its own, with the hook of this project and a program that nobody has.
    (tmp_path / "programs.py").write_text(
        (ROOT / "tests/programs.py").read_text().replace('"spin": ("spin",)', '"spin": ("sp1n",)')
    )
    hooks = (ROOT / "tests/conftest.py").read_text().replace("from .", "from ")
    (tmp_path / "conftest.py").write_text(hooks)
    shutil.copy(ROOT / "tests/second_copy.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = programs\n")
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\n\n@pytest.mark.programs('spin')\ndef test_it():\n    assert False\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PATH": "", "KVPROOF_PROGRAMS": required, "PYTHONDONTWRITEBYTECODE": "1",
             "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert outcome in run.stdout, run.stdout + run.stderr
    left_out = "" if required else "1 tests left out: "
    assert f"{left_out}not installed: spin (tests/install_programs.sh)" in run.stdout
    assert run.returncode == (1 if required else 0)
