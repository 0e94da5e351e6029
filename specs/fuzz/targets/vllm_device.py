"""The fake device of the vLLM targets: a model runner and the worker side of the connectors.

It knows what a worker knows: each step's SchedulerOutput. Three kinds of work run beside each
other, as on a GPU:

- forward passes, in the order in which they were launched, each at the latest when its result is
  asked for;
- loads, which may write at any time between their start and their end (their blocks hold garbage
  until then), not ordered against forward passes;
- stores, which read after the forward passes launched before them, at the latest when they are
  flushed.

A completion is reported with the next result of a step that was launched when the transfer had
begun. `MockConnector`'s jobs and the real OffloadingConnector's are both understood.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..fake_kv import FakeKV, Row, Wrong
from ..target import Misread, Settings, TransferView, next_token


@dataclass(slots=True)
class Scheduled:
    """One request's part of a launched step, as the worker sees it when the step is launched."""

    request: str
    table: list[int]
    start: int
    count: int
    tokens: list[int] | None = None  # replaces what the worker knows
    outputs: int | None = None  # how many output tokens the scheduler counts


@dataclass(slots=True)
class Launched:
    """A step on its way: what the scheduler said, and what came out once it ran."""

    index: int
    output: Any
    rows: list[Scheduled]
    finished: set[str]
    root: int
    sampled: dict[str, list[int]] | None = None
    misreads: dict[str, Misread] = field(default_factory=dict)

    def blocks(self, block_size: int, written_only: bool) -> set[int]:
        """The blocks that the step reads and writes, or only those that it writes."""
        found: set[int] = set()
        for row in self.rows:
            first = row.start // block_size if written_only else 0
            found.update(row.table[first : -(-(row.start + row.count) // block_size)])
        return found


@dataclass(slots=True)
class Transfer:
    """A load or a store that the worker began."""

    id: str
    kind: str
    request: str
    blocks: list[int]
    source: Any  # LOAD: (start, end) or host chunks; STORE: host chunks, or None for a send
    job: int | None  # the OffloadingConnector's number for it
    begun: int  # the step in whose launch it began
    root: int  # the epoch of what it carries
    state: str = "open"  # open, lost or ended


class Device:
    """See the module's docstring. Blocks are numbered as vLLM does: 0 is the null block."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.kv = FakeKV(settings.blocks + 1, settings.block_size)
        self.stop_every: dict[str, int] = {}
        self.prompts: dict[str, tuple[int, ...]] = {}
        self.misreads: list[Misread] = []
        self._steps = 0
        self._unrun: collections.deque[Launched] = collections.deque()
        self._tokens: dict[str, list[int]] = {}
        self._tables: dict[str, list[int]] = {}
        self._prompt_length: dict[str, int] = {}
        self._transfers: dict[str, Transfer] = {}
        self._jobs: dict[int, Transfer] = {}
        self._unsubmitted: list[tuple[int, Any]] = []
        self._reports: list[tuple[Transfer, tuple[int, ...]]] = []  # ended; invalid blocks
        self._host: dict[int, list[int]] = {}

    # Steps.
    def launch(self, output: Any) -> Launched:
        """The part of a step that happens at once: block tables, flushes, starting transfers."""
        launched = Launched(self._steps, output, [], set(output.finished_req_ids), self.kv.root)
        self._steps += 1
        for request in output.finished_req_ids:
            self._tables.pop(request, None)
        scheduled = output.num_scheduled_tokens
        for new in output.scheduled_new_reqs:
            tokens = list(new.prefill_token_ids or new.prompt_token_ids)
            self._prompt_length[new.req_id] = len(new.prompt_token_ids)
            self._tables[new.req_id] = list(new.block_ids[0])
            launched.rows.append(
                Scheduled(
                    new.req_id,
                    list(new.block_ids[0]),
                    new.num_computed_tokens,
                    scheduled[new.req_id],
                    tokens=tokens,
                )
            )
        cached = output.scheduled_cached_reqs
        for i, request in enumerate(cached.req_ids):
            added = cached.new_block_ids[i]
            if request in cached.resumed_req_ids:
                self._tables[request] = list(added[0])
            elif added is not None:
                self._tables[request] += added[0]
            everything = cached.all_token_ids.get(request)
            launched.rows.append(
                Scheduled(
                    request,
                    list(self._tables[request]),
                    cached.num_computed_tokens[i],
                    scheduled[request],
                    tokens=None if everything is None else list(everything),
                    outputs=cached.num_output_tokens[i],
                )
            )
        self._begin_transfers(output.kv_connector_metadata)
        self._unrun.append(launched)
        return launched

    def _run(self, before: int) -> None:
        """Run the forward passes of all launched steps numbered below `before`."""
        while self._unrun and self._unrun[0].index < before:
            self._forward(self._unrun.popleft())

    def _forward(self, step: Launched) -> None:
        sampled: dict[str, list[int]] = {}
        for request in step.finished:
            self._tokens.pop(request, None)
        rows = []
        for row in step.rows:
            known = self._tokens.get(row.request, [])
            if row.tokens is not None:
                known = row.tokens
            elif row.outputs is not None and known:
                # Some output was dropped by the scheduler: align with it.
                del known[self._prompt_length[row.request] + row.outputs :]
            self._tokens[row.request] = known
            rows.append(Row(row.table, known, row.start, row.start + row.count, step.root))
        for row, kv_row, wrong in zip(step.rows, rows, self.kv.run(rows), strict=True):
            request, known, end = row.request, self._tokens[row.request], kv_row.end
            if end > self.settings.max_length:
                wrong = Wrong(end - 1, -1, "the position is beyond the model's length")
            if wrong is not None:
                step.misreads[request] = Misread(request, wrong.position, wrong.block, wrong.why)
            if end < len(known):
                sampled[request] = []  # its prefill is not finished
                continue
            token = next_token(known, self.stop_every.get(request, 0))
            token += 1000 if wrong else 0
            known.append(token)
            sampled[request] = [token]
        step.sampled = sampled

    def execute(self, step: Launched) -> Any:
        """The step's result as a ModelRunnerOutput, with what transfers have to report."""
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        self._run(step.index + 1)
        assert step.sampled is not None
        ids = list(step.sampled)
        report = None
        if self.settings.connector != "none":
            report = self._report(KVConnectorOutput(), step.index)
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request: i for i, request in enumerate(ids)},
            sampled_token_ids=[list(step.sampled[request]) for request in ids],
            kv_connector_output=report,
        )

    def delivered(self, request: str, step: Launched, tokens: Sequence[int]) -> None:
        """Output of a step reached the client: a misread behind it did harm."""
        if tokens and request in step.misreads:
            self.misreads.append(step.misreads[request])

    # Transfers: the worker's side.
    def _begin_transfers(self, metadata: Any) -> None:
        if metadata is None:
            return
        if hasattr(metadata, "sends"):
            for request, start, end, blocks in metadata.loads:
                self._begin("load", request, blocks, (start, end), None)
            for request, blocks in metadata.sends:
                self._begin("store", request, blocks, None, None)
            return
        # OffloadingConnectorWorker.handle_preemptions, start_kv_transfers, prepare_store_kv.
        flush = metadata.jobs_to_flush or set()
        stores = dict(metadata.store_jobs)
        self._unsubmitted += [(job, stores.pop(job)) for job in sorted(flush) if job in stores]
        for job, entry in self._unsubmitted:
            blocks = [int(b) for b in entry.src_spec.block_ids]
            chunks = [int(c) for c in entry.dst_spec.chunk_ids]
            self._begin("store", entry.req_id, blocks, chunks, job)
        self._unsubmitted.clear()
        for job in sorted(flush):
            if job in self._jobs and self._jobs[job].state != "ended":
                self._end(self._jobs[job])
        for job, entry in metadata.load_jobs.items():
            blocks = [int(b) for b in entry.dst_spec.block_ids]
            chunks = [int(c) for c in entry.src_spec.chunk_ids]
            self._begin("load", entry.req_id, blocks, chunks, job)
        self._unsubmitted += stores.items()

    def _begin(
        self, kind: str, request: str, blocks: list[int], source: Any, job: int | None
    ) -> None:
        prefix = f"{kind}/{request}/"
        ordinal = 1 + sum(known.startswith(prefix) for known in self._transfers)
        transfer = Transfer(
            f"{prefix}{ordinal}",
            kind.upper(),
            request,
            blocks,
            source,
            job,
            self._steps - 1,
            self.kv.root,
        )
        self._transfers[transfer.id] = transfer
        if job is not None:
            self._jobs[job] = transfer
        if kind == "load":
            for block in blocks:
                if isinstance(source, tuple) and source[0] % self.settings.block_size:
                    continue  # it writes the rest of a block whose first slots stay
                self.kv.spoil(block)

    def _end(self, transfer: Transfer, valid: int | None = None) -> None:
        """The copy ends; only the first `valid` blocks (None: all) hold what they should."""
        blocks, source = transfer.blocks, transfer.source
        if transfer.kind == "STORE":
            self._run(transfer.begun)
            if source is not None:
                for block, chunk in zip(blocks, source, strict=True):
                    self._host[chunk] = list(self.kv.content(block))
        else:
            size = self.settings.block_size
            good = len(blocks) if valid is None else valid
            for i, block in enumerate(blocks[:good]):
                if isinstance(source, tuple):
                    start, end = source
                    chain = self.kv.prefixes.chain(
                        self.prompts[transfer.request][:end], transfer.root
                    )
                    first = (start // size + i) * size
                    content = list(self.kv.content(block))
                    for position in range(max(first, start), min(first + size, end)):
                        content[position - first] = chain[position]
                    self.kv.put(block, content)
                else:
                    self.kv.put(block, self._host.get(source[i], [0] * size))
        transfer.state = "ended"
        invalid = () if valid is None else tuple(blocks[valid:])
        self._reports.append((transfer, invalid))

    def _report(self, report: Any, step: int) -> Any:
        due = [r for r in self._reports if r[0].begun <= step]
        self._reports = [r for r in self._reports if r[0].begun > step]
        meta = None
        for transfer, invalid in due:
            if transfer.job is not None:
                if meta is None:
                    meta = _worker_metadata()
                meta.mark_completed(transfer.job)
            if transfer.kind == "LOAD":
                report.finished_recving = (report.finished_recving or set()) | {transfer.request}
            elif transfer.job is None:
                report.finished_sending = (report.finished_sending or set()) | {transfer.request}
            report.invalid_block_ids |= set(invalid)
        report.kv_connector_worker_meta = meta
        return report

    # Transfers: what the fuzzer decides.
    def complete(self, transfer: str) -> None:
        """An open transfer ends well."""
        self._end(self._transfers[transfer])

    def fail(self, transfer: str, valid_blocks: int) -> None:
        """An open load ends with only its first blocks written."""
        self._end(self._transfers[transfer], valid_blocks)

    def lose(self, transfer: str) -> None:
        """An open transfer's end is never reported."""
        self._transfers[transfer].state = "lost"

    def duplicate(self, transfer: str) -> None:
        """An ended transfer is reported once more."""
        self._reports.append((self._transfers[transfer], ()))

    # What is observed.
    def request_of(self, transfer: str) -> str:
        """The request that a transfer is for."""
        return self._transfers[transfer].request

    def unreported(self) -> bool:
        """Whether a transfer has ended and the scheduler was not told."""
        return bool(self._reports)

    def transfers(self) -> tuple[TransferView, ...]:
        """All transfers so far, in the order in which they began."""
        return tuple(
            TransferView(
                t.id, t.kind, t.request, tuple(t.blocks), t.state != "ended", t.state == "lost"
            )
            for t in self._transfers.values()
        )

    def host_content(self, chunk: int) -> tuple[int, ...]:
        """What a block of the host tier holds."""
        return tuple(self._host.get(chunk, [0] * self.settings.block_size))

    def being_written(self) -> set[int]:
        """The blocks that launched steps and open loads still write."""
        found = {
            b
            for t in self._transfers.values()
            if t.kind == "LOAD" and t.state == "open"
            for b in t.blocks
        }
        for step in self._unrun:
            found |= step.blocks(self.settings.block_size, written_only=True)
        return found

    def touched(self, steps: bool) -> tuple[tuple[str, int], ...]:
        """Who relies on a hold: open loads and sends, and `steps` on their way.

        Not the OffloadingConnector's stores: vLLM flushes them before a block is used again.
        """
        found = [
            (t.id, b)
            for t in self._transfers.values()
            if t.state != "ended" and (t.kind == "LOAD" or t.job is None)
            for b in t.blocks
        ]
        if steps:
            for step in self._unrun:
                blocks = step.blocks(self.settings.block_size, written_only=False)
                found += [(f"step/{step.index}", b) for b in sorted(blocks)]
        return tuple(found)


def _worker_metadata() -> Any:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
        OffloadingWorkerMetadata,
    )

    return OffloadingWorkerMetadata()
