"""The wheel: what it holds, what it asks for, and that it imports where nothing else is."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from .test_documents import blocks

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("statemachine", "runtime", "specs")
WORK = {
    "bench": ("scheduler",),
    "generate": ("smollm2-135m", "hello"),
    "model": ("export", "exported"),
}
"""What a command needs to be given before it begins its work, and misses its extra."""


def pip(*arguments: str) -> None:
    """Run pip without asking any index."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the sources, so that no old build/ can leak into it."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    for name in PACKAGES:
        shutil.copytree(
            ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    out = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", str(out), str(source))
    (built,) = out.glob("kvproof-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into an empty folder."""
    target = tmp_path_factory.mktemp("installed")
    pip("install", "--no-index", "--no-deps", "--target", str(target), str(wheel))
    return target


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if not name.endswith("/")]


@pytest.fixture(scope="module")
def metadata(wheel: Path, names: list[str]) -> Message:
    (name,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel) as archive:
        return message_from_bytes(archive.read(name))


def source_files() -> Iterator[str]:
    """Name every source file below the three folders, relative to the root."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(ROOT).as_posix()


def test_the_wheel_holds_every_file_of_the_three_folders_and_nothing_beside(
    names: list[str],
) -> None:
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == {f"kvproof/{name}" for name in source_files()}


def test_the_wheel_marks_each_package_as_typed(names: list[str]) -> None:
    assert {f"kvproof/{package}/py.typed" for package in PACKAGES} <= set(names)


def test_the_namespace_has_no_init_of_its_own(names: list[str]) -> None:
    assert "kvproof/__init__.py" not in names


def test_the_base_install_asks_for_transitions_typer_and_rich_only(metadata: Message) -> None:
    requirements = metadata.get_all("Requires-Dist", [])
    base = [line for line in requirements if "extra ==" not in line]
    assert sorted(line.partition(">=")[0] for line in base) == ["rich", "transitions", "typer"]


def test_the_wheel_offers_the_extras_that_the_manual_names(metadata: Message) -> None:
    assert set(metadata.get_all("Provides-Extra", [])) == {
        "specs",
        "explore",
        "runtime",
        "vllm",
        "all",
        "test",
        "docs",
    }


def run_alone(installed: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code with the wheel and the standard library: -S leaves site-packages out."""
    return subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(installed), "PATH": os.environ["PATH"]},
        cwd=installed.parent,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_declaration_imports_from_the_wheel_with_the_standard_library_alone(
    installed: Path,
) -> None:
    run = run_alone(installed, "import kvproof.statemachine as it; print(it.__file__)")
    assert run.returncode == 0, run.stderr
    assert Path(run.stdout.strip()) == installed / "kvproof" / "statemachine" / "__init__.py"


def test_the_example_of_the_readme_needs_the_standard_library_alone(installed: Path) -> None:
    (example,) = blocks(ROOT / "README.md", "python")
    run = run_alone(installed, example)
    assert run.returncode == 0, run.stderr


@pytest.mark.long
def test_the_base_install_runs_the_command_line_and_names_the_extra_of_each_command(
    wheel: Path, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    binaries = tmp_path / "venv" / "bin"
    subprocess.run(
        [binaries / "python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel],
        check=True,
    )

    def kvproof(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [binaries / "kvproof", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    assert kvproof("--help").returncode == 0
    listing = [
        binaries / "python",
        "-c",
        "from kvproof.specs.cli import COMMANDS\n"
        "print(*(f'{listed.name} {listed.extra}' for listed in COMMANDS), sep='\\n')",
    ]
    listed = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    for line in listed.split("\n"):
        if line:
            name, extra = line.split(" ")
            run = kvproof(name, *(["--help"] if extra == "None" else WORK.get(name, ())))
            if extra == "None":
                assert run.returncode == 0, run.stderr
            else:
                assert run.returncode == 4, run.stderr
                assert "pip install 'path/to/kvproof[" in run.stderr
