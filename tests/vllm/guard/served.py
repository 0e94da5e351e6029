"""`vllm serve` on the CPU, with or without the guard, for the test of the whole."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
GUARD = "kvproof.runtime.integrations.vllm.GuardedScheduler"
MODEL = "smollm2"
START_SECONDS = 900  # vLLM is imported twice; on a busy machine that takes minutes
BLOCKS = 64


def exported_model(folder: Path) -> Path:
    """SmolLM2-135M as vLLM wants it, written by kvproof's own environment."""
    target = folder / "model"
    subprocess.run(
        [ROOT / ".venv/bin/kvproof", "model", "export", str(target)], check=True, timeout=600
    )
    return target


def cpu_build(folder: Path) -> Path:
    """vLLM takes itself for a CPU build when the distribution `vllm` has a version that says so."""
    stub = folder / "stub" / "vllm-0.32.0+cpu.dist-info"
    stub.mkdir(parents=True, exist_ok=True)
    (stub / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
    return stub.parent


@dataclass
class Served:
    """A running server, and the files by which its loads are held."""

    port: int
    hold: Path
    loading: Path

    def post(self, path: str, body: Any = None, timeout: float = 240) -> tuple[int, Any]:
        """The status and the JSON (or text) of an answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=data or b"",
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        try:
            return status, json.loads(text)
        except json.JSONDecodeError:
            return status, text

    def generate(self, prompt: list[int], tokens: int) -> list[int]:
        """The tokens of one greedy answer."""
        status, answer = self.post(
            "/v1/completions",
            {
                "model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
                "ignore_eos": True, "return_token_ids": True,
            },
        )  # fmt: skip
        assert status == 200, answer
        found: list[int] = answer["choices"][0]["token_ids"]
        return found

    def reset(self, **flags: bool) -> tuple[int, Any]:
        """A reset of the prefix cache over HTTP."""
        query = "&".join(f"{name}={str(value).lower()}" for name, value in flags.items())
        return self.post(f"/reset_prefix_cache?{query}")

    def metric(self, name: str) -> list[str]:
        """The lines of a metric."""
        url = f"http://127.0.0.1:{self.port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return [line for line in answer.read().decode().splitlines() if line.startswith(name)]


def until(said: Any, seconds: float = 120.0) -> bool:
    """Ask again and again until it is so; False when it does not become so."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if said():
            return True
        time.sleep(0.05)
    return False


@contextlib.contextmanager
def serve(model: Path, folder: Path, guarded: bool) -> Iterator[Served]:
    """The same command, but for the one option that installs the guard."""
    folder.mkdir(parents=True, exist_ok=True)
    metrics = folder / "metrics"
    metrics.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    served = Served(port, folder / "hold", folder / "loading")
    transfer = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "HostMemorySpec",
            "spec_module_path": "host_memory",
            "cpu_bytes_to_use": 64 * 2**20,
            "block_size": 32,
            "hold_loads": str(served.hold),
            "loading": str(served.loading),
        },
    }
    command = [
        sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model),
        "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port),
        "--dtype", "float32", "--enforce-eager", "--max-model-len", "512",
        "--max-num-seqs", "4", "--block-size", "32", "--num-gpu-blocks-override", str(BLOCKS),
        "--kv-transfer-config", json.dumps(transfer), "--distributed-executor-backend", "uni",
    ]  # fmt: skip
    if guarded:
        command += ["--scheduler-cls", GUARD]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(cpu_build(folder)), str(Path(__file__).parent)]),
        "HF_HUB_OFFLINE": "1",
        "VLLM_PLUGINS": "",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        # Only so that the worker may live in the engine core's process: one import of vLLM less.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",
        "KVPROOF_GUARD": "repair",
        # The guard counts in the engine core's process, /metrics is answered by another one.
        "PROMETHEUS_MULTIPROC_DIR": str(metrics),
    }
    log = folder / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=folder
        )
    try:
        ready = until(lambda: _healthy(served, server), START_SECONDS)
        assert ready, log.read_text()[-4000:]
        yield served
    finally:
        served.hold.unlink(missing_ok=True)
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _healthy(served: Served, server: subprocess.Popen[bytes]) -> bool:
    if server.poll() is not None:
        raise AssertionError((served.hold.parent / "server.log").read_text()[-6000:])
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
