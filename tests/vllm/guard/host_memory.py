"""An offload tier in host memory for vLLM on the CPU: its own refuses any device but CUDA and XPU.

Given to `vllm serve` by `spec_module_path`. While the file named by `hold_loads` exists, no load is
carried out: it is in flight for as long as a test wants. A load writes the file `loading`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class HostMemoryWorker(OffloadingWorker):
    """Copies blocks between the device's tensors (here: host memory too) and the tier's."""

    def __init__(self, caches: Any, chunks: int, blocks_per_chunk: int, extra: Any) -> None:
        assert blocks_per_chunk == 1
        self._device = [entry.tensor for entry in caches.tensors]
        self._tier = [tensor.new_zeros(chunks, tensor.shape[1]) for tensor in self._device]
        self._hold = Path(extra["hold_loads"])
        self._loading = Path(extra["loading"])
        self._loads: list[tuple[int, Any, Any]] = []
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        for device, tier in zip(self._device, self._tier, strict=True):
            tier[dst_spec.chunk_ids] = device[src_spec.block_ids]
        self._done.append(TransferResult(job_id, success=True))
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        self._loads.append((job_id, src_spec, dst_spec))
        self._loading.touch()
        return True

    def get_finished(self) -> list[TransferResult]:
        if not self._hold.exists():
            self._carry_out()
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        if any(job in job_ids for job, _, _ in self._loads):
            self._carry_out()

    def _carry_out(self) -> None:
        for job, source, target in self._loads:
            for device, tier in zip(self._device, self._tier, strict=True):
                device[target.block_ids] = tier[source.chunk_ids]
            self._done.append(TransferResult(job, success=True))
        self._loads.clear()


class HostMemorySpec(CPUOffloadingSpec):
    """vLLM's own bookkeeping of the tier, with a worker that needs no GPU."""

    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        if self._worker is None:
            self._worker = HostMemoryWorker(
                kv_caches, self.num_chunks, self.blocks_per_chunk, self.extra_config
            )
        return self._worker
